"""Data sets of torchvision and scikit-learn, and whatever a function of the user's returns."""

from __future__ import annotations

import hashlib
import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ...errors import DataError, GradscoreError
from ...models import code_sha256, load_function
from ...system import IntArray, closest, import_torchvision
from .raw_samples import (
    DECODING_ERRORS,
    LABEL_NAMES,
    ArraySource,
    Raw,
    Request,
    UnreadableSampleError,
    Values,
    as_labels,
    as_pixels,
    channels_last,
)

MOST = 10**8
"""Samples that an iterable may give; one without an end would fill the memory."""


FAILURES = (Exception, SystemExit)
"""Errors of data sets, which are anyone's code; sys.exit there must not end the program as if all was well."""


@dataclass(frozen=True)
class PythonSource:
    """A data set in Python.

    Attributes:
        samples: by position, with or without labels.
        ids: positions as text.
        labels: (N,) or None.
        class_names: of the labels, or None.
        description: tells whether the samples changed.
        where: names the data set in messages.
    """

    samples: Any
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None
    description: str
    where: str

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        name = f"sample {index} of {self.where}"
        try:
            return as_raw(_parted(self.samples[index])[0])
        except GradscoreError as error:
            raise UnreadableSampleError(f"{name}: {error}") from None
        except DECODING_ERRORS as error:
            raise UnreadableSampleError(f"{name} cannot be decoded: {error}") from error
        except FAILURES as error:
            raise UnreadableSampleError(f"{name} failed: {type(error).__name__}: {error}") from error

    def content(self) -> str:
        """See `SampleSource`."""
        return self.description


def code_source(request: Request) -> PythonSource:
    """Source of the data set that `function(**arguments)` in a Python file or module returns.

    A sample is x, (x, y) or a mapping, in which `label` or another of `LABEL_NAMES` is its class. x is a PIL image, an
    array or tensor (bytes (H, W, C) or (C, H, W) are images), text, or a mapping of arrays, which are keyword arguments
    of the model. Labels are whole numbers or names; `targets` and `classes` of a data set spare reading every sample
    for them. An iterable is read once, into memory.

    Raises:
        DataError: it returns something else.
        ModelError: the code is not trusted, or fails when it is imported.
    """
    function = load_function(request.name, request.arguments, setting="data source")
    try:
        found = function(**request.arguments)
        samples = _indexed(found, request.source)
        count = len(samples)
        targets = getattr(found, "targets", None)
        labels = list(targets) if targets is not None else [_label_at(samples, place) for place in range(count)]
    except GradscoreError:
        raise
    except FAILURES as error:
        raise DataError(
            f"{request.source} with arguments {dict(request.arguments)} failed: {type(error).__name__}: {error}"
        ) from error
    if not count:
        raise DataError(f"{request.source} has no sample")
    if len(labels) != count:
        raise DataError(f"{request.source}: wanted {count} targets, one for each sample, got {len(labels)}")
    classes = getattr(found, "classes", None)
    is_named = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
    numbers, names = as_labels(labels, where=request.source, names=classes if is_named else None)
    is_labelled = any(label is not None for label in labels)
    made_by = f"{code_sha256(request.source)} {sorted(request.arguments.items())} {count}"
    return PythonSource(
        samples=samples,
        ids=[str(place) for place in range(count)],
        labels=numbers if is_labelled else None,
        class_names=names if is_labelled else None,
        description=hashlib.sha256(made_by.encode()).hexdigest(),
        where=request.source,
    )


def as_raw(value: Any) -> Raw:
    """A sample as sources have it.

    Raises:
        DataError: it is no image, array, tensor, text, or mapping of arrays.
    """
    if isinstance(value, Image.Image):
        return as_pixels(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _numbers(each) for name, each in value.items()}
    array = _numbers(value)
    return channels_last(array[None])[0] if array.ndim > 1 else array


def _parted(sample: Any) -> tuple[Any, Any]:
    """Inputs of a sample, and its label; None without."""
    if isinstance(sample, Mapping):
        label = next((name for name in LABEL_NAMES if name in sample), None)
        rest = {name: value for name, value in sample.items() if name != label}
        alone = next(iter(rest.values())) if len(rest) == 1 else None
        return (rest if alone is None else alone), None if label is None else sample[label]
    if isinstance(sample, tuple | list) and len(sample) in (1, 2):
        return sample[0], sample[1] if len(sample) == 2 else None
    return sample, None


def _label_at(samples: Any, place: int) -> Any:
    """The label of a sample; None where it cannot be had, since `PythonSource.sample` says why."""
    try:
        return _parted(samples[place])[1]
    except FAILURES:
        return None


def _indexed(found: Any, source: str) -> Any:
    """Data set that can be indexed and has a length: itself, or all that an iterable gives."""
    is_sequence = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    if is_sequence and not isinstance(found, str | bytes | Mapping):
        return found
    if is_sequence or not isinstance(found, Iterable):
        raise DataError(f"{source} returned {type(found).__name__}, wanted a Dataset or an iterable of samples")
    samples = list(itertools.islice(iter(found), MOST + 1))
    if len(samples) > MOST:
        raise DataError(f"{source} gives more than {MOST} samples; let it end")
    return samples


def _numbers(value: Any) -> Values:
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise DataError(f"wanted an image, numbers or text, got {type(value).__name__}")
    return array


def torchvision_source(request: Request) -> PythonSource:
    """A data set of `torchvision.datasets`; nothing is downloaded unless the arguments say `download: true`."""
    name, arguments = request.name, request.arguments
    import_torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    if name not in datasets.__all__:
        raise DataError(f"torchvision has no data set {name!r}; {closest(name, datasets.__all__)}")
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
    names = getattr(dataset, "classes", None) if labels is not None else None
    return PythonSource(
        samples=dataset,
        ids=[str(index) for index in range(len(dataset))],
        labels=None if labels is None else labels.astype(np.int64),
        class_names=_names(names) if isinstance(names, list | tuple) and names else None,
        description=repr(dataset),
        where=request.source,
    )


def _names(classes: Sequence[Any]) -> list[str] | None:
    """Names of classes, of which a data set may give several synonyms each."""
    first = [name[0] if isinstance(name, list | tuple) and name else name for name in classes]
    return first if all(isinstance(name, str) for name in first) and len(set(first)) == len(first) else None


def sklearn_source(request: Request) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, values 0..16 stretched to 0..255."""
    if request.name != "digits":
        raise DataError(f"data source {request.source!r}: wanted sklearn:digits")

    images, labels = _digits()
    return ArraySource(images.copy(), [str(index) for index in range(len(images))], labels.copy())


@cache  # every split opens them, and they are a compressed table of text
def _digits() -> tuple[NDArray[np.uint8], IntArray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    return images, digits.target.astype(np.int64)
