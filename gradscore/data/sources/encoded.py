"""Encoded images: files that lists name, and bytes in other files."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from .base import DECODING_ERRORS, Pixels, UnreadableImageError, as_pixels


def path_below(root: Path, folder: Path, name: str) -> Path:
    """The file that a list in a folder names, if it lies below a root.

    Whoever wrote the list should not choose which files are read.

    Args:
        root: no path leads out of it, be it through `..`, a link or from the root of the file system; resolved.
        folder: of the list; paths are relative to it.
        name: a path in the list.

    Raises:
        ValueError: it leads out, or is no path; the message begins after the name of the entry.
    """
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"is no path: {name!r}: {error}") from None
    if not path.is_relative_to(root):
        raise ValueError(f"is refused: {name!r} leads out of {root}")
    return path


def decoded(content: Path | bytes, *, name: str) -> Pixels:
    """The image in a file or in bytes.

    Raises:
        UnreadableImageError: there is none, or it is damaged.
    """
    try:
        if isinstance(content, Path) and content.exists() and not content.is_file():
            raise UnreadableImageError(f"{name} is no file")  # opening a pipe would wait for who writes to it
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return as_pixels(image)
    except DECODING_ERRORS as error:
        raise UnreadableImageError(f"{name} cannot be decoded: {error}") from error
