"""What a sample is, whatever it is called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from .sources import Raw


def content_hash(raw: Raw) -> str:
    """16 hexadecimal digits of the SHA-256 of a raw sample.

    Args:
        raw: an image (H, W, C) uint8 or numbers, of which shape and bytes count; several of these by name; or text.

    Returns:
        Equal for equal samples.
    """
    return hashlib.sha256(_bytes_of(raw)).hexdigest()[:16]


def _bytes_of(raw: Raw) -> bytes:
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogatepass")
    if isinstance(raw, Mapping):
        return b"".join(f"{name}=".encode() + _bytes_of(raw[name]) for name in sorted(raw))
    shape = ",".join(map(str, raw.shape)).encode()
    return shape + b":" + np.ascontiguousarray(raw).tobytes()
