"""Data that are no images, whose configurations are written by hand: which page shows how."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..data import FILE_KINDS, number_columns, open_source, open_user_images
from ..errors import ConfigError, GradscoreError
from ..models import read_weights
from ..system import some
from .architectures import vector_width
from .folders import LARGEST, Found

PAGES = {
    "text": "docs/tutorial-text.md shows that of texts",
    "numbers": "docs/tutorial-tables.md shows that of a table of numbers",
    "others": "docs/data.md has one of every kind of data",
}


def refuse_other_data(found: Found, named: Collection[Path]) -> None:
    """Says where a configuration for what was found is explained.

    Args:
        found: no images of classes, and perhaps images such as plots or a checkpoint, beside which a table is no matter
            unless it was named or has as many numbers in a row as the network takes.
        named: the places that were.

    Raises:
        ConfigError: there are tables, arrays or shards.
        ModelError: the checkpoint cannot be read.
    """
    tables = [path for path in found.tables if path in set(named)]
    if found.sets or (found.checkpoints and not tables):
        tables = _taken(found)
    elif not tables:
        tables = list(found.tables)
    if not tables:
        return
    names = some([str(path) for path in tables], shown=3)
    none = "there is none with classes" if found.sets else "there is none"
    raise ConfigError(
        f"{names}: init looks at images, and {none}; write the configuration by hand: {PAGES[_kind(tables[0])]}"
    )


def _taken(found: Found) -> list[Path]:
    """The tables with as many numbers in a row as the network takes."""
    if not found.tables or not found.checkpoints:
        return []
    width = vector_width({name: tuple(each.shape) for name, each in read_weights(found.checkpoints[0]).items()})
    return [] if width is None else [path for path in found.tables if _width(path) == width]


def _width(path: Path) -> int:
    """How many columns of numbers a table has beside its classes and names; none where that is not known."""
    try:
        if path.stat().st_size > LARGEST:
            return 0
        return len(number_columns(open_source(f"{FILE_KINDS[path.suffix.lower()]}:{path}")))
    except (GradscoreError, OSError):
        return 0


def _kind(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            return "others"
        first = next(iter(open_user_images([str(path)])[0])).pixels
    except (GradscoreError, OSError, StopIteration):
        return "others"
    if isinstance(first, str):  # which a class is as well, of a row of numbers
        return "numbers" if " " not in first.strip() and _width(path) else "text"
    return "numbers" if getattr(first, "ndim", 0) == 1 else "others"
