"""What local copies are called in messages and files: the addresses that they are copies of."""

from __future__ import annotations

from pathlib import Path

from .cache import named_as_addresses

_ADDRESSES: dict[str, str] = {}
"""By folder; a folder is a copy of one address for ever."""


def call(folder: Path, address: str) -> None:
    """Has `called` name a folder by an address."""
    _ADDRESSES[str(folder)] = address


def is_copy(path: Path) -> bool:
    """Whether a file or folder is the local copy of what is at an address."""
    return called(str(path)) != str(path)


def called(text: str) -> str:
    """A message, or a path, in which local copies are called by their addresses."""
    for folder, address in _ADDRESSES.items():
        text = text.replace(folder, address)
    return named_as_addresses(text)
