"""Tensors in the containers that batches come in: mappings, lists, tuples, named tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..errors import DataError


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
