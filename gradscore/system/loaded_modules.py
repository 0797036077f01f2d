"""Modules that are loaded, by the names of the packages they belong to."""

from __future__ import annotations

import sys
from collections.abc import Collection


def loaded(packages: Collection[str]) -> list[str]:
    """The names of packages that are loaded, and of the modules in them.

    Args:
        packages: names without a dot.
    """
    # Another thread may import something meanwhile: the copy is made at once.
    return [name for name in list(sys.modules) if name.partition(".")[0] in packages]


def forget(packages: Collection[str]) -> None:
    """Has packages loaded anew when they are imported next; see `loaded`."""
    for name in loaded(packages):
        sys.modules.pop(name, None)
