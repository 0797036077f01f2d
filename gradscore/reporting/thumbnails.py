"""Small images inside pages."""

from __future__ import annotations

import base64
import io

from PIL import Image

from ..data import Pixels

SIZE = 96
"""Thumbnails are no larger than this many pixels; smaller images stay as they are and are magnified by the page."""


def data_uri(pixels: Pixels) -> str:
    """A thumbnail of an image (H, W, C) uint8 as a PNG in a data URI."""
    grey = pixels.shape[2] != 3
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    image.thumbnail((SIZE, SIZE))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
