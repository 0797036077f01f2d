"""What a sample is, whatever it is called: hashes of its content, and signatures of images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from PIL import Image

from .sources import Raw, is_image

SIGNATURE_SIDE = 8
"""Cells of a signature along either side of the image."""


def content_hash(raw: Raw) -> str:
    """16 hexadecimal digits of the SHA-256 of a raw sample.

    Args:
        raw: an image (H, W, C) uint8 or numbers, of which shape and bytes count; several of these by name; or text.

    Returns:
        Equal for equal samples.
    """
    return hashlib.sha256(_bytes_of(raw)).hexdigest()[:16]


def signature_of(raw: Raw) -> bytes | None:
    """The mean colours of the 8 by 8 cells of an image, by which near-duplicates are found.

    It forgets noise of encoders and shifts by a pixel. It is stored with the features, so that nobody has to read the
    images again.

    Args:
        raw: an image (H, W, 1 or 3) uint8, or something else.

    Returns:
        192 bytes, row by row and RGB each; None of what is no image.
    """
    if not is_image(raw):
        return None
    image = Image.fromarray(np.ascontiguousarray(raw if raw.shape[2] == 3 else raw[..., 0]))
    return image.convert("RGB").resize((SIGNATURE_SIDE, SIGNATURE_SIDE), Image.Resampling.BOX).tobytes()


def _bytes_of(raw: Raw) -> bytes:
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogatepass")
    if isinstance(raw, Mapping):
        return b"".join(f"{name}=".encode() + _bytes_of(raw[name]) for name in sorted(raw))
    shape = ",".join(map(str, raw.shape)).encode()
    return shape + b":" + np.ascontiguousarray(raw).tobytes()
