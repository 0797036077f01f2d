"""Handwritten digits that scikit-learn ships."""

from __future__ import annotations

import numpy as np

from ...errors import DataError
from .base import ArraySource, Request


def sklearn_source(request: Request) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, values 0..16 stretched to 0..255."""
    from sklearn.datasets import load_digits

    if request.name != "digits":
        raise DataError(f"data source {request.source!r}: wanted sklearn:digits")

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(images, [str(index) for index in range(len(images))], digits.target.astype(np.int64))
