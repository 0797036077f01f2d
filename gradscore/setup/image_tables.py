"""What a table says of images: which column names them, and which says their classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import (
    DAMAGE,
    IMAGE_NAMES,
    LABEL_NAMES,
    NOTHING,
    ImageSource,
    class_names_of,
    delimiter_of,
    open_source,
    path_below,
    read_text_table,
    reason_of,
)
from ..errors import DataError
from ..system import some
from .folders import LARGEST, ImageSet, role_in_name, role_of_table
from .image_index import ImageIndex

LOOKED_AT = 20
"""So many names are looked at, most of which have to be those of images, before a column is taken for one of paths."""

FEW = 4
"""Of so many first names one has to be that of an image."""

SPLIT_NAMES = frozenset(
    ("split", "subset", "fold", "set", "partition", "part", "usage", "phase", "dataset", "datasplit", "istrain")
)
"""What columns are called that say which images are for training, but for capitals and what is between words."""

PREDICTED = frozenset(("submission", "prediction", "predictions", "predicted", "preds"))
"""Words in the names of tables that have no true classes."""


@dataclass(frozen=True)
class ImageTable:
    """A table that names images.

    Attributes:
        path: the file.
        files: all images that it names, in any column, by paths as `ImageIndex.find` gives them.
        why: why it is not used; empty for a table that says the classes of its images, which has all of what follows.
        arguments: how it is read.
        classes: names of the classes.
        labels: the class of each image that is there, empty for none.
        stems: names of images without ending, where the table says nothing of their folder.
        is_guess: whether nothing but its being the only other column makes the column of classes one.
        remarks: what is to be said of it.
    """

    path: Path
    files: frozenset[Path]
    why: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    labels: Mapping[Path, str] = field(default_factory=dict)
    stems: frozenset[str] = frozenset()
    is_guess: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[bool, bool, bool, Path]:
        """Tables that say more come before others of the same images."""
        return bool(self.why), self.is_guess, role_of_table(self.path) is None, self.path


@dataclass(frozen=True)
class _Place:
    """Where images are named.

    Attributes:
        folders: by the columns whose names are those of images, the folders one of which the names lack; an empty name
            for none.
        suffix: what they lack at their end.
    """

    folders: Mapping[str, Sequence[str]]
    suffix: str

    @property
    def column(self) -> str | None:
        """The one with the samples; None if several may be."""
        usual = [name for known in IMAGE_NAMES for name in self.folders if name.lower() == known]
        return usual[0] if usual else next(iter(self.folders)) if len(self.folders) == 1 else None


def read_image_table(path: Path, images: ImageIndex) -> ImageTable | None:
    """What a table says of images; None if none of its columns names any.

    Raises:
        DataError: it is not looked into, or it is no table; the message is why.
    """
    if path.stat().st_size > LARGEST:
        raise DataError(f"it is too large to be looked into (over {LARGEST >> 20} MiB)")
    try:
        table = read_text_table(path, texts=None).to_pandas()
    except DAMAGE as error:
        raise DataError(f"it cannot be read as a table: {reason_of(error)}") from None
    place = _place_of(table, path, images)
    return None if place is None else _Reader(path, table, place, images).found()


class _Reader:
    """Reads a table whose columns of images are known."""

    def __init__(self, path: Path, table: pd.DataFrame, place: _Place, images: ImageIndex) -> None:
        self.path, self.table, self.place, self.images = path, table, place, images
        self.base = path.parent.resolve()

    def found(self) -> ImageTable:
        """What the table says."""
        named = {column: self._images_of(column) for column in self.place.folders}
        files = frozenset(file for found in named.values() for each in found.values() for file in each)
        column = self.place.column
        unfit = self._unfit()
        if column is None or unfit:
            return ImageTable(self.path, files, unfit)
        try:
            opened, arguments, is_guess = self._opened(column)
        except DataError as error:
            return ImageTable(self.path, files, f"{self.path}: not used: {error}")
        label = arguments.get("labels") or next((name for name in LABEL_NAMES if name in self.table.columns), "")
        classes, texts = _classes(opened)
        labels: dict[Path, set[str]] = {}
        for name, text in zip(self.table[column], texts, strict=True):
            for file in named[column].get(name, ()):
                labels.setdefault(file, set()).add(text)
        rows = [text for name, text in zip(self.table[column], texts, strict=True) if isinstance(name, str)]
        why = self._unclear(column, "" if is_guess else label, classes, labels, rows)
        if not why and not PREDICTED.isdisjoint(re.findall("[a-z]+", self.path.stem.lower())):
            why = "not used, since it has predictions, by its name; give it another if these are the true classes"
        if why:
            return ImageTable(self.path, files, f"{self.path}: {why}")
        absent = sum(not found for found in named[column].values())
        remarks = [*self._doubts(label, is_guess, classes), *self._remarks(rows, there=len(labels), absent=absent)]
        return ImageTable(
            self.path,
            files,
            arguments=arguments,
            classes=classes,
            labels={file: max(found) for file, found in labels.items()},  # a class before none
            stems=frozenset(Path(name).stem for name in named[column])
            if any(self.place.folders[column])
            else frozenset(),
            is_guess=is_guess,
            remarks=tuple(f"{self.path}: {remark}" for remark in remarks),
        )

    def _opened(self, column: str) -> tuple[ImageSource, dict[str, str], bool]:
        """The samples of the table, how they are read, and whether the column of their classes is a guess."""
        settings = {"folder": self.place.folders[column][0], "suffix": self.place.suffix}
        arguments = {"inputs": column} | {key: value for key, value in settings.items() if value}
        names = self.table[column]
        arguments |= {"ids": column} if names.is_unique and names.notna().all() else {}
        opened, others = open_source(f"csv:{self.path}", arguments), self._others()
        if opened.labels is not None or len(others) != 1:
            return opened, arguments, False
        arguments["labels"] = others[0]
        return open_source(f"csv:{self.path}", arguments), arguments, True

    def _images_of(self, column: str) -> dict[str, list[Path]]:
        """The images that each name in a column may mean, one in each folder."""
        return {
            name: [file for folder in self.place.folders[column] if (file := self._find(folder, name)) is not None]
            for name in self.table[column].dropna().unique()
        }

    def _find(self, folder: str, name: str) -> Path | None:
        return self.images.find(self.path.parent / folder / f"{name}{self.place.suffix}", below=self.base)

    def _others(self) -> list[str]:
        """Columns that may have classes."""
        return [
            str(name) for name in self.table.columns if name not in self.place.folders and not _says_parts(str(name))
        ]

    def _split(self) -> str | None:
        """The column that says which part an image is of."""
        names = (str(name) for name in self.table.columns if name not in self.place.folders)
        return next((name for name in names if _says_parts(name)), None)

    def _unfit(self) -> str:
        """Why the table cannot be read as one of samples; empty if it can."""
        column, suffix = self.place.column, self.place.suffix
        if any(self._find(folder, name) for name, folders in self.place.folders.items() for folder in folders):
            return f"{self.path}: not used, since its first line has no names of columns; write file,label there"
        if column is None:
            return (
                f"{self.path}: not used, since {' and '.join(self.place.folders)} have paths of images; which are the "
                "samples? Say so under data.in_dist: {source: csv:..., arguments: {inputs: COLUMN}}"
            )
        folder, *others = self.place.folders[column]
        if others:
            folders = ", ".join([folder, *others])
            return f"{self.path}: not used, since images of {folders} are called as it says; which of them are meant?"
        if not self._others():
            split = self._split()
            beside = "" if split is None else f" ({split!r} says which part they are of)"
            return f"{self.path}: not used, since no column has the classes of its images{beside}"
        for name in self.table[column].dropna().head(LOOKED_AT):
            if self._find(folder, name) is not None:
                try:
                    path_below(self.base, self.path.parent / folder, f"{name}{suffix}")
                except ValueError as error:
                    return f"{self.path}: not used, since a path {error}; set arguments: {{root: FOLDER}} to allow it"
        return ""

    def _unclear(
        self, column: str, label: str, classes: Sequence[str], labels: Mapping[Path, set[str]], rows: Sequence[str]
    ) -> str:
        """Why it is not clear which classes the images have; empty if it is.

        Args:
            column: of the images.
            label: the column of classes, empty for none that is called so.
            classes: those in it.
            labels: the classes of each image, an empty one for none.
            rows: the same by rows that name an image.
        """
        several = sum(len(found - {""}) > 1 for found in labels.values())
        if 2 <= len(classes) <= len(labels) / 2 and not several:
            return ""
        if label and several:
            return (
                f"not used, since {several} of {len(labels)} images have several classes in the column {label!r} "
                "(boxes, or several labels of an image)"
            )
        none = sum(not row for row in rows)
        if label and not classes:
            return f"not used, since no row has a class in the column {label!r}"
        if label and len(classes) == 1:
            rest = f"; {none} of {len(rows)} rows have none (an empty field, or -1)" if none else ""
            return f"not used, since all its images have the class {classes[0]}{rest}"
        if label:
            return (
                f"not used, since the column {label!r} has {len(classes)} classes for {len(labels)} images; two images "
                "of each are the least to tell whether they are classes"
            )
        return (
            "which column has the classes of the images? Say so under data.in_dist: "
            f"{{source: csv:..., arguments: {{inputs: {column}, labels: COLUMN}}}}"
        )

    def _doubts(self, label: str, is_guess: bool, classes: Sequence[str]) -> Iterator[str]:
        """What may be wrong with the column of classes."""
        if is_guess:
            yield f"the column {label!r} is taken for the classes, since there is no other; check"
        words = [repr(name) for name in classes if name.lower() in NOTHING]
        if words:
            yield f"{' and '.join(words)} in the column {label!r} is taken for a class; leave the field empty for none"
        baselines = [repr(name) for name in self._others() if name != label and name.lower() in LABEL_NAMES]
        if baselines:
            yield f"the column {label!r} is taken for the classes, and not {', '.join(baselines)}; check"

    def _remarks(self, rows: Sequence[str], *, there: int, absent: int) -> Iterator[str]:
        """What is to be said of a table that is used.

        Args:
            rows: classes by rows that name an image.
            there: how many images it names.
            absent: how many names are of none.
        """
        if there + absent < len(rows):
            yield f"{len(rows)} rows name {there + absent} images"
        if absent:
            yield (
                f"{absent} of {there + absent} images that it names are not there, where extract stops; correct the "
                "table, or set extract.on_error: skip"
            )
        nameless = len(self.table) - len(rows)
        if nameless:
            yield f"{nameless} rows name no image, where extract stops; remove them"
        without = sum(not row for row in rows)
        if without:
            yield f"{without} of {len(rows)} rows have no class"
        split = self._split()
        if split is not None:
            yield (
                f"the column {split!r} is not looked at, so images that trained the network may be among these; "
                "make a table of each part"
            )


def _says_parts(column: str) -> bool:
    return re.sub("[^a-z]", "", column.lower()) in SPLIT_NAMES


def _classes(of: ImageSource) -> tuple[tuple[str, ...], list[str]]:
    """Names of the classes of samples, and the class of each, empty for none."""
    numbers = np.full(len(of.ids), -1) if of.labels is None else of.labels
    names = class_names_of(of)
    texts = ["" if number < 0 else names[number] if names else str(number) for number in numbers.tolist()]
    return tuple(names or map(str, np.unique(numbers[numbers >= 0]).tolist())), texts


def not_of_images(path: Path) -> str:
    """What is said of a table none of whose columns names an image."""
    sign = "commas" if delimiter_of(path) == "," else "tabs"
    return (
        f"{path}: not used, since no column has paths of images; paths are relative to its folder, or to one in it, "
        f"and columns are parted by {sign}"
    )


def used_together(table: ImageTable, here: Sequence[ImageSet]) -> Iterator[str]:
    """What is said of a table whose images lie in the folders of several parts."""
    parts = [str(each.path) for each in here if role_in_name(each.path.name) is not None]
    if len(parts) > 1:
        yield (
            f"{table.path}: has images of {some(parts, shown=3)}, which are used together; make a table of each if "
            "some of them trained the network"
        )


def _place_of(table: pd.DataFrame, path: Path, images: ImageIndex) -> _Place | None:
    """Where a table names images.

    Names that are whole come before others, whatever their column. Paths are relative to the folder of the table, or to
    one in it: of several the one that is called as the table is, or for the same part.
    """
    base = path.parent.resolve()
    below = images.folders_in(base)

    def fits(folder: str, names: Sequence[str], suffix: str) -> bool:
        if not any(images.may_be(f"{name}{suffix}") for name in names[:FEW]):
            return False
        there = [images.find(path.parent / folder / f"{name}{suffix}", below=base) is not None for name in names]
        return any(there[:FEW]) and 2 * sum(there) > len(there)

    for suffix in ("", *images.endings_below(base)):
        for folders in ([""], below):
            found = {}
            for name in table.columns:
                column = table[name].dropna()
                if suffix and not column.is_unique:  # it may have classes that are called as images are: 0 and 0.png
                    continue
                first = column.head(LOOKED_AT).tolist()
                fitting = [folder for folder in folders if fits(folder, first, suffix)]
                if fitting:
                    found[str(name)] = _meant(fitting, path)
            if found:
                return _Place(found, suffix)
    return None


def _meant(folders: list[str], table: Path) -> list[str]:
    """Which of several folders a table may mean."""
    role = role_of_table(table)
    for chosen in (
        [name for name in folders if name == table.stem],
        [name for name in folders if role is not None and role_in_name(name) == role],
        [name for name in folders if role_in_name(name) != "ood"],
    ):
        if chosen:
            return chosen
    return folders
