"""Hashes of contents."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256(content: bytes) -> str:
    """The SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits; `OSError` if it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
