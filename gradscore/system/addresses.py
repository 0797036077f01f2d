"""Addresses in object storage, told apart from paths: `s3://bucket/key`."""

from __future__ import annotations

import re
from pathlib import Path

_TEXT = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):(?:/(.*))?", re.DOTALL)
"""What `Path` makes of an address: one slash after the colon, or none where nothing follows."""


def is_address(given: str | Path) -> bool:
    """Whether this is an address rather than a path; a `Path` may be an address with one of its slashes lost.

    >>> is_address("s3://bucket/runs/a"), is_address(Path("s3://bucket/runs/a")), is_address("npz:/data/a.npz")
    (True, True, False)
    """
    return _parts(given) is not None


def as_address(given: str | Path) -> str:
    """An address with both slashes; anything else as it is.

    >>> as_address(Path("s3://bucket/runs/a"))
    's3://bucket/runs/a'
    """
    found = _parts(given)
    return str(given) if found is None else f"{found[1]}://{found[2] or ''}"


def _parts(given: str | Path) -> re.Match[str] | None:
    return _AS_PATH.fullmatch(str(given)) if isinstance(given, Path) else _TEXT.fullmatch(given)
