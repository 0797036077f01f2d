"""Batches as a program makes them for a loss of its own: tensors in mappings, lists, tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..errors import DataError
from .content import content_hash
from .samples import Batch, Samples


def whole_batches(data: Any, *, name: str = "data", hashed: bool = True) -> Samples:
    """Batches that are left as they are, for a loss that calls the model itself.

    Args:
        data: an iterable of batches, each a tensor, or a container that holds some, samples along the first axis of
            the first. Names of samples are their numbers, labels are -1.
        name: what messages call them.
        hashed: whether anybody asks for hashes of their contents, which need a copy from an accelerator; else empty.
    """

    def read() -> Iterator[Batch]:
        done = 0
        for inputs in _each_batch(data):
            samples = count_samples(inputs)
            names = [str(place) for place in range(done, done + samples)]
            hashes = _content_hashes(inputs) if hashed else [""] * samples
            yield Batch(names, inputs, torch.full((samples,), -1), hashes)
            done += samples

    return Samples(name, None, read, is_read_once=isinstance(data, Iterator))


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch in order.

    Raises:
        DataError: a packed sequence, whose first axis is not that of samples.
    """
    if isinstance(batch, Tensor):
        yield batch
        return
    if isinstance(batch, PackedSequence):
        raise DataError(
            "data: wanted tensors with samples along the first axis, got a PackedSequence; give padded texts and their "
            "lengths, and pack them in the loss"
        )
    for each in _entries(batch).values():
        yield from tensors_in(each)


def with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch with every tensor changed, once each where several places share it.

    Containers keep their types; what is no container stays the same object.
    """
    changed: dict[int, Tensor] = {}

    def renewed(given: Any) -> Any:
        if isinstance(given, Tensor):
            if id(given) not in changed:
                changed[id(given)] = change(given)
            return changed[id(given)]
        entries = _entries(given)
        return _filled(given, {name: renewed(each) for name, each in entries.items()}) if entries else given

    return renewed(batch)


def _entries(batch: Any) -> dict[Any, Any]:
    """What a container holds, by key, position or name; nothing for what is none."""
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if isinstance(batch, list | tuple):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {}


def _filled(given: Any, entries: dict[Any, Any]) -> Any:
    """A container like one that is there, with other entries.

    Raises:
        DataError: its class does not allow it.
    """
    if isinstance(given, tuple):
        return _tuple(given, entries)
    if isinstance(given, Mapping) and not isinstance(given, MutableMapping):
        return entries
    try:
        found = copy.copy(given)
        for name, value in entries.items():
            if isinstance(given, MutableMapping | list):
                found[name] = value
            else:
                object.__setattr__(found, name, value)
    except Exception as error:  # the class is anyone's and may raise anything
        raise DataError(
            f"data: a {type(given).__name__} cannot be given other tensors ({type(error).__name__}: {error}); give "
            "batches as dictionaries, lists or tuples of tensors"
        ) from error
    return found


def _tuple(given: tuple[Any, ...], entries: dict[Any, Any]) -> Any:
    if all(entries[place] is each for place, each in enumerate(given)):
        return given
    return type(given)(*entries.values()) if hasattr(given, "_fields") else tuple(entries.values())


def count_samples(batch: Any) -> int:
    """The number of samples of a batch.

    Raises:
        DataError: it has none.
    """
    first = next(tensors_in(batch), None)
    samples = len(first) if first is not None and first.dim() else 0
    if not samples:
        got = type(batch).__name__ if first is None else f"shape {tuple(first.shape)}"
        raise DataError(f"data: wanted batches that are or hold tensors (N, ...) of one sample or more, got {got}")
    return samples


def _content_hashes(batch: Any) -> list[str]:
    """Hashes of the samples of a batch: of their rows of all tensors, and of tensors that they share."""
    samples = count_samples(batch)
    arrays = [_array(tensor) for tensor in tensors_in(batch)]
    rows = [array if len(array) == samples else np.broadcast_to(array, (samples, *array.shape)) for array in arrays]
    return [content_hash({str(place): each[sample] for place, each in enumerate(rows)}) for sample in range(samples)]


def _each_batch(batches: Iterable[Any]) -> Iterator[Any]:
    """All batches, one at least.

    Raises:
        DataError: there are none, or what was given is one batch.
    """
    if isinstance(batches, Tensor | Mapping | np.ndarray | str) or not isinstance(batches, Iterable):
        raise DataError(
            f"data: wanted batches for the loss to be called with (a DataLoader, a list), got "
            f"{type(batches).__name__}; give [batch] for a single one"
        )
    nothing = True
    for batch in batches:
        nothing = False
        yield batch
    if nothing:
        raise DataError(
            "data: wanted batches, got none (an iterator can be read only once: give a list or a DataLoader)"
        )


def _array(tensor: Tensor) -> NDArray[Any]:
    """At least one-dimensional, of a dtype that NumPy has."""
    here = tensor.detach().cpu()
    known = here.float() if here.dtype == torch.bfloat16 else here
    return np.atleast_1d(known.numpy())
