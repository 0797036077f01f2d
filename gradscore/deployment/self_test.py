"""Inputs whose answers a bundle notes: made up, so that they are no sample of anybody.

Floats are noise. Whole numbers have to be ones that the model takes: what it looks up in which table is watched while
it sees a few samples, and ids are drawn from all that the table holds, those of a column from the table of the column.
Where nothing is looked up, they are drawn from the ranges that the samples have. Masks are rows of ones of any length,
then zeros, or the other way round. Ids with a meaning for the model itself (padding, end of the text) stay where a
sample has them. The model then shows that it takes all of it, without looking up anything out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import ModelError
from ..extractor import Extractor
from ..system import FloatArray, Inputs

SELF_TEST_SAMPLES = 8
"""Inputs of a self-test: 1.2 MB of the bundle for 224 x 224 pixels in colour."""

REAL_VALUES = (
    "the self-test holds values of samples, which whoever has the bundle can read: the model takes no whole numbers "
    "that are made up"
)
"""What a user is told where nothing made up can be used."""

_aten = torch.ops.aten
_INDEXED = (_aten.index_select.default, _aten.gather.default, _aten.scatter.value, _aten.scatter_.value)
_MEANT = ("bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id")

Array = NDArray[Any]
Draw = Callable[[Array, Mapping[int | None, int], Generator], Array]

_IMAGES = "images"

TestInputs = NDArray[Any] | Mapping[str, NDArray[Any]]
"""Inputs of a self-test, or several by the names of the arguments they are."""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Noise and what the model makes of it, to see that it still does.

    Attributes:
        images: (n, C, H, W) uint8, of other samples (n, ...); the model sees bytes divided by 127.5, minus 1, and whole
            numbers or truth values as they are, and so are arrays by the names of the arguments they are.
        answers: (n, columns) float64.
    """

    images: TestInputs
    answers: FloatArray

    @property
    def samples(self) -> int:
        """How many images there are."""
        return min(map(len, self.images.values())) if isinstance(self.images, Mapping) else len(self.images)

    def members(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; see `of_members`."""
        images = self.images
        if not isinstance(images, Mapping):
            return {_IMAGES: images, "answers": self.answers}
        return {f"{_IMAGES}/{name}": each for name, each in images.items()} | {"answers": self.answers}

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[Any]]) -> SelfTest:
        """Reads back what `members` gave; `KeyError` if something is missing."""
        start = f"{_IMAGES}/"
        named = {name.removeprefix(start): each for name, each in members.items() if name.startswith(start)}
        return cls(images=named or members[_IMAGES], answers=members["answers"])


def self_test_of(samples: Inputs, extractor: Extractor) -> tuple[TestInputs, list[str]]:
    """What a self-test asks a model that takes such samples (n, ...), n at least 1.

    Args:
        samples: a few that the model takes.
        extractor: has the model.

    Returns:
        The inputs, bytes in place of floats; and what a user should know of them.
    """
    named = {"": samples} if isinstance(samples, Tensor) else dict(samples)
    known = {name: each.cpu().numpy() for name, each in named.items() if not each.is_floating_point()}
    noise = {
        name: np.random.default_rng(0).integers(0, 256, (SELF_TEST_SAMPLES, *each.shape[1:]), dtype=np.uint8)
        for name, each in named.items()
        if name not in known
    }
    if not known:
        return _as_given(samples, noise), []
    with _Watched(refuse=False) as watched:
        extractor.try_out(samples)
    vocabulary, meant = _vocabulary(extractor.model)
    for draw in (_of_tables, _of_ranges, _of_places):
        random = np.random.default_rng(0)
        drawn = {
            name: _masks(values, random) if _is_mask(values) else draw(values, watched.tables(values), random)
            for name, values in known.items()
        }
        texts = [name for name, values in known.items() if watched.tables(values).get(None) == vocabulary]
        drawn |= {name: _with_meant(drawn[name], known[name], meant) for name in texts}
        found = _as_given(samples, {**noise, **drawn})
        if _takes(extractor, found):
            return found, []
    real = {name: values[np.arange(SELF_TEST_SAMPLES) % len(values)] for name, values in known.items()}
    return _as_given(samples, {**noise, **real}), [REAL_VALUES]


def self_test_inputs(images: TestInputs) -> Inputs:
    """The model inputs (n, ...) of a self-test: bytes as float32 in -1 to 1, others as they are."""
    if isinstance(images, Mapping):
        return {name: _as_input(array) for name, array in images.items()}
    return _as_input(images)


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what a model looks up in tables by whole numbers.

    An index out of range is refused before it is looked up: on a GPU the process could not go on after it.
    """

    def __init__(self, *, refuse: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._refuse, self._seen = refuse, list[tuple[int, Array]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for size, indices in _lookups(func, args):
            values = indices.detach().cpu().numpy()
            least = -size if func is _aten.index.Tensor else 0
            if self._refuse and values.size and not (least <= values.min() and values.max() < size):
                raise IndexError(f"index out of range: {values.min()} to {values.max()} of {size}")
            self._seen.append((size, values))
        return func(*args, **(kwargs or {}))

    def tables(self, values: Array) -> dict[int | None, int]:
        """How many rows the tables have that such inputs (n, ...) were looked up in.

        By the place along the last axis, None for all of them; the smallest one where there are several.
        """
        parts = {None: values} | {place: values[..., place] for place in range(values.shape[-1]) if values.ndim > 1}
        found = {
            place: [
                size for size, seen in self._seen if seen.size == part.size and (seen.ravel() == part.ravel()).all()
            ]
            for place, part in parts.items()
        }
        return {place: min(sizes) for place, sizes in found.items() if sizes}


def _lookups(func: Any, args: Sequence[Any]) -> Iterator[tuple[int, Tensor]]:
    """The sizes of tables, and what is looked up in them, of an operation."""
    if func is _aten.embedding.default:
        yield args[0].shape[0], args[1]
    elif func is _aten.index.Tensor:
        yield from (
            (args[0].shape[place], each)
            for place, each in enumerate(args[1])
            if each is not None and each.dtype in (torch.int32, torch.int64)
        )
    elif func in _INDEXED and args[0].dim():
        yield args[0].shape[args[1]], args[2]


def _of_tables(values: Array, tables: Mapping[int | None, int], random: Generator) -> Array:
    """Of all that the tables hold; of numbers that are looked up in none, from 0 to the largest anywhere."""
    if None in tables:
        return _between(0, tables[None] - 1, values, random)
    high = np.full(values.shape[1:], int(values.max()))
    low = np.minimum(high, _least(values, values.min()))
    for place, size in tables.items():
        low[..., place], high[..., place] = 0, size - 1
    return _between(low, high, values, random)


def _of_ranges(values: Array, _tables: Mapping[int | None, int], random: Generator) -> Array:
    """From 0 to the largest at the same place: what tables of the categories of a column hold."""
    return _between(_least(values, values.min(axis=0)), values.max(axis=0), values, random)


def _of_places(values: Array, _tables: Mapping[int | None, int], random: Generator) -> Array:
    """From the smallest to the largest at the same place."""
    return _between(values.min(axis=0), values.max(axis=0), values, random)


def _least(values: Array, smallest: Any) -> Array:
    """Categories begin with 0, and single numbers, such as lengths, with 1."""
    return np.asarray(np.minimum(smallest, 0 if values.ndim > 1 else 1))


def _between(low: Any, high: Any, values: Array, random: Generator) -> Array:
    shape = (SELF_TEST_SAMPLES, *values.shape[1:])
    drawn = random.integers(np.asarray(low, np.int64), np.asarray(high, np.int64), shape, endpoint=True)
    return np.asarray(drawn.astype(values.dtype))


def _is_mask(values: Array) -> bool:
    """Whether every row is ones, then zeros, or every row the other way round, and none is empty."""
    if values.ndim != 2 or values.shape[1] < 2 or not np.isin(values, (0, 1)).all() or not values.any(axis=1).all():
        return False
    steps = np.diff(values.astype(np.int64), axis=1)
    return bool((steps <= 0).all() or (steps >= 0).all())


def _masks(values: Array, random: Generator) -> Array:
    length = values.shape[1]
    ones = random.integers(1, length, (SELF_TEST_SAMPLES, 1), endpoint=True)
    starts = (np.diff(values.astype(np.int64), axis=1) <= 0).all()
    places = np.arange(length) if starts else np.arange(length)[::-1]
    return np.asarray((places < ones).astype(values.dtype))


def _vocabulary(model: nn.Module) -> tuple[int, list[int]]:
    """How many ids of texts a model knows, -1 if it does not say, and which have a meaning for the model itself."""
    config = getattr(model, "config", None)
    found = [getattr(config, name, None) for name in _MEANT]
    single = [each for entry in found for each in (entry if isinstance(entry, list) else [entry])]
    count = getattr(config, "vocab_size", None)
    return count if isinstance(count, int) else -1, [each for each in single if isinstance(each, int)]


def _with_meant(drawn: Array, values: Array, meant: list[int]) -> Array:
    """Ids with a meaning where samples have them, and nowhere else."""
    rows = values[np.arange(len(drawn)) % len(values)]
    plain = np.setdiff1d(drawn, meant)
    return (
        np.where(np.isin(rows, meant), rows, np.where(np.isin(drawn, meant), plain[:1], drawn)) if len(plain) else drawn
    )


def _takes(extractor: Extractor, images: TestInputs) -> bool:
    """Whether a model answers, all with finite numbers, and looks up nothing that is out of range."""
    inputs = self_test_inputs(images)
    try:
        with _Watched(refuse=True):
            extractor.try_out(inputs)
        return bool(np.isfinite(extractor.forward_values(inputs)).all())
    except (ModelError, IndexError):
        return False


def _as_given(samples: Inputs, found: Mapping[str, Array]) -> TestInputs:
    return found[""] if isinstance(samples, Tensor) else {name: found[name] for name in samples}


def _as_input(array: Array) -> Tensor:
    found = torch.from_numpy(array.copy())
    return found.float() / 127.5 - 1.0 if found.dtype == torch.uint8 else found
