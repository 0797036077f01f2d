"""Tables that name images and their classes, as data sets that are downloaded often have beside a folder of images."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import IMAGE_SUFFIXES, class_names_of, csv_form, open_source, path_below
from ..errors import DataError
from ..system import some
from .folders import ImageSet, role_in_words
from .other_data import LARGEST

SUFFIXES = (".csv", ".tsv")

LOOKED_AT = 20
"""So many names are looked at, most of which have to be those of images, before a column is taken for one of paths."""

FEW = 4
"""Of so many first names one has to be that of an image."""

LISTED = 1000
"""So many files of a folder say which endings there are."""

SPLIT_NAMES = ("split", "subset", "fold", "set", "partition")
"""What columns are called that say which images are for training."""


@dataclass(frozen=True)
class _Table:
    """A table that names images.

    Attributes:
        path: the file.
        arguments: how it is read.
        classes: names of the classes in it; empty where images are not told apart by it.
        labels: the class of each image that is there, empty for none, by its path without links.
        stems: names of images without ending, where the table says nothing of their folder.
        is_guess: whether nothing but its being the only other column makes the column of classes one.
        remarks: what is to be said of it.
    """

    path: Path
    arguments: dict[str, str]
    classes: tuple[str, ...]
    labels: dict[Path, str]
    stems: frozenset[str]
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
        The sets, and what the reader should know. Images that a table names, or may name, and that are in no set of it
        are in none: they may well be those that the network knows.
    """
    read = [_read(path) for path in tables if path.suffix.lower() in SUFFIXES and path.is_file()]
    found = [each for each in read if isinstance(each, _Table)]
    kept, replaced, used, remarks = list(sets), list[ImageSet](), list[ImageSet](), list[str]()
    named: dict[Path, Path] = {}
    for table in sorted(
        found, key=lambda each: (not each.classes, role_in_words(each.path) is None, each.is_guess, each.path)
    ):
        shared = [file for file in table.labels if file in named]
        if shared:
            remarks.append(f"{table.path}: not used, since {named[shared[0]]} has {len(shared)} of its images, too")
            continue
        kept = [part for each in kept for part in (_folders(each) if _is_parted(each, table) else [each])]
        here = [each for each in kept if not _files(each).isdisjoint(table.labels)]
        if any(each.classes for each in here):
            remarks.append(f"{table.path}: not used, since its images lie in class folders")
            continue
        kept = [each for each in kept if each not in here]
        replaced += here
        remarks += [*table.remarks, *_together(table, here)]
        if table.classes:
            files = tuple(table.labels)
            used.append(ImageSet(table.path, table.classes, files, len(files), table.arguments))
            named |= dict.fromkeys(files, table.path)
    stems = frozenset[str]().union(*(table.stems for table in found))
    alike = [each for each in kept if not each.classes and role_in_words(each.path) is None and _is_alike(each, stems)]
    remarks += [f"{each.path}: not used, since a table names images that are called alike" for each in alike]
    lacking = sum(len(_files(each).difference(named)) for each in replaced) if used else 0
    remarks += [f"{lacking} images beside those that tables name are not used"] if lacking else []
    result = [*(each for each in kept if each not in alike), *used]
    if not any(each.classes for each in result):
        remarks += [each for each in read if isinstance(each, str)]
    return result, remarks


@functools.lru_cache(maxsize=64)
def _files(of: ImageSet) -> frozenset[Path]:
    """The images of a folder, which is named without links; each table asks."""
    return frozenset(_without_links(of.files))


def _without_links(files: Sequence[Path]) -> Iterator[Path]:
    """Paths whose folders are no links: these are few, and their files many."""
    folders: dict[Path, Path] = {}
    for file in files:
        if file.parent not in folders:
            folders[file.parent] = file.parent.resolve()
        yield folders[file.parent] / file.name


def _is_parted(found: ImageSet, table: _Table) -> bool:
    """Whether one folder holds all images of a table, of several classes: it is no folder of a class then."""
    labels = {(file.parent, table.labels[file]) for file in _files(found) if file in table.labels}
    return bool(found.classes) and len({folder for folder, _ in labels}) == 1 < len(labels)


def _folders(of: ImageSet) -> Iterator[ImageSet]:
    """Class folders as what they are where they have no classes: folders of images."""
    for name in of.classes:
        files = tuple(file for file in of.files if file.parent == of.path / name)
        yield ImageSet(of.path / name, (), files, len(files))


def _is_alike(of: ImageSet, stems: frozenset[str]) -> bool:
    """Whether most images are called as some that a table names without a folder."""
    return 2 * sum(file.stem in stems for file in of.files) > len(of.files)


def _together(table: _Table, here: Sequence[ImageSet]) -> Iterator[str]:
    parts = [each.path for each in here if role_in_words(each.path) is not None]
    if len(parts) > 1:
        yield (
            f"{table.path}: has images of {some([str(path) for path in parts], shown=3)}, which are used together; "
            "make a table of each if some of them trained the network"
        )


def _read(path: Path) -> _Table | str | None:
    """The images of a table with a column of their paths and others, or why there are none."""
    if path.stat().st_size > LARGEST:
        return None
    form = csv_form(path)
    try:
        table = pd.read_csv(path, dtype=str, **form)
    except (OSError, ValueError) as error:
        return f"{path}: not used, since it cannot be read as a table: {str(error).splitlines()[0]}"
    columns = [str(name) for name in table.columns]
    if any(_is_image(path.parent, name) for name in columns):
        return f"{path}: not used, since its first line has no names of columns; write file,label there"
    found = _place_of(table, path)
    others = [name for name in columns if found is None or name != found[0]]
    if found is None or not others:
        return (
            f"{path}: not used, since no column has paths of images beside other columns; paths are relative to its "
            f"folder, or to one in it, and columns are parted by {'commas' if form['sep'] == ',' else 'tabs'}"
        )
    images, folders, suffix = found
    folder = folders[0]
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
    rows = [(f"{name}{suffix}", text) for name, text in zip(table[images], texts, strict=True) if isinstance(name, str)]
    classes = tuple(names or map(str, np.unique(numbers[numbers >= 0]).tolist()))
    labels: dict[Path, str] = {}
    for each in folders:
        places = _without_links([path.parent / each / name for name, _ in rows])
        labels |= _existing(dict(zip(places, (text for _, text in rows), strict=True)))
    stems = frozenset(Path(name).stem for name, _ in rows) if folder else frozenset[str]()
    if len(folders) > 1 or not 2 <= len(classes) <= len(labels) / 2:  # placeholders, captions, or measurements
        why = _unclear(path, images, folders, classes, opened.labels is not None)
        return _Table(path, arguments, (), labels, stems, is_guess, (why,))
    remarks = tuple(_remarks(path, table, texts, len(rows), len(labels), images))
    return _Table(path, arguments, classes, labels, stems, is_guess, remarks)


def _unclear(path: Path, images: str, folders: Sequence[str], classes: Sequence[str], has_labels: bool) -> str:
    """Why the images of a table are not used."""
    if len(folders) > 1:
        return f"{path}: not used, since images of {', '.join(folders)} are called as it says; which of them are meant?"
    if has_labels and len(classes) == 1:
        return f"{path}: not used, since all its images have the class {classes[0]}"
    return (
        f"{path}: which column has the classes of the images? Say so under data.in_dist: "
        f"{{source: csv:..., arguments: {{inputs: {images}, labels: COLUMN}}}}"
    )


def _existing(labels: dict[Path, str]) -> dict[Path, str]:
    """The files that are there; folders are listed, since asking for each file takes long."""
    there: dict[Path, frozenset[str]] = {}
    for file in labels:
        if file.parent not in there:
            there[file.parent] = (
                frozenset(each.name for each in file.parent.iterdir()) if file.parent.is_dir() else frozenset()
            )
    return {file: label for file, label in labels.items() if file.name in there[file.parent]}


def _remarks(
    path: Path, table: pd.DataFrame, labels: Sequence[str], named: int, there: int, images: str
) -> Iterator[str]:
    distinct = table[images].nunique()
    if distinct < named:
        yield f"{path}: {named} rows name {distinct} images"
    if there < distinct:
        yield f"{path}: {distinct - there} of {distinct} images that it names are not there"
    without = sum(not label for label in labels)
    if without:
        yield f"{path}: {without} of {len(labels)} rows have no class"
    part = next((name for name in table.columns if str(name).lower() in SPLIT_NAMES and name != images), None)
    if part is not None:
        yield (
            f"{path}: the column {part!r} is not looked at, so images that trained the network may be among these; "
            "make a table of each part"
        )


def _place_of(table: pd.DataFrame, path: Path) -> tuple[str, list[str], str] | None:
    """The column that names images, with the folders that its entries may lack, and the ending.

    Names that are whole come before others, whatever their column. Paths are relative to the folder of the table, or to
    one in it: of several the one that is called as the table is, or for the same part.
    """
    below = sorted(each.name for each in path.parent.iterdir() if each.is_dir() and not each.name.startswith("."))
    some_files = (file for name in ("", *below) for file in islice((path.parent / name).iterdir(), LISTED))
    for suffix in ("", *sorted({file.suffix for file in some_files if file.suffix.lower() in IMAGE_SUFFIXES})):
        for folders in ([""], below):
            for name in table.columns:
                column = table[name].dropna()
                if suffix and not column.is_unique:  # classes may be called as images are
                    continue
                first = column.head(LOOKED_AT).tolist()
                fitting = [each for each in folders if _is_named(path.parent, each, first, suffix)]
                if fitting:
                    return str(name), _meant(fitting, path), suffix
    return None


def _meant(folders: list[str], table: Path) -> list[str]:
    """Which of several folders a table may mean."""
    role = role_in_words(table)
    for chosen in (
        [name for name in folders if name == table.stem],
        [name for name in folders if role is not None and role_in_words(Path(name)) == role],
        [name for name in folders if role_in_words(Path(name)) != "ood"],
    ):
        if chosen:
            return chosen
    return folders


def _is_named(base: Path, folder: str, names: Sequence[str], suffix: str) -> bool:
    paths = [Path(folder) / f"{name}{suffix}" for name in names]
    first = sum(_is_image(base, path) for path in paths[:FEW])
    return first > 0 and 2 * (first + sum(_is_image(base, path) for path in paths[FEW:])) > len(paths)


def _is_image(base: Path, name: str | Path) -> bool:
    try:
        return Path(name).suffix.lower() in IMAGE_SUFFIXES and path_below(base.resolve(), base, str(name)).is_file()
    except (OSError, ValueError):
        return False
