"""Image files in folders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...system import IntArray
from .base import IMAGE_SUFFIXES, Pixels, Request, as_texts, decoded


@dataclass(frozen=True)
class FileSource:
    """Image files below a folder.

    Attributes:
        root: the folder.
        paths: of the files, relative to it, as the system has them.
        ids: the same as text, what is no UTF-8 as escapes.
        labels: (N,) or None.
        class_names: of the labels: the names of the sub-folders.
    """

    root: Path
    paths: Sequence[str]
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None = None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        path = self.root / self.paths[index]
        return decoded(path, name=str(path))

    def content(self) -> str:
        """See `ImageSource`: sizes of the files."""
        sizes = [str((self.root / name).stat().st_size) for name in self.paths]
        return hashlib.sha256(" ".join(sizes).encode()).hexdigest()


def folder_source(request: Request) -> FileSource:
    """Image files in class sub-folders (classes in alphabetical order), or flat and without labels.

    A class is a folder right below the root; images of it lie in that folder at any depth.
    """
    root = Path(request.name)
    if not root.is_dir():
        raise DataError(f"data folder {root} {'is a file, wanted a folder' if root.exists() else 'does not exist'}")
    where = f"data folder {root}"
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    flat = _images_below(root, "*", root)
    if classes and flat:
        raise DataError(f"{where} holds both images ({flat[0]}, ...) and sub-folders ({classes[0]}, ...)")
    if not classes:
        return FileSource(root, _some(flat, root), as_texts(flat, where=where), None)
    found = [(path, label) for label, name in enumerate(classes) for path in _images_below(root / name, "**/*", root)]
    labels = np.array([label for _, label in found], dtype=np.int64)
    paths = _some([path for path, _ in found], root)
    return FileSource(root, paths, as_texts(paths, where=where), labels, as_texts(classes, where=where))


def _some(paths: list[str], root: Path) -> list[str]:
    if not paths:
        raise DataError(f"data folder {root} has no image in it: wanted files that end in {', '.join(IMAGE_SUFFIXES)}")
    return paths


def _images_below(folder: Path, pattern: str, root: Path) -> list[str]:
    files = [path for path in folder.glob(pattern) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return sorted(path.relative_to(root).as_posix() for path in files)
