"""Samples in the columns of a table: images by path or encoded, text, or numbers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from ...errors import DataError
from ...system import IntArray, closest
from .raw_samples import ImageSource, Pixels, Raw, Request, UnreadableImageError, Values, as_labels, decoded

ARGUMENTS = ("inputs", "labels", "ids", "folder", "suffix", "root", "leave_out")
IMAGE_NAMES = ("image", "img", "bytes", "path", "file", "file_name", "filename", "filepath")
LABEL_NAMES = ("label", "labels", "class", "target", "y")
ID_NAMES = ("id", "sample_id")

_SHOWN = 12
"""Names of columns in a message."""


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


@dataclass(frozen=True)
class ColumnSource:
    """The samples of a table.

    Attributes:
        table: where they are.
        columns: what a sample is made of: one column of images or text, columns of one number each, which make a
            vector, or columns of arrays, which are keyword arguments of the model if they are several.
        kind: `image`, `text`, `vector` or `arrays`.
        ids: N names.
        labels: (N,) or None.
        class_names: of the labels, or None.
        root: paths to images lead nowhere but below it.
        folder: paths to images are relative to it.
        suffix: what names of images lack.
        beside: columns of numbers that are no part of the samples, nor their classes or names.
        vectors: (N, C) float32 of a vector's C columns, NaN for nothing; None for other kinds.
    """

    table: Table
    columns: Sequence[str]
    kind: str
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None
    root: Path
    folder: Path
    suffix: str = ""
    beside: Sequence[str] = ()
    vectors: Values | None = None

    @property
    def input_columns(self) -> Sequence[str] | None:
        """See `input_columns_of`."""
        return self.columns if self.kind == "vector" else None

    @property
    def names_files(self) -> bool:
        """Whether the samples are image files that a column of text names."""
        return self.kind == "image" and not is_encoded(self.table.rows.schema.field(self.columns[0]).type)

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        where = f"row {index} of {self.table.where}"
        if self.vectors is not None:
            return self._vector(self.vectors, index, where)
        found = [self.table.rows.column(name)[index].as_py() for name in self.columns]
        empty = [name for name, value in zip(self.columns, found, strict=True) if value is None]
        if empty:
            raise UnreadableImageError(f"{where} has nothing in column {empty[0]!r}")
        if self.kind == "image":
            return self._image(found[0], where)
        if self.kind == "text":
            return str(found[0])
        arrays = {
            name: _array(value, where=f"{where}, {name}") for name, value in zip(self.columns, found, strict=True)
        }
        return arrays if len(arrays) > 1 else arrays[self.columns[0]]

    def content(self) -> str:
        """See `ImageSource`: a hash of the columns, and of the sizes of files that they name."""
        sink = pa.BufferOutputStream()
        rows = self.table.rows.select(list(self.columns)).combine_chunks().replace_schema_metadata(None)
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        digest = hashlib.sha256(sink.getvalue())
        digest.update(" ".join(map(str, self._sizes())).encode())
        return digest.hexdigest()

    def _image(self, value: Any, where: str) -> Pixels:
        found = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
        if isinstance(found, bytes):
            return decoded(found, name=where)
        if found is None or found in ("", b""):
            raise UnreadableImageError(f"{where} has neither bytes nor a path in column {self.columns[0]!r}")
        return decoded(self._file(str(found), where), name=f"{where}, {found},")

    def _file(self, name: str, where: str) -> Path:
        try:
            return path_below(self.root, self.folder, f"{name}{self.suffix}")
        except ValueError as error:
            advice = "; set arguments: {root: FOLDER} to allow it" if "leads out" in str(error) else ""
            raise UnreadableImageError(f"{where} {error}{advice}") from None

    def _vector(self, vectors: Values, index: int, where: str) -> Values:
        vector: Values = vectors[index].copy()
        if np.isnan(vector).any():
            empty = self.columns[int(np.flatnonzero(np.isnan(vector))[0])]
            raise UnreadableImageError(f"{where} has nothing in column {empty!r}")
        return vector

    def _sizes(self) -> list[int]:
        """The sizes of the files that a column of paths names, -1 where there is none."""
        if not self.names_files:
            return []
        sizes = []
        for index, name in enumerate(self.table.rows.column(self.columns[0]).to_pylist()):
            try:
                sizes.append(self._file("" if name is None else str(name), f"row {index}").stat().st_size)
            except (UnreadableImageError, OSError):
                sizes.append(-1)
        return sizes


def path_below(root: Path, folder: Path, name: str) -> Path:
    """The file that a list in a folder names, if it lies below a root.

    Whoever wrote the list should not choose which files are read.

    Args:
        root: no path leads out of it, be it through `..`, a link or from the root of the file system; resolved.
        folder: of the list; paths are relative to it.
        name: a path in the list.

    Raises:
        ValueError: it leads out, or is no path; the message begins after the name of the entry.
    """
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"is no path: {name!r}: {error}") from None
    if not path.is_relative_to(root):
        raise ValueError(f"is refused: {name!r} leads out of {root}")
    return path


def column_source(table: Table, request: Request) -> ColumnSource:
    """The samples of a table, by the columns that the arguments name or that can be told by name and type.

    Raises:
        DataError: a column that is not there, or it is not clear which columns the samples are in.
    """
    rows, arguments = table.rows, request.arguments
    label = _named(table, arguments, "labels", LABEL_NAMES)
    name = _named(table, arguments, "ids", ID_NAMES)
    others = {label, name, _named(table, {"leave_out": None, **arguments}, "leave_out", ())}
    folder, suffix = (_text(table, arguments, argument) for argument in ("folder", "suffix"))
    if request.columns is not None and arguments.get("inputs") is None:
        kind, columns = "vector", _known(table, request.columns)
    else:
        kind, columns = _inputs(table, arguments.get("inputs"), others, ids=name, names_files=bool(folder or suffix))
    labels = None
    if label is not None:
        where = f"{table.where}: column {label!r}"
        labels = as_labels(rows.column(label).to_pylist(), where=where, names=table.class_names.get(label))
    root = arguments.get("root")
    places = range(rows.num_rows)
    taken = {*columns, *others}
    return ColumnSource(
        table=table,
        columns=columns,
        kind=kind,
        ids=[str(place) for place in places] if name is None else _unique(table, name),
        labels=None if labels is None else labels.numbers,
        class_names=None if labels is None else labels.names,
        root=(table.folder if root is None else Path(root)).resolve(),
        folder=table.folder / folder,
        suffix=suffix,
        beside=[field.name for field in rows.schema if field.name not in taken and _is_number(field.type)],
        vectors=_matrix(rows, columns) if kind == "vector" else None,
    )


def refuse_text(source: ImageSource) -> None:
    """Refuses a column of text beside columns of numbers, where the model takes no text: classes, most likely.

    Raises:
        DataError: that is how the samples of a table were found.
    """
    if isinstance(source, ColumnSource) and source.kind == "text" and source.beside:
        text = source.columns[0]
        raise DataError(
            f"{source.table.where}: text in column {text!r} beside numbers in {_listed(source.beside)}, and this model "
            f"has no tokenizer to take text: if {text!r} holds the classes, set arguments: {{labels: {text}}}; or name "
            "the columns of the samples in arguments: {inputs: [...]}"
        )


def _text(table: Table, arguments: Mapping[str, Any], argument: str) -> str:
    found = arguments.get(argument)
    if not isinstance(found, str | None):
        raise DataError(f"{table.where}: arguments.{argument}: wanted text, got {found!r}")
    return found or ""


def _named(table: Table, arguments: Mapping[str, Any], argument: str, usual: Sequence[str]) -> str | None:
    there = table.rows.column_names
    if argument not in arguments:
        return next((name for name in usual if name in there), None)
    wanted: Any = arguments[argument]
    if wanted is not None and wanted not in there:
        raise DataError(f"{table.where}: no column {wanted!r} (arguments.{argument}); {closest(str(wanted), there)}")
    return None if wanted is None else str(wanted)


def _unique(table: Table, name: str) -> list[str]:
    values = table.rows.column(name).to_pylist()
    if None in values:
        raise DataError(
            f"{table.where}: row {values.index(None)} has nothing in column {name!r}, which names the samples; fill "
            "it, or set arguments: {ids: null} to name them by row"
        )
    found = [str(value) for value in values]
    twice = next((value for value, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{table.where}: column {name!r} has {twice!r} twice, so it does not name samples; set arguments: "
            "{ids: null} to name them by row"
        )
    return found


def _inputs(
    table: Table, wanted: Any, others: set[str | None], *, ids: str | None, names_files: bool
) -> tuple[str, list[str]]:
    """What the samples are, and the columns they are in: paths that name the samples only where there is no other."""
    schema = table.rows.schema
    if wanted is not None:
        columns = [wanted] if isinstance(wanted, str) else list(wanted)
        unknown = [name for name in columns if name not in schema.names]
        if unknown or not columns:
            shown = unknown[0] if unknown else ""
            raise DataError(
                f"{table.where}: no column {shown!r} (arguments.inputs); {closest(str(shown), schema.names)}"
            )
        return _kind(table, columns, names_files=names_files), columns
    free = [name for name in schema.names if name not in others]
    encoded = [name for name in free if is_encoded(schema.field(name).type)]
    paths = [name for name in IMAGE_NAMES if name in free and is_text(schema.field(name).type)]
    texts = [name for name in free if is_text(schema.field(name).type) and name not in paths]
    arrays = [name for name in free if _is_array(schema.field(name).type)]
    numbers = [name for name in free if _is_number(schema.field(name).type)]
    for kind, found in (("image", encoded or paths[:1]), ("arrays", arrays), ("text", texts), ("vector", numbers)):
        if found and (kind in ("arrays", "vector") or len(found) == 1):
            return kind, found
        if found:
            break
    if ids in IMAGE_NAMES and not (encoded or arrays or texts or numbers) and is_text(schema.field(ids).type):
        return "image", [ids]
    raise DataError(
        f"{table.where}: which columns hold the samples? Name them in arguments: {{inputs: ...}}; there are "
        f"{', '.join(f'{field.name} ({field.type})' for field in schema)}"
    )


def _known(table: Table, wanted: Sequence[str]) -> list[str]:
    """The columns that the model knows, in its order; others are no part of the samples."""
    schema = table.rows.schema
    check_names(schema.names, wanted, where=table.where)
    other = next((name for name in wanted if not _is_number(schema.field(name).type)), None)
    if other is not None:
        raise DataError(
            f"{table.where}: column {other!r} holds {schema.field(other).type}, wanted numbers, as in the samples to "
            "fit on; mend or leave out what is none"
        )
    return list(wanted)


def check_names(there: Sequence[str], wanted: Sequence[str], *, where: str) -> None:
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
        if all(map(_reads_as_number, there))
        else "rename the columns as they are where samples were fitted on, or, in a configuration, name those of this "
        "table in that order in arguments: {inputs: [...]}"
    )
    raise DataError(f"{where}: wanted columns {_listed(wanted)}, got {_listed(there)}: no column {lacking!r}; {advice}")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_SHOWN])} and {more} more"


def _reads_as_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _kind(table: Table, columns: Sequence[str], *, names_files: bool) -> str:
    """What named columns hold; one of text is an image where it is called so, or where its first entry is a file."""
    types = [table.rows.schema.field(name).type for name in columns]
    if names_files and len(columns) == 1 and (is_text(types[0]) or pa.types.is_integer(types[0])):
        return "image"
    if all(map(_is_number, types)):
        return "vector"
    if all(map(_is_array, types)):
        return "arrays"
    if len(columns) == 1 and is_encoded(types[0]):
        return "image"
    if len(columns) == 1 and is_text(types[0]):
        return "image" if columns[0] in IMAGE_NAMES or _names_files(table, columns[0]) else "text"
    raise DataError(
        f"{table.where}: arguments.inputs wants one column of images or text, columns of one number each, or columns "
        f"of arrays; got {', '.join(f'{name} ({kind})' for name, kind in zip(columns, types, strict=True))}"
    )


def _names_files(table: Table, column: str) -> bool:
    first = next((value for value in table.rows.column(column).to_pylist() if value), "")
    try:
        return (table.folder / first).is_file()
    except (OSError, ValueError):
        return False


def _matrix(rows: pa.Table, columns: Sequence[str]) -> Values:
    """(N, C) float32 of C columns of numbers, NaN for nothing: read row by row, tables of thousands would take long."""
    found = np.empty((rows.num_rows, len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        found[:, place] = rows.column(name).cast(pa.float64(), safe=False).to_numpy()
    return found


def _array(value: Any, *, where: str) -> Values:
    try:
        found = np.array(value)
    except ValueError:
        found = np.array(None)
    if found.dtype.kind not in "fiub":
        raise UnreadableImageError(f"{where}: wanted numbers in one block, got rows of several lengths or no numbers")
    return found


def is_text(kind: Any) -> bool:
    """Whether a column of this Arrow type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def is_encoded(kind: Any) -> bool:
    """Whether a column of this Arrow type can hold encoded images: bytes, or bytes and a path beside each other."""
    if pa.types.is_struct(kind):
        return any(field.name in ("bytes", "path") for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_array(kind: Any) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(check(storage) for check in lists):
        return False
    return _is_number(storage.value_type) or _is_array(storage.value_type)
