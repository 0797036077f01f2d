"""The samples a user names: files, folders, patterns, archives and tables, found, and read one by one and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DataError, OutputError
from ..notices import called, storable
from ..object_storage import fetched
from ..system import is_address
from .samples import BadSample, Batch, Sample, collate, form
from .sources import SOURCES, file_kinds, kind_of, open_source
from .sources.columns import pixels_of
from .sources.files import is_hidden
from .sources.raw_samples import IMAGE_SUFFIXES, UNLABELLED, Raw, Request, UnreadableSampleError, decoded
from .sources.tables import parquet_images

_OPTIONS = {"column": "inputs", "ids": "ids", "root": "root"}
"""Names of the options among the arguments of a source."""


@dataclass(frozen=True)
class UserFile:
    """A file of samples, image files that are samples each, or a data source.

    Attributes:
        name: what messages and names of samples call it.
        kind: the kind of data source; None of image files.
        paths: the image files, or the one file of samples; none of a data source that was named by its kind.
    """

    name: str
    kind: str | None
    paths: Sequence[Path] = ()

    @property
    def places(self) -> Sequence[Path]:
        """Paths of the files; of a data source that was named by its kind, what it names."""
        return self.paths or [Path(self.name.partition(":")[2])]

    @property
    def file(self) -> Path | None:
        """The one file that holds the samples; None where there are several files."""
        return None if self.kind is None or not self.paths else self.paths[0]


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
    for path in (path.absolute() for file in named for path in file.places):  # links may share a file
        if path in seen:
            raise DataError(f"{path}: named twice, so its samples would count twice; name every file once")
        seen.add(path)
    found: list[UserFile] = []
    for is_images, group in groupby(named, key=lambda file: file.kind is None):
        files = list(group)
        if is_images:
            paths = [path for file in files for path in file.paths]
            files = [UserFile(", ".join(file.name for file in files[:3]), None, paths)]
        found += files
    return found


def check_options(files: Iterable[UserFile], options: Mapping[str, str | Path | None]) -> None:
    """Refuses an option, as `open_user_samples` takes them, that none of the samples has a use for."""
    files = list(files)
    for option, argument in _OPTIONS.items():
        takers = [kind for kind, found in SOURCES.items() if found.is_path and argument in (found.arguments or ())]
        given = options.get(option)
        if given is not None and not {file.kind for file in files} & set(takers):
            raise DataError(
                f"--{option} {given} does not apply to {', '.join(file.name for file in files)}; it "
                f"applies to sources of the kinds {', '.join(takers)}; leave it out"
            )


def refuse_inputs(target: Path, inputs: Iterable[Path]) -> None:
    """Refuses to write results over what they are made of.

    Args:
        target: the file to be written.
        inputs: files and folders.

    Raises:
        OutputError: it is one of them, or a file in a folder that is.
    """
    if not target.exists():
        return
    for path in inputs:
        is_below = path.is_dir() and target.resolve().is_relative_to(path.resolve())
        if is_below or (path.exists() and path.samefile(target)) or called(str(path)) == called(str(target)):
            raise OutputError(
                f"--out {target}: this is one of the inputs, which the results would replace; give another path"
            )


def _named(name: str) -> list[UserFile]:
    if not name:
        raise DataError(
            "'': an empty name among the samples, as a variable of the shell gives that is not set; name a file or a "
            "folder, . for the working directory"
        )
    if is_address(name):
        return _named(str(fetched(name)))
    path = Path(name)
    try:
        path.exists()
    except OSError as error:  # a name too long for a file, for one
        raise DataError(f"{name:.80}: cannot be looked up as a file: {error.strerror}; check the path") from None
    if path.is_dir():
        inside = [found for found in path.rglob("*") if found.is_file() or found.suffix.lower() in IMAGE_SUFFIXES]
        inside = [found for found in inside if not is_hidden(found, path)]
        images = [found for found in inside if found.suffix.lower() in IMAGE_SUFFIXES]
        endings = file_kinds()
        tables = [found for found in inside if found.suffix.lower() in endings]
        return [_one(found) for found in _some(name, images or tables)]
    if path.exists():
        if not path.is_file():
            raise DataError(
                f"{name}: a pipe or a device, wanted a file or a folder, since samples are read more than once; write "
                "them to a file first"
            )
        return [_one(path, name=called(name))]
    kind, _, rest = name.partition(":")
    if rest and (source := kind_of(name)) is not None and source.is_path:
        return [UserFile(name, kind)]
    if set(name) & set("*?["):
        matches = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
        return [_one(found) for found in _some(name, [found for found in matches if found.is_file()])]
    raise DataError(
        f"{name}: no such file or folder; check the path, or quote a pattern such as '*.png'; texts come in a table"
    )


def _one(path: Path, *, name: str | None = None) -> UserFile:
    return UserFile(name or called(str(path)), file_kinds().get(path.suffix.lower()), [path])


def _some(name: str, paths: list[Path]) -> list[Path]:
    if not paths:
        raise DataError(
            f"{name}: no image in it, and no file of samples; wanted files that end in "
            f"{', '.join((*IMAGE_SUFFIXES, *file_kinds()))}"
        )
    return sorted(paths)


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


@dataclass(frozen=True)
class UserSamples:
    """Samples from one place, which are read in order; of image files, few are in memory at a time."""

    count: int
    read: Callable[[], Iterator[RawSample]]

    def __len__(self) -> int:
        """Number of samples."""
        return self.count

    def __iter__(self) -> Iterator[RawSample]:
        """Samples, one after the other."""
        return self.read()


def open_user_samples(
    samples: Sequence[str],
    *,
    options: Mapping[str, str | Path | None] | None = None,
    columns: Sequence[str] | None = None,
) -> list[UserSamples]:
    """Opens what a user named.

    Paths in a table are relative to its folder. One that leads out of that folder, through `..`, a link or from
    the root, is a sample with an error: whoever wrote the list should not choose which files are read.

    Args:
        samples: image files, folders (searched to the bottom, but for hidden files), patterns such as
            `photos/**/*.png`, `.npz`, `.csv`, `.tsv` and Parquet files, or a data source that is a path, `hf:<dir>`
            for one.
        options: those that are given of `column`, the column of tables, or the array of `.npz` files, with the samples,
            which is found by type and name otherwise; `ids`, the column of tables that names them, an empty name for
            none; and `root`, the folder below which paths in tables may lead anywhere, that of each file by default.
        columns: names of the numbers that the model takes, in its order, which are read of tables unless a `column` is
            given; None where they are not known.

    Returns:
        The samples, in the order given, those of folders and patterns by name; image files that follow each other come
        together.

    Raises:
        DataError: something is not there, holds no sample, or cannot be read at all; an option is given that none of
            the samples has a use for.
    """
    files, options = name_user_files(samples), options or {}
    check_options(files, options)
    return [open_user_file(file, options=options, columns=columns) for file in files]


def open_user_file(
    file: UserFile, *, options: Mapping[str, str | Path | None], columns: Sequence[str] | None
) -> UserSamples:
    """Opens one of several; see `open_user_samples`.

    Raises:
        DataError: it holds no sample, or cannot be read at all.
    """
    if file.kind is None:
        return UserSamples(
            len(file.paths),
            lambda: map(_image, file.paths),
        )
    path = file.file
    taken = SOURCES[file.kind].arguments or ()
    given = {_OPTIONS[name]: str(each) or None for name, each in options.items() if each is not None}
    arguments = {name: each for name, each in given.items() if name in taken}
    if file.kind == "parquet" and path is not None:
        request = Request(source=f"parquet:{path}", name=str(path), arguments=arguments, columns=columns)
        images = parquet_images(request)
        if images is not None:
            count, names, read = images
            return UserSamples(count, lambda: _entries(called(str(path)), names, read()))
    source = open_source(file.name if path is None else f"{file.kind}:{path}", arguments, columns=columns)
    return UserSamples(
        len(source.ids),
        lambda: (_sample(f"{file.name}[{each}]", partial(source.sample, row)) for row, each in enumerate(source.ids)),
    )


def _image(path: Path) -> RawSample:
    found = _sample(name := called(str(path)), partial(decoded, path, name=name))
    if found.raw is None and path.suffix.lower() not in IMAGE_SUFFIXES:
        return replace(
            found, error=f"{found.error}; files of other samples than images end in {', '.join(file_kinds())}"
        )
    return found


def _sample(name: str, read: Callable[[], Raw]) -> RawSample:
    try:
        return RawSample(name, read())
    except UnreadableSampleError as error:
        return RawSample(name, None, str(error))


def _entries(
    table: str, names: Sequence[str] | None, found: Iterator[tuple[Any, Raw | UnreadableSampleError]]
) -> Iterator[RawSample]:
    """The images of a Parquet file, by their names or else by their paths or rows."""
    for row, (value, raw) in enumerate(found):
        encoded = pixels_of(value)
        is_path = names is None and isinstance(encoded, str) and encoded
        name = encoded if is_path else f"{table}[{row if names is None else names[row]}]"
        yield RawSample(name, None, str(raw)) if isinstance(raw, UnreadableSampleError) else RawSample(name, raw)


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
        if raw.raw is None:
            waiting.append(BadSample(raw.id, raw.error))
        else:
            try:
                sample = Sample(raw.id, prepare(raw.raw), UNLABELLED, "")
            except (DataError, RuntimeError, ValueError) as error:
                waiting.append(BadSample(raw.id, f"{raw.id} cannot be preprocessed: {error}"))
            else:
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
