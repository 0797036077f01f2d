"""Tables of text, CSV and TSV: the one way in which their fields become columns."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow as pa

MOST_COLUMNS = 32_768
"""A vector of more numbers than this is an array, and reading one column for each of them takes minutes."""

NOTHING = ("", "#n/a", "<na>", "-nan", "n/a", "na", "nan", "none", "null")
"""What stands for no value beside numbers, in any capitals; among names only an empty field does."""

_LONGEST = 2**31 - 1
"""Characters of a field; the reader of Python itself stops at 131,072, which long texts have."""


def read_text_table(path: Path, *, texts: Collection[str] | None = ()) -> pa.Table:
    """The columns of a table of text, whose first line has their names; raises one of `DAMAGE`.

    Every line has as many fields as the first one: with one more or less, nobody can tell which column a field is of.
    An empty field is null. A column of numbers, or of `true` and `false`, beside nothing but `NOTHING`, is one of
    numbers (or truth values) and nulls; any other is one of text, as it is written. A column without a name is left
    out if it is the first one (row numbers, as pandas and R write them) or empty (a delimiter at the end of each line).

    Args:
        path: UTF-8; columns are parted by tabs in `.tsv`, by commas in others, and spaces after these do not count.
        texts: names of columns that are text whatever is in them; None for all of them.

    Raises:
        ValueError: fields that belong to no column or are lacking, quotes that do not end, two columns of one name,
            more than `MOST_COLUMNS`; the message says in which line, and what to do.
    """
    names, rows = _checked(path)
    places = [str(place) for place in range(len(names))]
    as_text = {place: str for place, name in zip(places, names, strict=True) if texts is None or name in texts}
    frame = pd.read_csv(
        path,
        sep=delimiter_of(path),
        skipinitialspace=True,
        header=0,
        names=places,
        index_col=False,  # all lines have as many fields as there are names, or pandas would drop some
        dtype=as_text,
        keep_default_na=False,
        na_values=[""],
        low_memory=False,
    )
    if len(frame) != rows:
        raise ValueError(
            f"it has {rows} rows by one way of reading and {len(frame)} by another (lines of spaces?); write it anew"
        )
    columns = {name: _column(frame[place], place in as_text) for place, name in zip(places, names, strict=True)}
    unnamed = columns.pop("", None)
    if unnamed is not None and names[0] and unnamed.null_count < rows:
        raise ValueError(f"column {names.index('') + 1} of {len(names)} has no name in the first line; write one there")
    return pa.table(columns)


def delimiter_of(path: Path) -> str:
    """What parts the columns of a table of text, by the ending of its name."""
    return "\t" if ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:]) else ","


def _checked(path: Path) -> tuple[list[str], int]:
    """The names of the columns, and how many rows there are; the reader of pandas shifts and drops fields silently."""
    limit = csv.field_size_limit(_LONGEST)
    try:
        with _opened(path) as file:
            return _shape(csv.reader(file, delimiter=delimiter_of(path), skipinitialspace=True, strict=True))
    except UnicodeDecodeError:
        raise ValueError(f"line {_not_utf8(path)} is no UTF-8; save the table as UTF-8") from None
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    finally:
        csv.field_size_limit(limit)


def _shape(lines: Any) -> tuple[list[str], int]:
    names: list[str] = []
    rows = begin = 0
    try:
        for fields in lines:
            begin, line = lines.line_num, begin + 1
            if not fields or (fields == [""] and len(names) != 1):
                continue  # an empty line
            if not names:
                names = _names(fields)
            elif len(fields) != len(names):
                raise ValueError(f"fields in line {line}: {len(fields)}, in the first line: {len(names)}; {_ADVICE}")
            else:
                rows += 1
    except csv.Error as error:
        reason = "a quote that does not end" if "unexpected end" in str(error) else str(error)
        raise ValueError(
            f'line {begin + 1} cannot be read: {reason}; write a quote within quotes twice, as in "a ""b"" c"'
        ) from None
    if not names:
        raise ValueError("it is empty")
    return names, rows


_ADVICE = (
    "write a name for each column there (that of row names, too; nothing after a delimiter that ends each line), and "
    'quote texts that hold a delimiter, as in "a, b"'
)


def _names(fields: list[str]) -> list[str]:
    twice = next((name for name, count in Counter(fields).items() if count > 1), None)
    if twice is not None:
        what = f"two columns are called {twice!r}" if twice else "two columns have no name"
        raise ValueError(f"{what}, and it cannot be told which is meant; rename or remove one")
    if len(fields) > MOST_COLUMNS:
        raise ValueError(
            f"it has {len(fields)} columns, and at most {MOST_COLUMNS} are read; give the numbers as one array of an "
            ".npz file, or as one column of lists in Parquet"
        )
    if len(fields) == 1 and any(sign in fields[0] for sign in ";\t|"):
        raise ValueError(
            f"its first line is one name, {fields[0]!r}; columns are parted by commas in .csv and by tabs in .tsv"
        )
    return fields


def _opened(path: Path) -> TextIO:
    """A text file as `csv` wants it; with the ending `.gz` unpacked, as pandas does."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _not_utf8(path: Path) -> int:
    """The first line that is no UTF-8."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        return next(number for number, line in enumerate(file, 1) if not _is_utf8(line))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _column(found: pd.Series[Any], as_text: bool) -> pa.Array:
    if as_text:
        return pa.array(found, pa.large_string(), from_pandas=True)
    if found.dtype.kind in "iufb":
        return pa.array(found, from_pandas=True)
    texts = found.astype(object).where(found.notna(), None)
    plain = texts.map(str, na_action="ignore").str.strip().str.lower()
    values = texts[~(plain.isin(NOTHING) | plain.isna()).to_numpy()]
    if len(values) and len(values) < len(texts):
        numbers = pd.to_numeric(values, errors="coerce")
        if numbers.notna().all():
            return pa.array(numbers.reindex(texts.index), from_pandas=True)
        if plain[values.index].isin(("true", "false")).all():
            return pa.array((plain == "true").where(plain.isin(("true", "false"))), pa.bool_(), from_pandas=True)
    return pa.array(texts.map(str, na_action="ignore"), pa.large_string(), from_pandas=True)
