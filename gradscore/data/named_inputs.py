"""A batch whose samples are several tensors by name, for models that take keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import overload

import torch
from torch import Tensor


class NamedInputs(Mapping[str, Tensor]):
    """Keyword inputs of N samples, which can be cut and moved as one tensor can.

    By names it is a mapping to tensors; by anything else it is indexed as a batch. Its length is the number of samples.

    Args:
        tensors: (N, ...) each, by the name of the argument of `forward`.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    @overload
    def __getitem__(self, key: str) -> Tensor: ...

    @overload
    def __getitem__(self, key: slice) -> NamedInputs: ...

    def __getitem__(self, key: str | slice) -> Tensor | NamedInputs:
        """The tensor of a name, or some of the samples."""
        return self._tensors[key] if isinstance(key, str) else self._each(lambda tensor: tensor[key])

    def rows(self, which: Tensor) -> NamedInputs:
        """The samples at which (N,) is true, or at these positions."""
        return self._each(lambda tensor: tensor[which])

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """The number of samples."""
        return len(next(iter(self._tensors.values())))

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._tensors

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The number of samples, and shapes by name, for messages."""
        return (len(self), *(f"{name} {tuple(tensor.shape[1:])}" for name, tensor in self._tensors.items()))

    def to(self, device: torch.device, *, non_blocking: bool = False) -> NamedInputs:
        """The same on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> NamedInputs:
        """The same where an accelerator can copy it from by itself."""
        return self._each(Tensor.pin_memory)

    def clone(self) -> NamedInputs:
        """A copy."""
        return self._each(Tensor.clone)

    def contiguous(self) -> NamedInputs:
        """The same, each tensor in one piece."""
        return self._each(Tensor.contiguous)

    def expand_as(self, other: NamedInputs) -> NamedInputs:
        """One sample, as often as `other` has samples."""
        return self._each(lambda tensor: tensor.expand(len(other), *tensor.shape[1:]))

    def isfinite(self) -> Tensor:
        """(N, 1): whether all numbers of a sample are finite."""
        found = [tensor.isfinite().flatten(1).all(1, keepdim=True) for tensor in self._tensors.values()]
        return torch.cat(found, dim=1).all(1, keepdim=True)

    def _each(self, change: Callable[[Tensor], Tensor]) -> NamedInputs:
        return NamedInputs({name: change(tensor) for name, tensor in self._tensors.items()})


ModelInputs = Tensor | NamedInputs
"""A batch as a model takes it."""


def stacked(samples: list[Tensor | Mapping[str, Tensor]]) -> ModelInputs:
    """One batch of samples of the same names and shapes."""
    first = samples[0]
    if isinstance(first, Tensor):
        return torch.stack([sample for sample in samples if isinstance(sample, Tensor)])
    named = [sample for sample in samples if not isinstance(sample, Tensor)]
    return NamedInputs({name: torch.stack([sample[name] for sample in named]) for name in first})


def form(sample: Tensor | Mapping[str, Tensor]) -> tuple[object, ...]:
    """What samples of one batch have in common: the shape, or names and shapes."""
    if isinstance(sample, Tensor):
        return tuple(sample.shape)
    return tuple(f"{name} {tuple(tensor.shape)}" for name, tensor in sample.items())
