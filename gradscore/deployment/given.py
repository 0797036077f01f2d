"""Samples as they are given in Python: paths, PIL images and arrays of pixels, or raw rows and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import Raw, RawImage, as_pixels, check_names, is_pixels, open_user_images
from ..errors import DataError

Values = NDArray[Any]
"""Numbers of a sample, or of samples (N, ...)."""

Given = str | Path | Image.Image | NDArray[np.uint8]
"""One image: a path, a PIL image, or pixels (H, W) or (H, W, C) uint8. A path may name several, as `score` takes it."""


def raw_images(given: object, *, columns: Sequence[str] | None = None) -> list[RawImage]:
    """The pixels of images, each with its path or its position as a name.

    Args:
        given: one or several.
        columns: names of the numbers that the model takes of a row of a table; None where they are not known.

    Raises:
        DataError: something else, or a single path that is not there; one of several has its error instead of pixels.
    """
    is_one = not isinstance(given, Sequence) or isinstance(given, str)
    several: Iterable[object] = [given] if is_one else given  # type: ignore[assignment]
    found: list[RawImage] = []
    for place, each in enumerate(several):
        if isinstance(each, str | Path):
            try:
                found += [image for source in open_user_images([str(each)], columns=columns) for image in source]
            except DataError as error:
                if is_one:
                    raise DataError(f"{error}; a text or other sample itself comes with raw=True") from None
                found.append(RawImage(str(each), None, str(error)))
        else:
            found.append(RawImage(str(place), _pixels(each, place)))
    return found


def raw_samples(given: object, *, floats: bool, columns: Sequence[str] | None = None) -> list[RawImage]:
    """Samples as the data of a bundle were before their preprocessing, each with its position as a name.

    Args:
        given: a table of numbers, rows of it as vectors; an array or tensor (N, ...) of numbers; a mapping of these by
            the keyword inputs they are; a text; or a sequence of samples, each a text, numbers, or a mapping of these.
        floats: the model takes floats, so that whole numbers (but for bytes, which images are of) become floats.
        columns: names of the numbers that the model takes, in its order, by which those of a table are found unless
            its columns are called by numbers; None where they are not known.

    Raises:
        DataError: something else, or a table without one of these columns.
    """
    if isinstance(given, str):
        return [RawImage("0", given)]
    if isinstance(given, pd.DataFrame):
        rows = given if columns is None else _known(given, columns)
        return _named(list(_numbers(rows.to_numpy(), "the table").astype(np.float32)))
    if isinstance(given, Mapping):
        arrays = {str(name): _numbers(values, f"input '{name}'") for name, values in given.items()}
        if not arrays or len({len(values) if values.ndim else -1 for values in arrays.values()}) != 1:
            raise DataError(f"raw: wanted keyword inputs of as many samples each, got {_forms(arrays)}")
        return _named([dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)])
    if isinstance(given, np.ndarray | Tensor):
        values = _numbers(given, "the array")
        if values.ndim < 2:
            raise DataError(
                f"raw: wanted samples (N, ...), got one array of shape {values.shape}; give [values] of one"
            )
        return _named([_as_floats(each) if floats else each for each in values])
    if not isinstance(given, Sequence):
        raise DataError(
            f"raw: wanted a table, an array (N, ...), a mapping of these, or a sequence of texts or numbers, got "
            f"{type(given).__name__}"
        )
    found = [_one(each, f"sample {place}") for place, each in enumerate(given)]
    return _named([_as_floats(each) if floats and isinstance(each, np.ndarray) else each for each in found])


def _known(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The columns that the model knows, in its order; those of a table that has no names are taken as they come."""
    if pd.api.types.is_integer_dtype(table.columns):
        return table
    check_names([str(name) for name in table], columns, where="raw: the table")
    return table[list(columns)]


def _named(samples: Sequence[Raw]) -> list[RawImage]:
    return [RawImage(str(place), each) for place, each in enumerate(samples)]


def _one(sample: object, where: str) -> Raw:
    if isinstance(sample, str):
        return sample
    if isinstance(sample, Mapping):
        return {str(name): _numbers(values, f"{where}, '{name}'") for name, values in sample.items()}
    found: Raw = _numbers(sample, where)
    return found


def _numbers(values: object, where: str) -> Values:
    try:
        found: Values = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError:
        found = np.asarray(None)
    if found.dtype.kind not in "fiub":
        raise DataError(f"raw: wanted numbers in {where}, got {type(values).__name__} of {found.dtype}")
    return found


def _as_floats(values: Values) -> Values:
    return values.astype(np.float32) if values.dtype.kind in "iu" and values.dtype != np.uint8 else values


def _forms(arrays: Mapping[str, Values]) -> str:
    return ", ".join(f"{name} {values.shape}" for name, values in arrays.items()) or "none"


def _pixels(image: object, place: int) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        try:
            return as_pixels(image)
        except ValueError as error:
            raise DataError(f"images[{place}]: {error}; convert it to 'L' or 'RGB' as in training") from None
    if is_pixels(image):
        return image if image.ndim == 3 else image[..., None]
    got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
    raise DataError(
        f"images[{place}]: wanted a path, a PIL image, or pixels (H, W) or (H, W, C) uint8, got {got}; preprocessed "
        "images come as one tensor (N, C, H, W)"
    )
