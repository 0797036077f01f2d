"""Tables that name images and their classes, as data sets that are downloaded often have beside a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import DataError
from .folders import ImageSet, role_in_name
from .image_index import ImageIndex
from .image_tables import ImageTable, not_of_images, read_image_table, used_together

SUFFIXES = (".csv", ".tsv")


def with_tables(sets: Sequence[ImageSet], tables: Sequence[Path]) -> tuple[list[ImageSet], list[str]]:
    """Sets of images whose classes a table says, in the place of the same images without classes.

    Class folders stay what they are, unless a table gives several classes to images of one of them, and none to those
    of others. No image is in two sets of tables.

    Args:
        sets: images as they lie in folders.
        tables: files that may name them.

    Returns:
        The sets, and what the reader should know. Images without classes of their own that a table names, or may name,
        are in no other set, whether the table is used or not: they may well be those that the network knows.
    """
    images = ImageIndex(sets)
    found, remarks, others = _read(tables, images)
    choice = _Choice(sets, images)
    for table in sorted(found, key=lambda each: each.order):
        choice.take(table)
    result = choice.result(frozenset[str]().union(*(table.stems for table in found)))
    remarks += choice.remarks
    return result, remarks if any(each.classes for each in result) else [*remarks, *others]


def _read(tables: Sequence[Path], images: ImageIndex) -> tuple[list[ImageTable], list[str], list[str]]:
    """Tables that name images, why files are no tables, and what is said of tables of something else."""
    found, remarks, others = list[ImageTable](), list[str](), list[str]()
    for path in tables:
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        try:
            table = read_image_table(path, images)
        except (DataError, OSError) as error:
            remarks.append(f"{path}: not used, since {error}")
            continue
        if table is None:
            others.append(not_of_images(path))
        else:
            found.append(table)
    return found, remarks, others


class _Choice:
    """Which sets are left beside those of tables."""

    def __init__(self, sets: Sequence[ImageSet], images: ImageIndex) -> None:
        self.remarks: list[str] = []
        self._kept, self._images = list(sets), images
        self._files = {each.path: images.files(each) for each in sets}
        self._withdrawn: list[ImageSet] = []
        self._used: list[ImageSet] = []
        self._named: dict[Path, Path] = {}

    def take(self, table: ImageTable) -> None:
        """Withdraws images without classes that the table names, and uses the table if it says their classes."""
        if not table.why:
            self._kept = [part for each in self._kept for part in self._parts(each, table)]
        here = [each for each in self._kept if not self._of(each).isdisjoint(table.files)]
        flat = [each for each in here if not each.classes]
        self._kept = [each for each in self._kept if each not in flat]
        self._withdrawn += flat
        shared = [file for file in table.files if file in self._named]
        if shared:
            first = self._named[min(shared)]
            self.remarks.append(f"{table.path}: not used, since {first} has {len(shared)} of its images, too")
        elif len(flat) < len(here):
            some = "some of " if flat else ""
            self.remarks.append(f"{table.path}: not used, since {some}its images lie in class folders")
        elif table.why:
            self.remarks.append(table.why)
        else:
            self.remarks += [*table.remarks, *used_together(table, here)]
            files = tuple(table.labels)
            self._used.append(ImageSet(table.path, table.classes, files, len(files), table.arguments))
            self._named |= dict.fromkeys(files, table.path)

    def result(self, stems: frozenset[str]) -> list[ImageSet]:
        """All sets; images that are called as some that a table names are in none."""
        alike = [each for each in self._kept if _may_be_named(each, stems)]
        self.remarks += [f"{each.path}: not used, since a table names images that are called alike" for each in alike]
        lacking = sum(len(self._of(each).difference(self._named)) for each in self._withdrawn) if self._used else 0
        self.remarks += [f"{lacking} images beside those that tables name are not used"] if lacking else []
        return [*(each for each in self._kept if each not in alike), *self._used]

    def _of(self, images: ImageSet) -> frozenset[Path]:
        return self._files[images.path]

    def _parts(self, of: ImageSet, table: ImageTable) -> Iterator[ImageSet]:
        """The set; or where one class folder holds all images of it that the table names, of several classes, folders.

        That is no folder of a class, then, and those beside it may be none.
        """
        labels = {(file.parent, table.labels[file]) for file in self._of(of) if file in table.labels}
        if not of.classes or not len({folder for folder, _ in labels}) == 1 < len(labels):
            yield of
            return
        folder = next(iter(labels))[0]
        self.remarks.append(
            f"{table.path}: has several classes of images of {of.path / folder.name}, so {of.path} is not taken for "
            "class folders; check"
        )
        for name in of.classes:
            files = tuple(file for file in of.files if file.parent == of.path / name)
            part = ImageSet(of.path / name, (), files, len(files))
            self._files[part.path] = self._images.files(part)
            yield part


def _may_be_named(of: ImageSet, stems: frozenset[str]) -> bool:
    """Whether most images without classes are called as some that a table names without a folder."""
    if of.classes or role_in_name(of.path.name) is not None:
        return False
    return 2 * sum(file.stem in stems for file in of.files) > len(of.files)
