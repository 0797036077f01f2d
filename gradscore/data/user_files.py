"""What a user named, before any of it is read: image files, and files that hold several samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath

from ..errors import DataError, OutputError
from ..objects import called, fetched
from ..system import is_address
from .sources import IMAGE_SUFFIXES, SOURCES, file_kinds, kind_of

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
        samples: as `open_user_images` takes them.

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
