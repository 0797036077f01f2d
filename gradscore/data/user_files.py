"""The samples a user names: files, folders, patterns, archives and tables, found, and read one by one and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from ..errors import DataError, OutputError
from ..objects import called, fetched
from ..printable import storable
from ..system import closest, is_address, is_whole
from .samples import BadSample, Batch, Sample, collate, form
from .sources import SOURCES, file_kinds, kind_of, open_source
from .sources.columns import is_encoded, is_text, path_below
from .sources.raw_samples import IMAGE_SUFFIXES, UNLABELLED, ImageSource, Raw, UnreadableImageError, decoded
from .sources.tables import DAMAGE, read_text_table, reason_of

_OPTIONS = {"column": "inputs", "root": "root"}
"""What the options are called among the arguments of a source."""


@dataclass(frozen=True)
class UserFile:
    """A file of samples, image files that are samples each, or a data source.

    Attributes:
        name: what messages and names of samples call it.
        kind: the kind of data source; None of image files.
        paths: the image files, or the one file of samples; none of a data source that was named by its kind.
        place: the path of a file of samples below the folder or the fixed part of the pattern that was named.
    """

    name: str
    kind: str | None
    paths: Sequence[Path] = ()
    place: PurePath | None = None

    @property
    def file(self) -> Path | None:
        """The one file that holds the samples; None where there are several files."""
        return None if self.place is None else self.paths[0]


def name_user_files(samples: Sequence[str]) -> list[UserFile]:
    """Finds what a user named.

    A folder is its image files or, where it has none, its files of samples. Image files that follow each other come
    together, so that they share batches.

    Args:
        samples: as `open_user_samples` takes them.

    Raises:
        DataError: something is not there or named twice, or a folder or pattern holds nothing of use.
    """
    named = [file for name in samples for file in _named(name)]
    seen: set[Path] = set()
    for path in (path.absolute() for file in named for path in file.paths):  # links may share a file
        if path in seen:
            raise DataError(f"{path}: named twice, so its samples would count twice; name every file once")
        seen.add(path)
    found: list[UserFile] = []
    for is_images, group in groupby(named, key=lambda file: file.kind is None):
        files = list(group)
        found += [_together(files)] if is_images else files
    return found


def check_options(files: Iterable[UserFile], given: Mapping[str, object]) -> None:
    """Refuses an option that none of the samples has a use for."""
    files = list(files)
    for option, argument in _OPTIONS.items():
        takers = [kind for kind, found in SOURCES.items() if found.is_path and argument in (found.arguments or ())]
        if given[option] is not None and not {file.kind for file in files} & set(takers):
            raise DataError(
                f"--{option} {given[option]} says nothing of {', '.join(file.name for file in files)}: it is for "
                f"sources of the kinds {', '.join(takers)}; leave it out"
            )


def refuse_inputs(target: Path, files: Iterable[UserFile]) -> None:
    """Refuses to write results over samples.

    Args:
        target: the file to be written.
        files: the samples.

    Raises:
        OutputError: it is one of them, or a file in a folder that is.
    """
    if not target.exists():
        return
    for path in (path for file in files for path in _places(file)):
        is_below = path.is_dir() and target.resolve().is_relative_to(path.resolve())
        if is_below or (path.exists() and path.samefile(target)) or called(str(path)) == called(str(target)):
            raise OutputError(
                f"--out {target}: this is one of the inputs, which the results would replace; give another path"
            )


def _places(file: UserFile) -> Sequence[Path]:
    return file.paths or [Path(file.name.partition(":")[2])]


def _named(name: str) -> list[UserFile]:
    if not name:
        raise DataError(
            "'': an empty name among the samples, as a variable of the shell gives that is not set; name a file or a "
            "folder, . for the working directory"
        )
    if is_address(name):
        return _named(str(fetched(name)))
    path = Path(name)
    if path.is_dir():
        inside = [found for found in path.rglob("*") if found.is_file() or found.suffix.lower() in IMAGE_SUFFIXES]
        images = [found for found in inside if found.suffix.lower() in IMAGE_SUFFIXES]
        endings = file_kinds()
        tables = [found for found in inside if found.suffix.lower() in endings]
        return [_one(found, below=path) for found in _some(name, images or tables)]
    if path.exists():
        if not path.is_file():
            raise DataError(
                f"{name}: a pipe or a device, wanted a file or a folder, since samples are read more than once; write "
                "them to a file first"
            )
        return [_one(path, below=path.parent, name=called(name))]
    kind, _, rest = name.partition(":")
    if rest and (source := kind_of(name)) is not None and source.is_path:
        return [UserFile(name, kind)]
    if set(name) & set("*?["):
        matches = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
        fixed = next(parent for parent in path.parents if not set(str(parent)) & set("*?["))
        return [_one(found, below=fixed) for found in _some(name, [found for found in matches if found.is_file()])]
    raise DataError(f"{name}: no such file or folder; check the path, or quote a pattern such as '*.png'")


def _one(path: Path, *, below: Path, name: str | None = None) -> UserFile:
    kind = file_kinds().get(path.suffix.lower())
    place = None if kind is None else path.relative_to(below)
    return UserFile(name or called(str(path)), kind, [path], place)


def _together(images: Sequence[UserFile]) -> UserFile:
    return UserFile(", ".join(file.name for file in images[:3]), None, [path for file in images for path in file.paths])


def _some(name: str, paths: list[Path]) -> list[Path]:
    if not paths:
        raise DataError(
            f"{name}: no image in it, and no file of samples; wanted files that end in "
            f"{', '.join((*IMAGE_SUFFIXES, *file_kinds()))}"
        )
    return sorted(paths)


PARQUET_ROWS = 64
"""Rows of a Parquet file in memory at a time."""

_COLUMN_NAMES = ("image", "img", "bytes", "path", "file", "file_name", "filename")


@dataclass(frozen=True)
class RawSample:
    """A sample by name: pixels (H, W, C) uint8, or what else the samples are; or why it cannot be read.

    Names of files that are no UTF-8 are `storable`: they go into tables and pages.
    """

    id: str
    raw: Raw | None
    error: str = ""

    def __post_init__(self) -> None:
        """Escapes what is no UTF-8."""
        object.__setattr__(self, "id", storable(self.id))
        object.__setattr__(self, "error", storable(self.error))


class UserSamples(Protocol):
    """Samples from one place, in order."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[RawSample]:
        """One after the other; at most a few are in memory."""


def open_user_samples(
    samples: Sequence[str],
    *,
    column: str | None = None,
    root: Path | None = None,
    leave_out: str | None = None,
    columns: Sequence[str] | None = None,
) -> list[UserSamples]:
    """Opens what a user named.

    Paths in a Parquet file are relative to its folder. One that leads out of that folder, through `..`, a link or from
    the root, is an image with an error: whoever wrote the list should not choose which files are read.

    Args:
        samples: image files, folders (searched to the bottom), patterns such as `photos/**/*.png`, `.npz`, `.csv`,
            `.tsv`, `.tar` and Parquet files, or a data source that is a path, `hf:<dir>` for one.
        column: the column of tables, or the array of `.npz` files, with the samples; found by type and name if None.
        root: paths in tables may lead anywhere below this folder; the folder of each file if None.
        leave_out: a column of tables that is no part of the samples, their times for one.
        columns: names of the numbers that the model takes, in its order, which are read of tables unless `column` is
            given; None where they are not known.

    Returns:
        The images, in the order given, those of folders and patterns by name; image files that follow each other come
        together.

    Raises:
        DataError: something is not there, holds no image, or cannot be read at all; `column` or `root` is given and
            none of the samples has a use for it.
    """
    files = name_user_files(samples)
    check_options(files, {"column": column, "root": root})
    return [open_user_file(file, column=column, root=root, leave_out=leave_out, columns=columns) for file in files]


def open_user_file(
    file: UserFile,
    *,
    column: str | None = None,
    root: Path | None = None,
    leave_out: str | None = None,
    columns: Sequence[str] | None = None,
) -> UserSamples:
    """Opens one of several; see `open_user_samples`.

    Raises:
        DataError: it holds no image, or cannot be read at all.
    """
    if file.kind is None:
        return Files(file.paths)
    path = file.file
    arguments = {"inputs": column, "root": None if root is None else str(root), "leave_out": leave_out}
    if path is None:
        return _samples(file.name, file, arguments, columns)
    is_known = columns is not None and column is None
    if file.kind == "parquet" and not is_known and _holds_images(path, column, leave_out):
        return _parquet(path, column, (root or path.parent).resolve(), leave_out)
    return _samples(f"{file.kind}:{path}", file, arguments, columns)


@dataclass(frozen=True)
class Files:
    """Image files."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        """See `UserSamples`."""
        return len(self.paths)

    def __iter__(self) -> Iterator[RawSample]:
        """See `UserSamples`."""
        return (_decoded(called(str(path)), path) for path in self.paths)


@dataclass(frozen=True)
class ParquetImages:
    """A column of encoded images, or of paths relative to the file that lead nowhere but below `root`."""

    path: Path
    column: str
    rows: int
    root: Path

    def __len__(self) -> int:
        """See `UserSamples`."""
        return self.rows

    def __iter__(self) -> Iterator[RawSample]:
        """See `UserSamples`."""
        place = 0
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(PARQUET_ROWS, columns=[self.column]):
                    for value in batch.column(0).to_pylist():
                        yield self._image(place, value)
                        place += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: damaged from row {place} on ({reason_of(error)}); copy it again") from None

    def _image(self, place: int, value: Any) -> RawSample:
        name = f"{called(str(self.path))}[{place}]"
        found = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
        if isinstance(found, bytes):
            return _decoded(name, found)
        if isinstance(found, str):
            return self._file(name, found)
        return RawSample(name, None, f"{name} is null")

    def _file(self, name: str, found: str) -> RawSample:
        try:
            path = path_below(self.root, self.path.parent, found)
        except ValueError as error:
            advice = "; give --root FOLDER to allow it" if "leads out" in str(error) else ""
            return RawSample(name, None, f"{name} {error}{advice}")
        return _decoded(found, path)


@dataclass(frozen=True)
class Samples:
    """The samples of a data source."""

    source: ImageSource
    name: str

    def __len__(self) -> int:
        """See `UserSamples`."""
        return len(self.source.ids)

    def __iter__(self) -> Iterator[RawSample]:
        """See `UserSamples`."""
        for place, sample_id in enumerate(self.source.ids):
            name = f"{self.name}[{sample_id}]"
            try:
                yield RawSample(name, self.source.image(place))
            except UnreadableImageError as error:
                yield RawSample(name, None, str(error))


def _samples(
    source: str, file: UserFile, arguments: Mapping[str, str | None], columns: Sequence[str] | None
) -> Samples:
    taken = SOURCES[file.kind or ""].arguments or ()
    given = {key: each for key, each in arguments.items() if each and key in taken}
    return Samples(open_source(source, given, columns=columns), file.name)


def _parquet(path: Path, column: str | None, root: Path, leave_out: str | None) -> ParquetImages:
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    usable = [field.name for field in schema if _is_usable(field.type) and field.name != leave_out]
    if column is not None and column not in usable:
        raise DataError(f"{path}: no column {column!r} of encoded images or paths; {closest(column, usable)}")
    if column is None:
        binary = [field.name for field in schema if field.name in usable and not is_text(field.type)]
        named = [name for name in _COLUMN_NAMES if name in usable]
        choice = binary if len(binary) == 1 else named or (usable if len(usable) == 1 else [])
        if not choice:
            raise DataError(
                f"{path}: which column holds the images? Give --column, one of {', '.join(usable) or 'none'}"
            )
        column = choice[0]
    return ParquetImages(path, column, rows, root)


def _holds_images(path: Path, column: str | None, leave_out: str | None) -> bool:
    """Whether a Parquet file, or its named column, can only be of images or is called so, or cannot be looked into."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return True
    # By fields, since two columns may have one name.
    if column is not None:
        found = [field for field in schema if field.name == column]
        return not found or any(is_encoded(field.type) for field in found) or column in _COLUMN_NAMES
    fields = [field for field in schema if field.name != leave_out]
    usable = [field for field in fields if _is_usable(field.type)]
    binary = [field for field in usable if not is_text(field.type)]
    return bool(binary) or any(field.name in _COLUMN_NAMES for field in usable) or len(usable) == len(fields)


def _is_usable(kind: Any) -> bool:
    return is_encoded(kind) or is_text(kind)


def _decoded(name: str, source: Path | bytes) -> RawSample:
    try:
        return RawSample(name, decoded(source, name=name))
    except UnreadableImageError as error:
        return RawSample(name, None, str(error))


def prepared_batches(
    samples: Iterable[RawSample], prepare: Callable[[Raw], Tensor | Mapping[str, Tensor]], *, batch_size: int
) -> Iterator[Batch]:
    """Makes model inputs of raw samples as they come, in batches of one shape.

    Args:
        samples: in order.
        prepare: makes the model input of one.
        batch_size: samples in a batch at most, those that cannot be used among them.

    Yields:
        Batches without labels and hashes, which nobody asks of samples that are scored.
    """
    waiting: list[Sample | BadSample] = []
    shape: tuple[object, ...] | None = None
    for raw in samples:
        sample = _prepared(raw, prepare)
        if isinstance(sample, Sample):
            if shape not in (None, form(sample.inputs)):
                yield collate(waiting)
                waiting = []
            shape = form(sample.inputs)
        waiting.append(sample)
        if len(waiting) == batch_size:
            yield collate(waiting)
            waiting, shape = [], None
    if waiting:
        yield collate(waiting)


def _prepared(raw: RawSample, prepare: Callable[[Raw], Tensor | Mapping[str, Tensor]]) -> Sample | BadSample:
    if raw.raw is None:
        return BadSample(raw.id, raw.error)
    try:
        return Sample(raw.id, prepare(raw.raw), UNLABELLED, "")
    except (DataError, RuntimeError, ValueError) as error:
        return BadSample(raw.id, f"{raw.id} cannot be preprocessed: {error}")


_ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


def table_column(samples: Sequence[str], column: str, *, as_text: bool = False) -> list[object]:
    """The values of a column of tables, in the order of `open_user_samples`.

    Args:
        samples: `.csv`, `.tsv` or Parquet files.
        column: its name.
        as_text: whether its whole numbers are wanted as they are written, in tables of text with zeros before them.

    Raises:
        DataError: something else than a table, one that cannot be read, or without this column.
    """
    return [value for name in samples for value in _column(Path(name), column, as_text)]


def _column(path: Path, column: str, as_text: bool) -> list[object]:
    ending = path.suffix.lower()
    if ending not in _ENDINGS or not path.is_file():
        raise DataError(
            f"{path}: wanted a table ({', '.join(_ENDINGS)}) with a column {column!r}; images in folders and archives "
            "have no such column: list their paths in a table"
        )
    try:
        if ending in (".parquet", ".pq"):
            names = pq.read_schema(path).names
        else:
            table = read_text_table(path, texts=(column,) if as_text else ())
            names = table.column_names
        if column not in names:
            raise DataError(f"{path}: no column {column!r}; {closest(column, names)}")
        if ending in (".parquet", ".pq"):
            table = pq.read_table(path, columns=[column])
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a table: {reason_of(error)}; copy it again, or mend it") from None
    values = table.column(column).to_pylist()
    return [str(value) if as_text and is_whole(value) else value for value in values]
