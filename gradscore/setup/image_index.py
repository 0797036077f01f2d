"""Which images lie where: what paths in tables are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .folders import ImageSet


class ImageIndex:
    """Which images lie in which folder, as they were found: no table has anybody look elsewhere.

    Args:
        sets: the images.
    """

    def __init__(self, sets: Iterable[ImageSet]) -> None:
        self._resolved: dict[Path, Path | None] = {}
        self._names: dict[Path, set[str]] = {}
        for file in (file for each in sets for file in each.files):
            folder = self._without_links(file.parent)
            if folder is not None:
                self._names.setdefault(folder, set()).add(file.name)
        self._called = frozenset[str]().union(*self._names.values())

    def find(self, path: Path, *, below: Path) -> Path | None:
        """An image by its path, with a folder without links; None if there is none below a folder without links."""
        folder = self._without_links(path.parent)
        if folder is None or not folder.is_relative_to(below) or path.name not in self._names.get(folder, ()):
            return None
        return folder / path.name

    def may_be(self, name: str) -> bool:
        """Whether any image is called as the last part of a path."""
        return name.rpartition("/")[2] in self._called

    def files(self, of: ImageSet) -> frozenset[Path]:
        """All images of a set by the same paths."""
        folders = ((self._without_links(file.parent), file.name) for file in of.files)
        return frozenset(folder / name for folder, name in folders if folder is not None)

    def folders_in(self, folder: Path) -> list[str]:
        """Names of the folders in a folder without links that have images in them, or below."""
        below = [each.relative_to(folder) for each in self._names if each != folder and each.is_relative_to(folder)]
        return sorted({each.parts[0] for each in below})

    def endings_below(self, folder: Path) -> list[str]:
        """The endings of images in a folder without links, and in those below."""
        names = (name for each, names in self._names.items() if each.is_relative_to(folder) for name in names)
        return sorted({f".{name.rpartition('.')[2]}" for name in names})

    def _without_links(self, folder: Path) -> Path | None:
        if folder not in self._resolved:  # few folders hold many files
            try:
                self._resolved[folder] = folder.resolve()
            except (OSError, ValueError, RuntimeError):  # too long, no path, links that go round
                self._resolved[folder] = None
        return self._resolved[folder]
