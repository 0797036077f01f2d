"""Tables: CSV and TSV, Parquet, and folders that `datasets` wrote."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from ...errors import DataError, reason
from ...system import closest
from .columns import ID_NAMES, ColumnSource, Table, chosen, column_source, found_columns, is_text, named_column, unique
from .raw_samples import LABEL_NAMES, Raw, Request, UnreadableSampleError, file_of

DAMAGE = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError, ValueError, KeyError)
"""Errors that reading a damaged table raises."""

MOST_COLUMNS = 32_768
"""A vector of more numbers than this is an array, and reading one column for each of them takes minutes."""

NOTHING = ("", "#n/a", "<na>", "-nan", "n/a", "na", "nan", "none", "null")
"""Spellings of a missing value beside numbers, in any capitals; among names only an empty field is one."""

IMAGES_AT_A_TIME = 64
"""Rows of a Parquet file of images in memory at a time."""

_LONGEST = 2**31 - 1
"""Characters of a field; the reader of Python itself stops at 131,072, which long texts have."""

SPLITS = "dataset_dict.json"
STATE = "state.json"


def csv_source(request: Request) -> ColumnSource:
    """A table as text, with names of columns in its first line; columns are parted by commas, in `.tsv` by tabs."""
    path = file_of(request)
    label: list[str] = []

    def as_written(names: Sequence[str]) -> list[str]:
        """Names and classes are not read as numbers: 0012 is another one than 12."""
        wanted = request.arguments.get("inputs") or ()
        is_name = isinstance(wanted, str) and bool({"folder", "suffix"} & request.arguments.keys())
        numbers = {*([] if is_name else [wanted] if isinstance(wanted, str) else wanted), *(request.columns or ())}
        found = {chosen(names, request, "ids", ID_NAMES), *([wanted] if is_name else [])} - numbers
        label[:] = {chosen(names, request, "labels", LABEL_NAMES)} - numbers - found - {None}
        return [name for name in names if name in {*found, *label}]

    with _reading(path, "a table with the names of its columns in the first line"):
        rows = read_text_table(path, texts=as_written)
        for name in label:
            if name in rows.column_names:
                place, column = rows.column_names.index(name), _classes(rows.column(name))
                rows = rows.set_column(place, name, column)
    if not rows.num_rows:  # of such columns it is not known what they hold
        raise DataError(f"data file {path} has no rows, only the names of columns")
    return column_source(Table(rows, f"data file {path}", path.parent, {}), request)


def _classes(texts: pa.ChunkedArray) -> pa.Array:
    """Classes as numbers, where all are.

    Raises:
        ValueError: two that are written otherwise become one number.
    """
    found = _column(texts.to_pandas(), as_text=False, is_whole=False)
    if is_text(found.type):
        return found
    known: dict[int, str] = {}
    for written in sorted({text for text in texts.to_pylist() if text is not None and text.isdecimal()}):
        other = known.setdefault(int(written), written)
        if other != written:
            raise ValueError(f"labels {other!r} and {written!r} are one number; write them alike, or as names")
    return found


def table_columns(path: Path) -> pa.Table:
    """The columns of a table (.csv, .tsv, .parquet).

    Raises:
        DataError: it cannot be read.
    """
    with _reading(path, "a table with the names of its columns"):
        return read_text_table(path) if path.suffix.lower() in (".csv", ".tsv") else pq.ParquetFile(path).read()


def parquet_source(request: Request) -> ColumnSource:
    """A table in a Parquet file; names of classes that `datasets` wrote into it are read."""
    path = file_of(request)
    return column_source(_read_parquet([path], where=f"data file {path}", folder=path.parent), request)


def parquet_images(
    request: Request,
) -> tuple[int, Sequence[str] | None, Callable[[], Iterator[tuple[Any, Raw | UnreadableSampleError]]]] | None:
    """The images of a Parquet file one after the other, a few rows of it in memory at a time.

    Returns:
        How many rows there are, their names where a column has some, and what begins to read them: the entry of each
        and its image, or why there is none.
        None where the samples are no images.

    Raises:
        DataError: the file cannot be read, it is not clear which columns the samples are in, or names are missing or
            there twice.
    """
    path = file_of(request)
    with _reading(path, "a Parquet file"), pq.ParquetFile(path) as file:
        first = next(file.iter_batches(IMAGES_AT_A_TIME), pa.RecordBatch.from_pylist([], file.schema_arrow))
        count = file.metadata.num_rows
    head = _joined([pa.Table.from_batches([first])], where=f"data file {path}", folder=path.parent)
    found = found_columns(head, request)
    if found.kind != "image":
        return None

    name = named_column(head, request, "ids", ID_NAMES)
    names = None
    if name is not None and name not in found.columns:
        with _reading(path, "a Parquet file"):
            of_rows = pq.read_table(path, columns=[name])
        names = unique(replace(head, rows=of_rows), name)

    def read() -> Iterator[tuple[Any, Raw | UnreadableSampleError]]:
        row = 0
        try:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(IMAGES_AT_A_TIME, columns=list(found.columns)):
                    for value in batch.column(0).to_pylist():
                        try:
                            yield value, found.sample_of(row, [value])
                        except UnreadableSampleError as error:
                            yield value, error
                        row += 1
        except DAMAGE as error:
            raise DataError(f"{path}: damaged from row {row} on ({reason(error)}); copy it again") from None

    return count, names, read


def _read_parquet(paths: list[Path], *, where: str, folder: Path) -> Table:
    tables = []
    for path in paths:
        with _reading(path, "a Parquet file"):
            tables.append(pq.ParquetFile(path).read())
    return _joined(tables, where=where, folder=folder)


def _joined(tables: list[pa.Table], *, where: str, folder: Path) -> Table:
    """Several tables of the same columns as one, with the names of classes that `datasets` noted there."""
    try:
        rows = pa.concat_tables(tables)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{where}: its files differ in their columns: {reason(error)}") from None
    twice = next((name for name, count in Counter(rows.column_names).items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{where}: two columns are called {twice!r}, and it cannot be told which is meant; rename or remove one"
        )
    class_names = {}
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        for name, feature in json.loads((rows.schema.metadata or {})[b"huggingface"])["info"]["features"].items():
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
                class_names[name] = [str(each) for each in feature["names"]]
    return Table(rows, where, folder, class_names)


@contextmanager
def _reading(path: Path, wanted: str, *more: type[Exception]) -> Iterator[None]:
    """Words what goes wrong while a file is read: one of `DAMAGE`, or of `more`."""
    try:
        yield
    except (*DAMAGE, *more) as error:
        raise DataError(f"data file {path} cannot be read: {reason(error)}; wanted {wanted}") from None


def hf_source(request: Request) -> ColumnSource:
    """A data set of `datasets`: a folder of `save_to_disk`, or Parquet files, one or a folder of them.

    The argument `split` names one of several. Of Parquet files it is the beginning of the name, up to `-`.
    """
    # Arrow maps these files into memory by itself, so that `datasets` with all it needs is not wanted for them.
    root = Path(request.name)
    if not root.exists():
        raise DataError(f"data folder {root} does not exist")
    split = request.arguments.get("split")
    if (root / SPLITS).is_file():
        root /= _chosen(split, _json(root / SPLITS).get("splits", []), root)
    if (root / STATE).is_file():
        return column_source(_saved(root), request)
    files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    if not files:
        raise DataError(
            f"data folder {root}: wanted a folder made by save_to_disk ({STATE} or {SPLITS} in it) or Parquet files"
        )
    names = list(dict.fromkeys(path.stem.partition("-")[0] for path in files))
    if root.is_dir() and (split is not None or len(names) > 1):
        chosen = _chosen(split, names, root)
        files = [path for path in files if path.stem.partition("-")[0] == chosen]
    folder = root if root.is_dir() else root.parent
    return column_source(_read_parquet(files, where=f"data set {root}", folder=folder), request)


def _saved(folder: Path) -> Table:
    state = _json(folder / STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"data set {folder}: it holds a selection of rows beside the rows, as old versions of datasets wrote it; "
            "load it with datasets and save_to_disk it again"
        )
    with _reading(folder / STATE, "what save_to_disk writes", TypeError):
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    tables = []
    for name in names:
        if Path(name).name != name:
            raise DataError(f"data set {folder}: {STATE} names {name!r}, which does not lie in that folder")
        with _reading(folder / name, "an Arrow file of save_to_disk"), pa.memory_map(str(folder / name)) as source:
            tables.append(pa.ipc.open_stream(source).read_all())
    return _joined(tables, where=f"data set {folder}", folder=folder)


def _chosen(split: Any, names: list[str], root: Path) -> str:
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        advice = f", one of {', '.join(names)}" if split is None else f"; {closest(str(split), names)}"
        raise DataError(f"data set {root}: which split? Set arguments: {{split: ...}}{advice}")
    return str(split)


def _json(path: Path) -> dict[str, Any]:
    with _reading(path, "what save_to_disk writes", TypeError, RecursionError):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def read_text_table(path: Path, *, texts: Callable[[Sequence[str]], Collection[str]] = lambda _: ()) -> pa.Table:
    """The columns of a table of text, whose first line has their names; raises one of `DAMAGE`.

    Every line has as many fields as the first one: with one more or less, nobody can tell which column a field is of.
    An empty field is null. A column of numbers, or of `true` and `false`, beside nothing but `NOTHING`, is one of
    numbers (or truth values) and nulls; any other is one of text, as it is written. A column without a name is left
    out if it is the first one (row numbers, as pandas and R write them) or empty (a delimiter at the end of each line).

    Args:
        path: UTF-8; columns are parted by tabs in `.tsv`, by commas in others, and spaces after these do not count.
        texts: of the names of all columns those of text, whatever is in them.

    Raises:
        ValueError: fields that belong to no column or are lacking, quotes that do not end, two columns of one name,
            more than `MOST_COLUMNS`; the message says in which line, and what to do.
    """
    names, rows = _names_and_rows(path)
    places = [str(place) for place in range(len(names))]
    written = texts(names)
    as_text = {place: str for place, name in zip(places, names, strict=True) if name in written}
    frame = pd.read_csv(
        path,
        sep=_delimiter(path),
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


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:]) else ","


def _names_and_rows(path: Path) -> tuple[list[str], int]:
    """The names of the columns, and how many rows there are; the reader of pandas shifts and drops fields silently."""
    limit = csv.field_size_limit(_LONGEST)
    is_packed = path.suffix.lower() == ".gz"  # as pandas goes by it
    try:
        with (gzip.open if is_packed else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            return _shape(csv.reader(file, delimiter=_delimiter(path), skipinitialspace=True, strict=True))
    except UnicodeDecodeError:
        with (gzip.open if is_packed else open)(path, "rb") as file:
            line = next(number for number, line in enumerate(file, 1) if line.decode(errors="replace").encode() != line)
        raise ValueError(f"line {line} is no UTF-8; save the table as UTF-8") from None
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
                names = fields
                _check_names(names)
            elif len(fields) != len(names):
                raise ValueError(
                    f"fields in line {line}: {len(fields)}, in the first line: {len(names)}; write a name for each "
                    "column there (that of row names, too; nothing after a delimiter that ends each line), and quote "
                    'texts that hold a delimiter, as in "a, b"'
                )
            else:
                rows += 1
    except csv.Error as error:
        why = "a quote that does not end" if "unexpected end" in str(error) else str(error)
        raise ValueError(
            f'line {begin + 1} cannot be read: {why}; write a quote within quotes twice, as in "a ""b"" c"'
        ) from None
    if not names:
        raise ValueError("it is empty")
    return names, rows


def _check_names(names: list[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        what = f"two columns are called {twice!r}" if twice else "two columns have no name"
        raise ValueError(f"{what}, and it cannot be told which is meant; rename or remove one")
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"it has {len(names)} columns, and at most {MOST_COLUMNS} are read; give the numbers as one array of an "
            ".npz file, or as one column of lists in Parquet"
        )
    if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
        raise ValueError(
            f"its first line is one name, {names[0]!r}; columns are parted by commas in .csv and by tabs in .tsv"
        )


def _column(found: pd.Series[Any], as_text: bool, *, is_whole: bool = True) -> pa.Array:
    """A column as pandas read it; `is_whole` where that saw all of it, so that what is no number has none beside it."""
    if as_text:
        return pa.array(found, pa.large_string(), from_pandas=True)
    if found.dtype.kind in "iufb":
        return pa.array(found, from_pandas=True)
    texts = found.astype(object).where(found.notna(), None)
    plain = texts.map(str, na_action="ignore").str.strip().str.lower()
    values = texts[~(plain.isin(NOTHING) | plain.isna()).to_numpy()]
    if len(values) and not (is_whole and len(values) == len(texts)):
        numbers = pd.to_numeric(values, errors="coerce")
        if numbers.notna().all():
            return pa.array(numbers.reindex(texts.index), from_pandas=True)
        if plain[values.index].isin(("true", "false")).all():
            return pa.array((plain == "true").where(plain.isin(("true", "false"))), pa.bool_(), from_pandas=True)
    return pa.array(texts.map(str, na_action="ignore"), pa.large_string(), from_pandas=True)
