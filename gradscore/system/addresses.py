"""Addresses in object storage, told apart from paths: `s3://bucket/key`."""

from __future__ import annotations

import re
from pathlib import Path

_TEXT = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):(?:/(.*))?", re.DOTALL)
"""What `Path` makes of an address: one slash after the colon, or none where nothing follows."""

_MEANT = re.compile(r"(s3a?|gc?s|az|abfss?|file):(/*)(.*)", re.DOTALL | re.IGNORECASE)
"""What is meant as an address, however it is written."""


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


def address_problem(written: str) -> str:
    """What keeps a text that is meant as an address from being one, and what to give; empty for all other texts.

    A `Path` made of the text no longer shows it.

    >>> address_problem("s3:/bucket/a")
    's3:/bucket/a: an address has two slashes after the colon; give s3://bucket/a'
    >>> address_problem("s3://bucket/a"), address_problem("npz:/data/a.npz")
    ('', '')
    """
    found = _MEANT.fullmatch(written)
    if found is None:
        return ""
    kind, slashes, rest = found.groups()
    if kind.lower() == "file":
        path = f"{slashes.removeprefix('//')}{rest}"
        return f"{written}: a file of this machine is named by its path alone; give {path}" if slashes else ""
    wrong = (
        "an address has two slashes after the colon" if slashes != "//"
        else "the kind of storage is written in small letters" if kind != kind.lower()
        else "a part of the key is empty, which no path can have" if "//" in rest.rstrip("/")
        else ""
    )  # fmt: skip
    right = f"{kind.lower()}://{re.sub('/+', '/', rest)}"
    return f"{written}: {wrong}; give {right}" if wrong else ""


def _parts(given: str | Path) -> re.Match[str] | None:
    return _AS_PATH.fullmatch(str(given)) if isinstance(given, Path) else _TEXT.fullmatch(given)
