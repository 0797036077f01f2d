"""Tables that name images and their classes, as data sets that are downloaded often have beside a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import IMAGE_SUFFIXES, class_names_of, open_source
from ..errors import DataError
from .folders import ImageSet

SUFFIXES = (".csv", ".tsv")

LARGEST = 1 << 27
"""Files of more bytes are not looked into."""

LOOKED_AT = 20
"""So many names have to be those of images before a column is taken for one of paths."""


@dataclass(frozen=True)
class _Named:
    """The images that a table names, and the class of each, in which one without any has an empty name."""

    images: ImageSet
    labels: dict[Path, str]

    def parts(self, found: ImageSet) -> bool:
        """Whether images of one class folder have several classes here, so that it is no folder of a class."""
        pairs = {(file.parent, self.labels[file]) for file in found.files if file in self.labels}
        return len(pairs) > len({folder for folder, _ in pairs})


def with_tables(sets: Sequence[ImageSet], tables: Sequence[Path]) -> tuple[list[ImageSet], list[str]]:
    """Sets of images whose classes a table says, in the place of the same images without classes.

    Class folders stay what they are, unless a table says that images in one of them have several classes.

    Args:
        sets: images as they lie in folders.
        tables: files that may name them.

    Returns:
        The sets, and what the reader should know. Images of a table whose classes are not clear are in none: they may
        well be those that the network knows.
    """
    kept, used, remarks = list(sets), [], []
    for table in (found for path in tables for found in _read(path)):
        kept = [part for each in kept for part in (_folders(each) if table.parts(each) else [each])]
        if any(each.classes and not table.labels.keys().isdisjoint(each.files) for each in kept):
            continue
        kept = [each for each in kept if table.labels.keys().isdisjoint(each.files)]
        if table.images.classes:
            used.append(table.images)
        else:
            inputs = (table.images.arguments or {})["inputs"]
            remarks.append(
                f"{table.images.path}: which column has the classes of the images? Say so under data.in_dist: "
                f"{{source: csv:..., arguments: {{inputs: {inputs}, labels: COLUMN}}}}"
            )
    return kept + used, remarks


def _folders(of: ImageSet) -> Iterator[ImageSet]:
    """Class folders as what they are where they have no classes: folders of images."""
    for name in of.classes:
        files = tuple(file for file in of.files if file.parent == of.path / name)
        yield ImageSet(of.path / name, (), files, len(files))


def _read(path: Path) -> Iterator[_Named]:
    """The images of a table with a column of their paths and others; without classes where these are not clear."""
    if path.suffix.lower() not in SUFFIXES or path.stat().st_size > LARGEST:
        return
    try:
        table = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", skipinitialspace=True)
    except (OSError, ValueError):  # whatever it is, it is no table of images
        return
    columns = [str(name) for name in table.columns]
    found = next((found for name in columns if (found := _place_of(table[name], path))), None)
    if found is None:
        return
    images, folder, suffix = found
    arguments = {"inputs": images}
    arguments |= {name: value for name, value in (("folder", folder), ("suffix", suffix)) if value}
    others = [name for name in columns if name != images]
    if len(others) == 1:
        arguments["labels"] = others[0]
    if table[images].is_unique:
        arguments["ids"] = images
    try:
        opened = open_source(f"csv:{path}", arguments)
    except DataError:
        return
    if not others:
        return
    numbers = np.full(len(opened.ids), -1) if opened.labels is None else opened.labels
    names = class_names_of(opened)
    labels = ["" if number < 0 else names[number] if names else str(number) for number in numbers.tolist()]
    places = (path.parent / folder / f"{name}{suffix}" for name in table[images])
    files = dict(zip(places, labels, strict=True))
    classes = tuple(names or map(str, np.unique(numbers[numbers >= 0]).tolist()))
    if 2 * len(classes) > len(files):  # captions, or numbers that are no classes
        classes = ()
    yield _Named(ImageSet(path, classes, tuple(files), len(opened.ids), arguments), files)


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
            if all(
                _is_image(table.parent, f"{folder}/{name}{suffix}" if folder else f"{name}{suffix}") for name in first
            ):
                return str(column.name), folder, suffix
    return None


def _is_image(folder: Path, name: str) -> bool:
    path = folder / name
    try:
        below = path.resolve().is_relative_to(folder.resolve())
        return below and path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    except (OSError, ValueError):
        return False
