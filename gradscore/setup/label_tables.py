"""Tables that name images and their classes, as data sets that are downloaded often have beside a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import DataError
from .folders import ImageSet, role_in_name, role_of_table
from .image_index import ImageIndex
from .image_tables import ImageTable, not_of_images, read_image_table, used_together
from .mentions import is_mentioned, text_of

SUFFIXES = (".csv", ".tsv")

NOT_TEXT = (".parquet", ".pq")
"""Tables that are not read."""

NOT_READ = "{}: not looked into for classes of images; write a .csv of it if it has some"


def with_tables(
    sets: Sequence[ImageSet], tables: Sequence[Path], lists: Sequence[Path] = ()
) -> tuple[list[ImageSet], list[str]]:
    """Sets of images whose classes a table says, in the place of the same images without classes.

    Class folders stay what they are, unless a table gives several classes to images of one of them, and none to those
    of others. No image is in two sets of tables.

    Args:
        sets: images as they lie in folders.
        tables: files that may name them.
        lists: others that may, in forms that are not read.

    Returns:
        The sets, and what the reader should know. Images without classes of their own that a table names, or may name,
        are in no other set, whether the table is used or not: they may well be those that the network knows, unless
        their folder is called `ood`.
    """
    images = ImageIndex(sets)
    found, remarks, others = _read(tables, images)
    choice = _Choice(sets, images)
    for table in sorted(found, key=lambda each: each.order):
        choice.take(table)
    others |= {path: NOT_READ.format(path) for path in lists}
    mentioning = [path for path in (*remarks, *others) if choice.keep_from_mentioned(path)]
    result = choice.result(frozenset[str]().union(*(table.stems for table in found)))
    shown = [*remarks.values(), *choice.remarks]
    # Beside images that all have classes, a table of something else is no matter.
    plain = bool(result) and all(each.classes for each in result)
    silent = {path for path in others if plain or path in lists}.difference(mentioning)
    return result, [*(text for path, text in others.items() if path not in silent), *shown]


def _read(tables: Sequence[Path], images: ImageIndex) -> tuple[list[ImageTable], dict[Path, str], dict[Path, str]]:
    """Tables that name images, and by their paths why files are no tables, and what is said of others."""
    found, remarks, others = list[ImageTable](), dict[Path, str](), dict[Path, str]()
    for path in tables:
        if path.suffix.lower() in NOT_TEXT:
            others[path] = NOT_READ.format(path)
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        try:
            table = read_image_table(path, images)
        except (DataError, OSError) as error:
            remarks[path] = f"{path}: not used, since {error}"
            continue
        if table is None:
            others[path] = not_of_images(path)
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
        shared = [file for file in table.files if file in self._named]
        is_used = not (shared or table.why) and len(flat) == len(here)
        self._withdraw([each for each in flat if is_used or not _is_called_ood(each)])
        if shared:
            first, part = self._named[min(shared)], ""
            if role_of_table(table.path) == "bank":
                part = "; they trained the network, by its name: make a table of each part"
            self.remarks.append(f"{table.path}: not used, since {first} has {len(shared)} of its images, too{part}")
        elif table.why and (flat or not here):
            self.remarks.append(table.why)
        elif not is_used:
            some = "some of " if flat else ""
            self.remarks.append(f"{table.path}: not used, since {some}its images lie in class folders")
        else:
            self.remarks += [*table.remarks, *used_together(table, here)]
            files = tuple(table.labels)
            self._used.append(ImageSet(table.path, table.classes, files, len(files), table.arguments))
            self._named |= dict.fromkeys(files, table.path)

    def keep_from_mentioned(self, path: Path) -> bool:
        """Withdraws images without classes whose names stand in a file that is no table of images; whether any do."""
        flat = [each for each in self._kept if not each.classes and not _is_called_ood(each)]
        text = text_of(path) if flat else ""
        mentioned = [each for each in flat if is_mentioned(each, text)]
        self._kept = [each for each in self._kept if each not in mentioned]
        self.remarks += [f"{each.path}: not used, since their names stand in {path}" for each in mentioned]
        return bool(mentioned)

    def result(self, stems: frozenset[str]) -> list[ImageSet]:
        """All sets; images that are called as some that a table names are in none."""
        alike = [each for each in self._kept if _may_be_named(each, stems)]
        self.remarks += [f"{each.path}: not used, since a table names images that are called alike" for each in alike]
        lacking = sum(len(self._of(each).difference(self._named)) for each in self._withdrawn) if self._used else 0
        self.remarks += [f"{lacking} images beside those that tables name are not used"] if lacking else []
        return [*(each for each in self._kept if each not in alike), *self._used]

    def _withdraw(self, sets: Sequence[ImageSet]) -> None:
        self._kept = [each for each in self._kept if each not in sets]
        self._withdrawn += sets

    def _of(self, images: ImageSet) -> frozenset[Path]:
        return self._files[images.path]

    def _parts(self, of: ImageSet, table: ImageTable) -> Iterator[ImageSet]:
        """The set; or folders, where most images of one class folder have several classes in the table, no others any.

        That is no folder of a class, then, and those beside it may be none; unless another set has the same classes.
        """
        labels = {(file.parent, table.labels[file]) for file in self._of(of) if file in table.labels}
        folder = min(labels)[0] if of.classes and len(labels) > 1 else None
        inside = [file for file in self._of(of) if file.parent == folder]
        others = [each for each in self._kept if each is not of and not set(each.classes).isdisjoint(of.classes)]
        named = sum(file in table.labels for file in inside)
        if folder is None or any(each != folder for each, _ in labels) or 2 * named <= len(inside) or others:
            yield of
            return
        self.remarks.append(
            f"{table.path}: has several classes of images of {of.path / folder.name}, so {of.path} is not taken for "
            "class folders; check"
        )
        for name in of.classes:
            files = tuple(file for file in of.files if file.parent == of.path / name)
            part = ImageSet(of.path / name, (), files, len(files))
            self._files[part.path] = self._images.files(part)
            yield part


def _is_called_ood(of: ImageSet) -> bool:
    """Whether somebody has said by the name of a folder that the network does not know its images."""
    return role_in_name(of.path.name) == "ood"


def _may_be_named(of: ImageSet, stems: frozenset[str]) -> bool:
    """Whether most images without classes are called as some that a table names without a folder."""
    if of.classes or role_in_name(of.path.name) is not None:
        return False
    return 2 * sum(file.stem in stems for file in of.files) > len(of.files)
