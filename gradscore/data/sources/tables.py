"""Files that hold tables: CSV and TSV, Parquet, and folders that `datasets` wrote."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from ...errors import DataError
from ...system import closest
from .columns import ColumnSource, Table, column_source
from .raw_samples import Request, no_file

DAMAGE = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError, ValueError, KeyError)
"""What reading a damaged table raises."""

MOST_COLUMNS = 32_768
"""A vector of more numbers than this is an array, and reading one column for each of them takes minutes."""

NOTHING = ("", "#n/a", "<na>", "-nan", "n/a", "na", "nan", "none", "null")
"""What stands for no value beside numbers, in any capitals; among names only an empty field does."""

_LONGEST = 2**31 - 1
"""Characters of a field; the reader of Python itself stops at 131,072, which long texts have."""

SPLITS = "dataset_dict.json"
STATE = "state.json"


def csv_source(request: Request) -> ColumnSource:
    """A table as text, with names of columns in its first line; columns are parted by commas, in `.tsv` by tabs."""
    path = existing(request)
    images = request.arguments.get("inputs")
    is_name = isinstance(images, str) and {"folder", "suffix"} & request.arguments.keys()
    try:
        rows = read_text_table(path, texts=[str(images)] if is_name else [])  # 0012 is a name
    except DAMAGE as error:
        raise unreadable(path, error, "a table with the names of its columns in the first line") from None
    return column_source(Table(rows, f"data file {path}", path.parent, {}), request)


def parquet_source(request: Request) -> ColumnSource:
    """A table in a Parquet file; names of classes that `datasets` wrote into it are read."""
    path = existing(request)
    return column_source(read_parquet([path], where=f"data file {path}", folder=path.parent), request)


def read_parquet(paths: list[Path], *, where: str, folder: Path) -> Table:
    """One table of several Parquet files.

    Raises:
        DataError: one cannot be read, or they differ in their columns.
    """
    tables = []
    for path in paths:
        try:
            tables.append(pq.ParquetFile(path).read())
        except DAMAGE as error:
            raise unreadable(path, error, "a Parquet file") from None
    return joined(tables, where=where, folder=folder)


def joined(tables: list[pa.Table], *, where: str, folder: Path) -> Table:
    """Several tables of the same columns as one, with the names of classes that `datasets` noted there."""
    try:
        rows = pa.concat_tables(tables)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{where}: its files differ in their columns: {str(error).splitlines()[0]}") from None
    twice = next((name for name, count in Counter(rows.column_names).items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{where}: two columns are called {twice!r}, and it cannot be told which is meant; rename or remove one"
        )
    return Table(rows, where, folder, _class_names(rows.schema))


def existing(request: Request) -> Path:
    """The file that a source names.

    Raises:
        DataError: there is none.
    """
    path = Path(request.name)
    if not path.is_file():
        raise DataError(f"data file {path} {no_file(path)}")
    return path


def unreadable(path: Path, error: Exception, wanted: str) -> DataError:
    """Says that a file cannot be read, and why."""
    return DataError(f"data file {path} cannot be read: {reason_of(error)}; wanted {wanted}")


def reason_of(error: Exception) -> str:
    """The first line of what an exception says, or its name where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    try:
        noted: Any = json.loads((schema.metadata or {})[b"huggingface"])
        features = noted["info"]["features"]
        return {
            name: [str(each) for each in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def hf_source(request: Request) -> ColumnSource:
    """A data set of `datasets`: a folder of `save_to_disk`, or Parquet files, one or a folder of them.

    The argument `split` names one of several. Of Parquet files it is the beginning of the name, up to `-`.
    """
    root = Path(request.name)
    if not root.exists():
        raise DataError(f"data folder {root} does not exist")
    split = request.arguments.get("split")
    if (root / SPLITS).is_file():
        names = _json(root / SPLITS).get("splits", [])
        return _saved(root / _chosen(split, names, root), request)
    if (root / STATE).is_file():
        return _saved(root, request)
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
    return column_source(read_parquet(files, where=f"data set {root}", folder=folder), request)


def _saved(folder: Path, request: Request) -> ColumnSource:
    state = _json(folder / STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"data set {folder}: it holds a selection of rows beside the rows, as old versions of datasets wrote it; "
            "load it with datasets and save_to_disk it again"
        )
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise unreadable(folder / STATE, error, "what save_to_disk writes") from None
    tables = []
    for name in names:
        if Path(name).name != name:
            raise DataError(f"data set {folder}: {STATE} names {name!r}, which does not lie in that folder")
        try:
            with pa.memory_map(str(folder / name)) as source:
                tables.append(pa.ipc.open_stream(source).read_all())
        except DAMAGE as error:
            raise unreadable(folder / name, error, "an Arrow file of save_to_disk") from None
    return column_source(joined(tables, where=f"data set {folder}", folder=folder), request)


def _chosen(split: Any, names: list[str], root: Path) -> str:
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        raise DataError(
            f"data set {root}: which split? Set arguments: {{split: ...}}; {closest(str(split), names)}"
            if split is not None
            else f"data set {root}: which split? Set arguments: {{split: ...}}, one of {', '.join(names)}"
        )
    return str(split)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error, "what save_to_disk writes") from None
    if not isinstance(found, dict):
        raise DataError(f"data file {path}: wanted what save_to_disk writes")
    return found


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
