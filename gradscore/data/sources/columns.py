"""Samples in the columns of a table: images by path or encoded, text, or numbers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from ...errors import DataError
from ...system import IntArray, closest, reads_as_number, some
from .raw_samples import LABEL_NAMES, Raw, Request, UnreadableSampleError, Values, as_labels, content_of_files, decoded

ARGUMENTS = ("inputs", "labels", "ids", "folder", "suffix", "root")
IMAGE_NAMES = ("image", "img", "bytes", "path", "file", "file_name", "filename", "filepath")
ID_NAMES = ("id", "sample_id")

_BY_ROW = "name them by row: arguments: {ids: null} in a configuration, --ids '' for gradscore score and monitor"

_SHOWN = 12
"""Names of columns in a message."""

FILL = "fill them as in training (a function of your own: python:FILE:NAME)"
"""What to do about missing values."""


@dataclass(frozen=True)
class Table:
    """A table of samples.

    Attributes:
        rows: its columns.
        where: names it in messages.
        folder: paths in it are relative to this.
        class_names: of the whole numbers in a column, by the name of the column, where the file says them.
    """

    rows: pa.Table
    where: str
    folder: Path
    class_names: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ColumnSource:
    """The samples of a table.

    Attributes:
        table: where they are.
        columns: what a sample is made of: one column of images or text, columns of one number each, which make a
            vector, or columns of arrays, which are keyword arguments of the model if they are several.
        kind: `image`, `text`, `vector` or `arrays`.
        root: paths to images lead nowhere but below it.
        folder: paths to images are relative to it.
        suffix: what names of images lack.
        beside: columns of numbers that are no part of the samples, nor their classes or names.
        ids: N names.
        labels: (N,) or None.
        class_names: of the labels, or None.
        vectors: (N, C) float32 of a vector's C columns, NaN for missing values; None for other kinds.
    """

    table: Table
    columns: Sequence[str]
    kind: str
    root: Path
    folder: Path
    suffix: str
    beside: Sequence[str]
    ids: Sequence[str] = ()
    labels: IntArray | None = None
    class_names: Sequence[str] | None = None
    vectors: Values | None = None

    @property
    def input_columns(self) -> Sequence[str] | None:
        """See `input_columns_of`."""
        return self.columns if self.kind in ("vector", "text") else None

    @property
    def names_files(self) -> bool:
        """Whether the samples are image files that a column of text names."""
        return self.kind == "image" and not _is_encoded(self.table.rows.schema.field(self.columns[0]).type)

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        if self.vectors is not None:
            vector: Values = self.vectors[index].copy()
            if not np.isfinite(vector).all():
                lost = [self.columns[place] for place in np.flatnonzero(~np.isfinite(vector)).tolist()]
                values = {column: self.table.rows.column(column)[index].as_py() for column in lost}
                empty = [column for column, value in values.items() if value is None or np.isnan(value)]
                if empty:
                    raise self._empty(index, empty)
                column, value = next(iter(values.items()))
                raise UnreadableSampleError(
                    f"row {index} of {self.table.where} has {value!r} in column {column!r}, wanted a finite number, "
                    "as float32 holds it"
                )
            return vector
        return self.sample_of(index, [self.table.rows.column(name)[index].as_py() for name in self.columns])

    def sample_of(self, index: int, values: Sequence[Any]) -> Raw:
        """The sample that the values of a row make.

        Args:
            index: of the row, for messages.
            values: of `columns`.

        Raises:
            UnreadableSampleError: they make none.
        """
        where = f"row {index} of {self.table.where}"
        if None in values:
            raise self._empty(index, [name for name, value in zip(self.columns, values, strict=True) if value is None])
        if self.kind == "text":
            if not str(values[0]).strip():
                raise self._empty(index, self.columns)
            return str(values[0])
        if self.kind == "image":
            found = pixels_of(values[0])
            if found in (None, "", b""):
                raise self._empty(index, self.columns)
            if isinstance(found, bytes):
                return decoded(found, name=where)
            return decoded(self._file(str(found), where), name=f"{where}, {found},")
        arrays = {}
        for name, value in zip(self.columns, values, strict=True):
            try:
                arrays[name] = np.array(value)
            except ValueError:
                arrays[name] = np.array(None)
            if arrays[name].dtype.kind not in "fiub":
                raise UnreadableSampleError(
                    f"{where}, {name}: wanted numbers in one block, got rows of several lengths or no numbers"
                )
        return arrays if len(arrays) > 1 else arrays[self.columns[0]]

    def content(self) -> str:
        """See `SampleSource`: a hash of the columns, and of the files that they name."""
        sink = pa.BufferOutputStream()
        rows = self.table.rows.select(list(self.columns)).combine_chunks().replace_schema_metadata(None)
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        digest = hashlib.sha256(sink.getvalue())
        files: list[Path | None] = []
        for name in rows.column(0).to_pylist() if self.names_files else []:
            try:
                files.append(self._file("" if name is None else str(name), ""))
            except UnreadableSampleError:
                files.append(None)
        digest.update(content_of_files(files).encode())
        return digest.hexdigest()

    def _empty(self, index: int, columns: Sequence[str]) -> UnreadableSampleError:
        missing = "missing values in columns" if len(columns) > 1 else "a missing value in column"
        named = some([repr(column) for column in columns], _SHOWN)
        return UnreadableSampleError(f"row {index} of {self.table.where} has {missing} {named}", empty=columns)

    def _file(self, name: str, where: str) -> Path:
        """The file that a row names: below the root, since whoever wrote the table is not to choose what is read."""
        written = f"{name}{self.suffix}"
        try:
            path = (self.folder / written).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise UnreadableSampleError(f"{where} is no path: {written!r}: {error}") from None
        if not path.is_relative_to(self.root):
            raise UnreadableSampleError(
                f"{where} is refused: {written!r} leads out of {self.root}; give --root FOLDER, or in a configuration "
                "arguments: {root: FOLDER}, to allow it"
            )
        return path


def empty_rows(rows: Sequence[Sequence[str]], count: int) -> str:
    """How many of `count` rows have missing values, and in which columns, by the columns of each of them."""
    columns = Counter(name for row in rows for name in row)
    named = some([f"{name} ({times})" for name, times in columns.most_common()], _SHOWN)
    return f"{len(rows)} of {count} rows {'has' if len(rows) == 1 else 'have'} missing values in {named}"


def pixels_of(value: Any) -> Any:
    """The encoded image, or the path of one, in an entry of a table."""
    return value.get("bytes") or value.get("path") if isinstance(value, dict) else value


def column_source(table: Table, request: Request) -> ColumnSource:
    """The samples of a table, by the columns that the arguments name or that can be told by name and type.

    Raises:
        DataError: a column that is not there, or it is not clear which columns the samples are in.
    """
    rows, found = table.rows, found_columns(table, request)
    label, name = named_column(table, request, "labels", LABEL_NAMES), named_column(table, request, "ids", ID_NAMES)
    labels = class_names = None
    if label is not None:
        where = f"{table.where}: column {label!r}"
        labels, class_names = as_labels(rows.column(label).to_pylist(), where=where, names=table.class_names.get(label))
    vectors = None
    if found.kind == "vector":  # as one array, since reading them row by row would take long
        vectors = np.empty((rows.num_rows, len(found.columns)), dtype=np.float32)
        with np.errstate(over="ignore"):  # rows with such numbers are refused one by one
            for place, column in enumerate(found.columns):
                vectors[:, place] = rows.column(column).cast(pa.float64(), safe=False).to_numpy()
    return replace(
        found,
        ids=[str(place) for place in range(rows.num_rows)] if name is None else unique(table, name),
        labels=labels,
        class_names=class_names,
        vectors=vectors,
    )


def found_columns(table: Table, request: Request) -> ColumnSource:
    """Where the samples of a table are, without their names and labels: a look at a few rows is enough.

    Raises:
        DataError: as `column_source`.
    """
    schema, arguments = table.rows.schema, request.arguments
    fields = [field for field in schema if not is_row_index(field.name)]
    name = named_column(table, request, "ids", ID_NAMES)
    others = {named_column(table, request, "labels", LABEL_NAMES), name}
    folder, suffix, root = arguments.get("folder"), arguments.get("suffix"), arguments.get("root")
    for argument, text in (("folder", folder), ("suffix", suffix)):
        if not isinstance(text, str | None):
            raise DataError(f"{table.where}: arguments.{argument}: wanted text, got {text!r}")
    wanted = arguments.get("inputs")
    if wanted is not None:
        columns = [wanted] if isinstance(wanted, str) else list(wanted)
        unknown = [column for column in columns or [""] if column not in schema.names]
        if unknown:
            raise DataError(
                f"{table.where}: no column {unknown[0]!r} (arguments.inputs); {closest(str(unknown[0]), schema.names)}"
            )
        kind = _kind(table, columns, names_files=bool(folder or suffix))
    elif request.columns is not None and not _is_one_of_text(schema, request.columns, others):
        check_columns(schema.names, request.columns, where=table.where)
        columns, kind = list(request.columns), "vector"
        other = next((column for column in columns if not is_number(schema.field(column).type)), None)
        if other is not None:
            raise DataError(
                f"{table.where}: column {other!r} holds {_no_number(table.rows.column(other))}, wanted numbers, as in "
                "the samples to fit on; correct or remove the values that are no numbers"
            )
    elif request.columns is not None and request.columns[0] in schema.names:
        columns, kind = list(request.columns), "text"
    else:
        kind, columns = _guessed(table, [field for field in fields if field.name not in others], ids=name)
    used = {*columns, *others}
    return ColumnSource(
        table=table,
        columns=columns,
        kind=kind,
        root=(table.folder if root is None else Path(root)).resolve(),
        folder=table.folder / (folder or ""),
        suffix=suffix or "",
        beside=[field.name for field in fields if field.name not in used and is_number(field.type)],
    )


def _is_one_of_text(schema: pa.Schema, known: Sequence[str], others: Collection[str | None]) -> bool:
    """Whether the one column that is known holds text here, or is not here and another one may be in its place."""
    if len(known) != 1:
        return False
    there = [known[0]] if known[0] in schema.names else [name for name in schema.names if name not in others]
    return bool(there) and all(is_text(schema.field(name).type) for name in there)


def refuse_text(source: ColumnSource) -> None:
    """Refuses a column of text beside columns of numbers, where the model takes no text: classes, if none are known.

    Raises:
        DataError: that is how the samples of a table were found.
    """
    if source.kind != "text" or not source.beside:
        return
    text, numbers = source.columns[0], some(source.beside, _SHOWN)
    first = _no_number(source.table.rows.column(text))
    if source.labels is not None:
        raise DataError(
            f"{source.table.where}: column {text!r} holds text, which is no number ({first}), and this model has no "
            f"tokenizer: correct it, leave the column out by inputs: [{numbers}] in arguments, or encode it as in "
            "training, in a function of your own (source: python:FILE:NAME)"
        )
    raise DataError(
        f"{source.table.where}: text in column {text!r} ({first}) beside numbers in {numbers}, and this model has no "
        f"tokenizer to take text: if {text!r} holds the classes, set arguments: {{labels: {text}}}; or name the "
        "columns of the samples in arguments: {inputs: [...]}"
    )


def check_columns(there: Sequence[str], wanted: Sequence[str], *, where: str) -> None:
    """Makes sure that a table has the columns that a model knows, in any order and beside others.

    Args:
        there: names of its columns.
        wanted: those of the samples to fit on.
        where: names the table.

    Raises:
        DataError: one is lacking.
    """
    known = set(there)
    lacking = next((name for name in wanted if name not in known), None)
    if lacking is None:
        return
    advice = (
        "its first line holds numbers; put the names of the columns there"
        if all(map(reads_as_number, there))
        else "rename the columns as they are where samples were fitted on, or, in a configuration, name those of this "
        "table in that order in arguments: {inputs: [...]}"
        + ("; gradscore score takes another one by --column" if len(wanted) == 1 else "")
    )
    raise DataError(
        f"{where}: wanted columns {some(wanted, _SHOWN)}, got {some(there, _SHOWN)}: no column {lacking!r}; {advice}"
    )


def named_column(table: Table, request: Request, argument: str, usual: Sequence[str]) -> str | None:
    """The column that an argument names, or one of a usual name."""
    there = table.rows.column_names
    wanted = chosen(there, request, argument, usual)
    if wanted is not None and wanted not in there:
        raise DataError(f"{table.where}: no column {wanted!r} (arguments.{argument}); {closest(str(wanted), there)}")
    return None if wanted is None else str(wanted)


def chosen(there: Sequence[str], request: Request, argument: str, usual: Sequence[str]) -> Any:
    """What an argument names, or the first usual name of a column that is there; None for no column."""
    first = next((name for name in usual if name in there), None)
    return request.arguments.get(argument, first)


def unique(table: Table, name: str) -> list[str]:
    """The values of the column that names the samples; `DataError` where one is missing or there twice."""
    values = table.rows.column(name).to_pylist()
    if None in values:
        raise DataError(
            f"{table.where}: row {values.index(None)} has a missing value in column {name!r}, which names the samples; "
            f"fill it, or {_BY_ROW}"
        )
    found = [str(value) for value in values]
    twice = next((value for value, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{table.where}: column {name!r} has {twice!r} twice, so it does not name samples; {_BY_ROW}")
    return found


def _kind(table: Table, columns: Sequence[str], *, names_files: bool) -> str:
    """What named columns hold; one of text is an image where it is called so, or where its first entry is a file."""
    types = [table.rows.schema.field(name).type for name in columns]
    alone = types[0] if len(types) == 1 else pa.null()
    if _is_encoded(alone) or (names_files and (is_text(alone) or pa.types.is_integer(alone))):
        return "image"
    if is_text(alone):
        return "image" if columns[0] in IMAGE_NAMES or _names_a_file(table, columns[0]) else "text"
    if all(map(is_number, types)):
        return "vector"
    if all(map(_is_array, types)):
        return "arrays"
    raise DataError(
        f"{table.where}: arguments.inputs wants one column of images or text, columns of one number each, or columns "
        f"of arrays; got {', '.join(f'{name} ({kind})' for name, kind in zip(columns, types, strict=True))}"
    )


def _names_a_file(table: Table, column: str) -> bool:
    first = next((value for value in table.rows.column(column).to_pylist() if value), "")
    try:
        return (table.folder / first).is_file()
    except (OSError, ValueError):
        return False


def _guessed(table: Table, free: Sequence[pa.Field], *, ids: str | None) -> tuple[str, list[str]]:
    """What the samples are, and the columns they are in: paths that name the samples only where there is no other."""
    encoded = [field.name for field in free if _is_encoded(field.type)]
    texts = [field.name for field in free if is_text(field.type)]
    paths = [name for name in IMAGE_NAMES if name in texts]
    texts = [name for name in texts if name not in paths]
    arrays = [field.name for field in free if _is_array(field.type)]
    numbers = [field.name for field in free if is_number(field.type)]
    for kind, found in (("image", encoded or paths[:1]), ("arrays", arrays), ("text", texts), ("vector", numbers)):
        if found and (kind in ("arrays", "vector") or len(found) == 1):
            return kind, found
        if found:
            break
    schema = table.rows.schema
    if ids in IMAGE_NAMES and not (encoded or arrays or texts or numbers) and is_text(schema.field(ids).type):
        return "image", [ids]
    if not schema.names:
        raise DataError(f"{table.where}: it has no columns; give a table with samples in it")
    raise DataError(
        f"{table.where}: which columns hold the samples? Name the one of text or images, or those of numbers, in "
        "arguments: {inputs: ...} (for gradscore score one of them by --column); there are "
        f"{', '.join(f'{field.name} ({field.type})' for field in schema)}. "
        "Where several kinds make a sample, a function of yours makes numbers of a row: python:data.py:rows (gradscore "
        "docs tutorial-tables)"
    )


def is_text(kind: Any) -> bool:
    """Whether a column of this Arrow type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_row_index(name: str) -> bool:
    """Whether pandas wrote this column into a Parquet file as an index without a name: it names rows, at most."""
    return name.startswith("__index_level_")


def _no_number(values: pa.ChunkedArray) -> str:
    """What a column holds that is no number: the first such text and its row, else the type of all."""
    if not is_text(values.type):
        return str(values.type)
    for row, text in enumerate(values.to_pylist()):
        try:
            float(text or 0)
        except ValueError:
            return f"{text!r} in row {row}"
    return "numbers as text"


def is_number(kind: Any) -> bool:
    """Whether a column of this Arrow type holds numbers or truth values."""
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_encoded(kind: Any) -> bool:
    """Whether a column of this Arrow type can hold encoded images: bytes, or bytes and a path beside each other."""
    if pa.types.is_struct(kind):
        return any(field.name in ("bytes", "path") for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_array(kind: Any) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(storage) for check in lists) and (is_number(storage.value_type) or _is_array(storage.value_type))
