"""Data that are no images, whose configurations are written by hand: which page shows how."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..data import open_user_images
from ..errors import ConfigError, GradscoreError
from ..system import some
from .folders import LARGEST, Found

PAGES = {
    "text": "docs/tutorial-text.md shows that of texts",
    "numbers": "docs/tutorial-tables.md shows that of a table of numbers",
    "others": "docs/data.md has one of every kind of data",
}


def refuse_other_data(found: Found, named: Collection[Path]) -> None:
    """Says where a configuration for what was found is explained.

    Args:
        found: no images, and perhaps a checkpoint beside which a table is no matter unless it was named.
        named: the places that were.

    Raises:
        ConfigError: there are tables, arrays or shards.
    """
    if not found.tables or (found.checkpoints and not set(found.tables) & set(named)):
        return
    names = some([str(path) for path in found.tables], shown=3)
    raise ConfigError(
        f"{names}: init looks at images, and there is none; write the configuration by hand: "
        f"{PAGES[_kind(found.tables[0])]}"
    )


def _kind(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            return "others"
        first = next(iter(open_user_images([str(path)])[0])).pixels
    except (GradscoreError, OSError, StopIteration):
        return "others"
    if isinstance(first, str):
        return "text"
    return "numbers" if getattr(first, "ndim", 0) == 1 else "others"
