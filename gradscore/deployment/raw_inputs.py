"""Samples as a program has them: paths, images, rows of tables, texts and numbers; and the form that a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import (
    DECODING_ERRORS,
    Preprocessing,
    Raw,
    RawSample,
    as_pixels,
    channels_last,
    check_columns,
    dense_tensor,
    form,
    inputs_of,
    is_pixels,
    open_user_samples,
    refuse_masked,
)
from ..errors import DataError
from ..system import Inputs, each_input, rows_of, some

Given = str | Path | Image.Image | NDArray[np.uint8]
"""One image: a path, a PIL image, or pixels (H, W) or (H, W, C) uint8. A path may name several, as `score` takes it."""

Images = Tensor | NDArray[Any] | Mapping[str, Tensor | NDArray[Any]]


def raw_images(given: object, *, columns: Sequence[str] | None = None, takes: str | None = None) -> list[RawSample]:
    """The pixels of images, each with its path or its position as a name.

    Args:
        given: one or several.
        columns: names of the numbers that the model takes of a row of a table; None where they are not known.
        takes: see `SampleForm.takes`.

    Raises:
        DataError: something else, or a single path that is not there; one of several has its error instead of pixels,
            unless none of them is an image.
    """
    is_one = not isinstance(given, Sequence) or isinstance(given, str)
    several: Iterable[object] = [given] if is_one else given  # type: ignore[assignment]
    found: list[RawSample] = []
    others: list[DataError] = []
    for place, each in enumerate(several):
        if isinstance(each, str | Path):
            try:
                found += [image for source in open_user_samples([str(each)], columns=columns) for image in source]
            except DataError as error:
                said = f"{error}; a text or other sample itself comes with raw=True"
                if is_one:
                    raise DataError(said) from None
                found.append(RawSample(str(each), None, str(error) if takes is None else said))
        else:
            try:
                found.append(RawSample(str(place), _pixels(each, place, takes)))
            except DataError as error:
                others.append(error)
                found.append(RawSample(str(place), None, str(error)))
    if others and len(others) == len(found):
        raise others[0]
    return found


def raw_samples(given: object, *, floats: bool, columns: Sequence[str] | None) -> list[RawSample]:
    """Samples as the data of a bundle were before their preprocessing, each with its position as a name.

    Args:
        given: a table of numbers, rows of it as vectors; an array or tensor (N, ...) of numbers; a mapping of these by
            the keyword inputs or columns they are; a text; or a sequence of samples, each a text, numbers, a row with
            names, or a mapping of these.
        floats: the model takes floats, so that whole numbers (but for bytes, which images are of) become floats.
        columns: names of the numbers that the model takes, in its order, by which those of rows with names are found;
            columns that are merely numbered, in order, are taken by their positions. None where they are not known.

    Raises:
        DataError: something else, or a table without one of these columns.
    """
    found: list[Any]
    if isinstance(given, str):
        found = [given]
    elif isinstance(given, pd.DataFrame):
        found = list(_vectors(given, columns, "the table"))
    elif isinstance(given, Mapping):
        arrays = {str(name): _numbers(values, f"input '{name}'") for name, values in given.items()}
        inputs_of(arrays, name="raw", least=1)  # of as many samples each
        if columns is None:
            found = [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
        else:
            found = list(
                _vectors(pd.DataFrame({name: list(each) for name, each in arrays.items()}), columns, "the mapping")
            )
    elif isinstance(given, np.ndarray | Tensor):
        values = _numbers(given, "the array")
        if values.ndim < 2:
            raise DataError(
                f"raw: wanted samples (N, ...), got one array of shape {values.shape}; give [values] of one"
            )
        found = list(values)
    elif isinstance(given, Sequence):
        found = [_raw_sample(each, columns, f"sample {place}") for place, each in enumerate(given)]
    else:
        raise DataError(
            f"raw: wanted a table, an array (N, ...), a mapping of these, or a sequence of texts or numbers, got "
            f"{type(given).__name__}"
        )
    if floats:
        found = [
            each.astype(np.float32)
            if isinstance(each, np.ndarray) and each.dtype.kind in "iu" and each.dtype != np.uint8
            else each
            for each in found
        ]
    gaps = [_gap(each, columns) for each in found]
    return [
        RawSample(str(place), None if gap else each, gap)
        for place, (each, gap) in enumerate(zip(found, gaps, strict=True))
    ]


def as_texts(given: Any, columns: Sequence[str] | None) -> Any:
    """Texts in a column or an array as a list, empty for nothing; what are no texts stays as it is.

    Args:
        given: as `raw_samples` takes it, or a column, or an array of text.
        columns: the one of the texts in tables and rows with names; None where its name is not known.

    Raises:
        DataError: a table or row without this column, a table of several where its name is not known, or other values
            than texts.
    """
    if isinstance(given, pd.DataFrame) or (isinstance(given, Mapping) and columns is not None):
        given = pd.Series(_text_of(given, columns, "the table"), dtype=object)
    if isinstance(given, pd.Series) or (isinstance(given, np.ndarray) and given.ndim == 1):
        given = given.tolist()
    if not isinstance(given, list | tuple):
        return given
    found = []
    for place, each in enumerate(given):
        named = each._asdict() if hasattr(each, "_asdict") else each
        if columns is not None and isinstance(named, pd.Series | Mapping):
            named = _text_of(named, columns, f"sample {place}")
        if pd.api.types.is_scalar(named) and not isinstance(named, str):
            if not pd.isna(named):
                raise DataError(f"raw: wanted texts, got {type(named).__name__} in sample {place}")
            named = ""
        found.append(named)
    return found


def _text_of(given: Any, columns: Sequence[str] | None, where: str) -> Any:
    """What a table or a row has in the column of the texts: the only one where its name is not known."""
    keys = [*(given.index if isinstance(given, pd.Series) else given)]
    names = [str(name) for name in keys]
    if columns is None and len(names) != 1:
        raise DataError(
            f"raw: this bundle takes texts, and it is not known in which column of {where} ({some(names)}) they are; "
            "give that column alone, table[column]"
        )
    wanted = names[0] if columns is None else columns[0]
    if wanted not in names:
        raise DataError(
            f"raw: wanted the texts in column {wanted!r} of {where}, got {some(names)}; give the column that has them "
            "alone, table[column]"
        )
    if names.count(wanted) > 1:
        raise DataError(f"raw: {where}: column {wanted!r} is there twice; leave one of them out")
    return given[keys[names.index(wanted)]]


def _gap(values: Raw, columns: Sequence[str] | None) -> str:
    """The known column in which a row has a missing value or no finite number, or that a text is empty; else empty."""
    if isinstance(values, str) and not values.strip():
        return "an empty text" if columns is None else f"a missing value in column {columns[0]!r}"
    if columns is None or not isinstance(values, np.ndarray) or values.shape != (len(columns),):
        return ""
    place = next(iter(np.flatnonzero(~np.isfinite(values)).tolist()), None)
    if place is None:
        return ""
    got = "a missing value" if np.isnan(values[place]) else values[place]
    return f"{got} in column {columns[place]!r}, wanted a finite number"


def _raw_sample(sample: Any, columns: Sequence[str] | None, where: str) -> Raw:
    if isinstance(sample, str):
        return sample
    named = sample._asdict() if hasattr(sample, "_asdict") else sample
    if columns is not None and isinstance(named, pd.Series | Mapping):
        row = named.to_frame().T if isinstance(named, pd.Series) else pd.DataFrame([named])
        vector: Raw = _vectors(row, columns, where)[0]
        return vector
    if isinstance(sample, Mapping):
        return {str(name): _numbers(values, f"{where}, '{name}'") for name, values in sample.items()}
    return _numbers(sample, where)


def _vectors(table: pd.DataFrame, columns: Sequence[str] | None, where: str) -> NDArray[Any]:
    """The numbers of a table, (N, C) float32, NaN for missing values: those of known columns by their names."""
    names = [str(name) for name in table]
    is_numbered = pd.api.types.is_integer_dtype(table.columns) and table.columns.is_monotonic_increasing
    if columns is not None and not (is_numbered and not set(columns) & set(names)):
        check_columns(names, columns, where=f"raw: {where}")
        twice = next((name for name in columns if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"raw: {where}: column {twice!r} is there twice; leave one of them out")
        table = table.iloc[:, [names.index(name) for name in columns]]
    table = table.infer_objects()
    for name, kind in table.dtypes.items():
        if not (pd.api.types.is_any_real_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)):
            raise DataError(f"raw: wanted numbers in column {str(name)!r} of {where}, got {kind}")
    found = [column.to_numpy(np.float64, na_value=np.nan) for _, column in table.items()]
    return np.column_stack(found).astype(np.float32)


def _numbers(values: object, where: str) -> NDArray[Any]:
    """A tensor, an array, a column, or lists of numbers, as an array."""
    with suppress(ValueError):  # of rows of several lengths
        values = values if isinstance(values, Tensor) else np.asanyarray(values)
    found = dense_tensor(values, name="raw", argument=f" in {where}", least=0)
    return (found.float() if found.dtype == torch.bfloat16 else found).cpu().numpy()


def _pixels(image: object, place: int, takes: str | None) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        try:
            return as_pixels(image)
        except ValueError as error:
            raise DataError(f"images[{place}]: {error}; convert it to 'L' or 'RGB' as in training") from None
        except (*DECODING_ERRORS, AssertionError) as error:  # what was opened is decoded here; the last says closed
            raise DataError(f"images[{place}]: cannot be decoded: {error or 'the image is closed'}") from None
    if is_pixels(image):
        refuse_masked(image, what=f"images[{place}]: some pixels")
        return image if image.ndim == 3 else image[..., None]
    got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
    if takes is not None:
        raise DataError(
            f"samples: this bundle takes {takes}, got {got}; samples as its data had them "
            "before preprocessing come with raw=True"
        )
    raise DataError(
        f"images[{place}]: wanted a path, a PIL image, or pixels (H, W) or (H, W, C) uint8, got {got}; preprocessed "
        "images come as one tensor (N, C, H, W)"
    )


class SampleForm:
    """The form of the samples that a model takes.

    Args:
        example: samples (n, ...) that it takes, at least one; an attribute.
        preprocess: what makes samples of raw pixels.
        columns: names of the columns of a table whose rows are samples, if they are known.
    """

    def __init__(self, example: Inputs, preprocess: Preprocessing, columns: Sequence[str] | None) -> None:
        self.example, self._preprocess, self._columns = example, preprocess, columns
        self.shape = form_of(example)

    @property
    def takes(self) -> str | None:
        """What a call takes in place of images; None where it takes images."""
        if not isinstance(self.example, Tensor):
            return f"a mapping of arrays or tensors {', '.join(map(str, self.shape))}, (N, ...) each"
        return None if self.example.dim() == 4 else f"one array or tensor {(*'N', *self.shape)}".replace("'", "")

    @property
    def takes_texts(self) -> bool:
        """Whether samples are texts, of which the preprocessing of the bundle makes tokens."""
        parts = [self.example] if isinstance(self.example, Tensor) else [*self.example.values()]
        return self._preprocess.takes_text and not any(each.is_floating_point() for each in parts)

    @property
    def files(self) -> str:
        """Which files of rows it takes, as the end of a message; empty where the names of their columns are known."""
        if not isinstance(self.example, Tensor) or self.example.dim() != 2 or self._columns:
            return ""
        count = self.example.shape[1]
        return f"; give rows as the network takes them, a .csv of {count} columns of numbers or an .npz (N, {count})"

    def tensors(self, images: Images) -> Inputs:
        """What a program gives as a batch, as tensors; raw pixels are preprocessed."""
        found = inputs_of(images, name="samples", least=1)
        if not isinstance(found, Tensor) or self.takes is not None or found.dtype != torch.uint8 or found.ndim != 4:
            return found
        pixels = channels_last(found.cpu().numpy(), torch_first=True)
        prepared = [self._preprocess(np.ascontiguousarray(each)) for each in pixels]
        return torch.stack(prepared) if prepared else rows_of(self.example, slice(0))

    def as_taken(self, inputs: Inputs) -> Inputs:
        """A batch in the types that the model was run on; `DataError` for samples of another form."""
        example = self.example
        if isinstance(example, Tensor) and isinstance(inputs, Tensor):
            wanted = len(self.shape) + 1
            if inputs.ndim != wanted:
                shape = "(N, C, H, W)" if wanted == 4 else f"(N, {', '.join(map(str, self.shape))})"
                raise DataError(f"samples: wanted shape {shape}, got {tuple(inputs.shape)}")
            if not example.is_floating_point():
                return _whole(inputs, "samples").to(example.dtype)
            if not inputs.is_floating_point():
                kinds = "floats (preprocessed) or uint8 (raw pixels)"
                if self.takes is not None:
                    kinds = "floats, as the model takes them (others come with raw=True)"
                raise DataError(f"samples: wanted {kinds}, got {inputs.dtype}")
            return inputs
        if isinstance(example, Tensor) or isinstance(inputs, Tensor) or set(inputs) != set(example):
            raise DataError(f"samples: wanted {kind_of(example)}, got {kind_of(inputs)}{_lacking(inputs, example)}")
        return {
            name: (inputs[name] if each.is_floating_point() else _whole(inputs[name], name)).to(each.dtype)
            for name, each in example.items()
        }


def _lacking(inputs: Inputs, wanted: Inputs) -> str:
    """Which keyword inputs are not there, and how they are given; empty where none is lacking."""
    if isinstance(wanted, Tensor):
        return ""
    if isinstance(inputs, Tensor):
        return "; give a mapping of them, and in a file .npz an array under each of these names"
    lacking = [str(name) for name in wanted if name not in inputs]
    return f"; {some(lacking)} {'is' if len(lacking) == 1 else 'are'} lacking" if lacking else ""


def kind_of(inputs: Inputs) -> str:
    """What a batch is, in a message: one array, or several by name."""
    return "one array" if isinstance(inputs, Tensor) else f"keyword inputs {', '.join(map(str, inputs))}"


def form_of(batch: Inputs) -> tuple[object, ...]:
    """The form of each sample of a batch, which holds one at least."""
    return form(each_input(batch, lambda each: each[0]))


def _whole(values: Tensor, name: str) -> Tensor:
    """What the model takes as whole numbers, or truth values, which floats may hold as well."""
    if values.is_floating_point() and not bool((values.frac() == 0).all()):
        raise DataError(f"{name}: wanted whole numbers, as the model was run on, got fractions or NaN ({values.dtype})")
    return values
