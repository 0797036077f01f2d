"""Data sets of torchvision and scikit-learn."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError
from ...system import IntArray, import_torchvision
from .base import DECODING_ERRORS, ArraySource, Pixels, Request, UnreadableImageError, as_pixels


@dataclass(frozen=True)
class TorchvisionSource:
    """A torchvision data set.

    Attributes:
        dataset: returns (PIL image, label).
        ids: positions as text.
        labels: (N,) or None.
        class_names: of the labels, where the data set names them.
    """

    dataset: Any
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None = None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        try:
            return as_pixels(self.dataset[index][0])
        except DECODING_ERRORS as error:
            raise UnreadableImageError(f"image {index} cannot be decoded: {error}") from error

    def content(self) -> str:
        """See `ImageSource`: the data set's own description."""
        return repr(self.dataset)


def torchvision_source(request: Request) -> TorchvisionSource:
    """A data set of `torchvision.datasets`; nothing is downloaded unless the arguments say `download: true`."""
    name, arguments = request.name, request.arguments
    import_torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    if name not in datasets.__all__:
        close = difflib.get_close_matches(name, datasets.__all__, 3)
        raise DataError(
            f"torchvision has no data set {name!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    try:
        dataset = getattr(datasets, name)(**arguments)
    except (RuntimeError, OSError, TypeError, ValueError, ImportError) as error:
        raise DataError(f"torchvision:{name} with arguments {dict(arguments)} failed: {error}") from error
    targets = getattr(dataset, "targets", getattr(dataset, "labels", getattr(dataset, "_labels", None)))
    labels = None if targets is None else np.asarray(targets)
    if labels is not None and (labels.shape != (len(dataset),) or labels.dtype.kind not in "iu"):
        raise DataError(
            f"torchvision:{name} is not a set for classification: wanted {len(dataset)} integer labels, "
            f"got {labels.dtype} {labels.shape}"
        )
    ids = [str(index) for index in range(len(dataset))]
    names = getattr(dataset, "classes", None) if labels is not None else None
    return TorchvisionSource(dataset, ids, None if labels is None else labels.astype(np.int64), _names(names))


def _names(classes: Any) -> list[str] | None:
    """Names of classes, of which a data set may give several synonyms each."""
    if not isinstance(classes, list | tuple) or not classes:
        return None
    first = [name[0] if isinstance(name, list | tuple) and name else name for name in classes]
    return first if all(isinstance(name, str) for name in first) and len(set(first)) == len(first) else None


def sklearn_source(request: Request) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, values 0..16 stretched to 0..255."""
    from sklearn.datasets import load_digits

    if request.name != "digits":
        raise DataError(f"data source {request.source!r}: wanted sklearn:digits")

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(images, [str(index) for index in range(len(images))], digits.target.astype(np.int64))
