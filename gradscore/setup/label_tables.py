"""Tables that name images and their classes, as data sets that are downloaded often have beside a folder of images."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import IMAGE_SUFFIXES, class_names_of, open_source
from ..errors import DataError
from ..system import some
from .folders import ImageSet, role_of

SUFFIXES = (".csv", ".tsv")

LARGEST = 1 << 27
"""Files of more bytes are not looked into."""

LOOKED_AT = 20
"""So many names are looked at, most of which have to be those of images, before a column is taken for one of paths."""

SPLIT_NAMES = ("split", "subset", "fold", "set", "partition")
"""What columns are called that say which images are for training."""


@dataclass(frozen=True)
class _Table:
    """A table that names images.

    Attributes:
        path: the file.
        arguments: how it is read.
        classes: names of the classes in it; empty where it is not clear which column has them.
        labels: the class of each image, empty for none, by its resolved path.
        is_guess: whether nothing but its being the only other column makes the column of classes one.
        remarks: what is to be said if it is used.
    """

    path: Path
    arguments: dict[str, str]
    classes: tuple[str, ...]
    labels: dict[Path, str]
    is_guess: bool
    remarks: tuple[str, ...]


def with_tables(sets: Sequence[ImageSet], tables: Sequence[Path]) -> tuple[list[ImageSet], list[str]]:
    """Sets of images whose classes a table says, in the place of the same images without classes.

    Class folders stay what they are, unless all images of a table lie in one of them and have several classes there.
    No image is in two sets of tables.

    Args:
        sets: images as they lie in folders.
        tables: files that may name them.

    Returns:
        The sets, and what the reader should know. Images of a table whose classes are not clear are in none: they may
        well be those that the network knows.
    """
    read = [_read(path) for path in tables if path.suffix.lower() in SUFFIXES and path.is_file()]
    found = [each for each in read if isinstance(each, _Table)]
    kept, used, remarks = list(sets), list[ImageSet](), list[str]()
    named: dict[Path, Path] = {}
    for table in sorted(
        found, key=lambda each: (not each.classes, role_of(each.path) is None, each.is_guess, each.path)
    ):
        rival = next((named[file] for file in table.labels if file in named), None)
        if rival is not None:
            remarks += [f"{table.path}: not used, since {rival} names images of it, too"] if table.classes else []
            continue
        kept = [part for each in kept for part in (_folders(each) if _is_parted(each, table) else [each])]
        here = [each for each in kept if not _files(each).isdisjoint(table.labels)]
        if any(each.classes for each in here):
            remarks += [f"{table.path}: not used, since its images lie in class folders"] if table.classes else []
            continue
        kept = [each for each in kept if each not in here]
        if table.classes:
            files = tuple(table.labels)
            used.append(ImageSet(table.path, table.classes, files, len(files), table.arguments))
            named |= dict.fromkeys(files, table.path)
            remarks += [*table.remarks, *_left_out(table, here)]
        else:
            remarks.append(
                f"{table.path}: which column has the classes of the images? Say so under data.in_dist: "
                f"{{source: csv:..., arguments: {{inputs: {table.arguments['inputs']}, labels: COLUMN}}}}"
            )
    result = [*kept, *used]
    if not any(each.classes for each in result):
        remarks += [each for each in read if isinstance(each, str)]
    return result, remarks


@functools.lru_cache(maxsize=64)
def _files(of: ImageSet) -> frozenset[Path]:
    """The images of a folder, without links; each table asks."""
    return frozenset(file.resolve() for file in of.files)


def _is_parted(found: ImageSet, table: _Table) -> bool:
    """Whether one folder holds all images of a table, of several classes: it is no folder of a class then."""
    files = [file for file in map(Path.resolve, found.files) if file in table.labels]
    labels = [(file.parent, table.labels[file]) for file in files]
    return bool(found.classes) and len({folder for folder, _ in labels}) == 1 < len(set(labels))


def _folders(of: ImageSet) -> Iterator[ImageSet]:
    """Class folders as what they are where they have no classes: folders of images."""
    for name in of.classes:
        files = tuple(file for file in of.files if file.parent == of.path / name)
        yield ImageSet(of.path / name, (), files, len(files))


def _left_out(table: _Table, here: Sequence[ImageSet]) -> Iterator[str]:
    """What is to be said of the folders that the images of a table are from."""
    lacking = sum(len(_files(each).difference(table.labels)) for each in here)
    if lacking:
        yield f"{table.path}: {lacking} images beside those that it names are not used"
    parts = [each.path for each in here if role_of(each.path) is not None]
    if len(here) > 1 and parts:
        yield (
            f"{table.path}: has images of {some([str(path) for path in parts], shown=3)}, which are used together; "
            "make a table of each if some of them trained the network"
        )


def _read(path: Path) -> _Table | str | None:
    """The images of a table with a column of their paths and others, or why there are none."""
    if path.stat().st_size > LARGEST:
        return None
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        table = pd.read_csv(path, sep=separator, skipinitialspace=True, low_memory=False)
    except (OSError, ValueError) as error:
        return f"{path}: not used, since it cannot be read as a table: {str(error).splitlines()[0]}"
    columns = [str(name) for name in table.columns]
    if any(_is_image(path.parent, name) for name in columns):
        return f"{path}: not used, since its first line has no names of columns"
    found = next((found for name in columns if (found := _place_of(table[name], path))), None)
    others = [name for name in columns if found is None or name != found[0]]
    if found is None or not others:
        return (
            f"{path}: not used, since no column has paths of images beside other columns; paths are relative to its "
            f"folder, or to one in it, and columns are parted by {'tabs' if separator != ',' else 'commas'}"
        )
    images, folder, suffix = found
    arguments = {"inputs": images} | {key: value for key, value in (("folder", folder), ("suffix", suffix)) if value}
    if table[images].is_unique:
        arguments["ids"] = images
    try:
        opened = open_source(f"csv:{path}", arguments)
        is_guess = opened.labels is None and len(others) == 1
        if is_guess:
            arguments = {**arguments, "labels": others[0]}
            opened = open_source(f"csv:{path}", arguments)
    except DataError as error:
        return f"{path}: not used: {error}"
    numbers = np.full(len(opened.ids), -1) if opened.labels is None else opened.labels
    names = class_names_of(opened)
    texts = ["" if number < 0 else names[number] if names else str(number) for number in numbers.tolist()]
    labels = {
        (path.parent / folder / f"{name}{suffix}").resolve(): text
        for name, text, is_missing in zip(table[images], texts, table[images].isna(), strict=True)
        if not is_missing
    }
    classes = tuple(names or map(str, np.unique(numbers[numbers >= 0]).tolist()))
    if not 2 <= len(classes) <= len(labels) / 2:  # placeholders, captions, or numbers that are no classes
        classes = ()
    return _Table(path, arguments, classes, labels, is_guess, tuple(_remarks(path, table, images, len(labels))))


def _remarks(path: Path, table: pd.DataFrame, images: str, count: int) -> Iterator[str]:
    if count < len(table):
        yield f"{path}: {len(table)} rows name {count} images"
    part = next((name for name in table.columns if str(name).lower() in SPLIT_NAMES and name != images), None)
    if part is not None:
        yield (
            f"{path}: the column {part!r} is not looked at, so images that trained the network may be among these; "
            "make a table of each part"
        )


def _place_of(column: pd.Series, table: Path) -> tuple[str, str, str] | None:
    """The name of a column if it names images, with the folder and the ending that its entries lack.

    Paths are relative to the folder of the table, or to one in it, first the one that is called as the table is.
    """
    first = [str(name) for name in column.dropna().head(LOOKED_AT)]
    if not first or not (pd.api.types.is_integer_dtype(column) or pd.api.types.is_string_dtype(column)):
        return None
    below = sorted(path.name for path in table.parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    for folder in ("", *sorted(below, key=lambda name: name != table.stem)):
        for suffix in ("", *IMAGE_SUFFIXES):
            if 2 * sum(_is_image(table.parent, f"{folder or '.'}/{name}{suffix}") for name in first) > len(first):
                return str(column.name), folder, suffix
    return None


def _is_image(folder: Path, name: str) -> bool:
    path = folder / name
    try:
        below = path.resolve().is_relative_to(folder.resolve())
        return below and path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    except (OSError, ValueError):
        return False
