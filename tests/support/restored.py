"""Folders that many tests change and all find as they were."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path


def restored(folder: Path, aside: Path) -> Iterator[Path]:
    """The folder, put back as it was afterwards, from a copy that is kept in another one; for fixtures."""
    shutil.copytree(folder, aside / "before")
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(aside / "before", folder)
