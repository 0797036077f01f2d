"""What goes into a model: one tensor, or keyword arguments, the samples along the first axis of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""A batch of N samples: (N, ...), or such tensors by the names of the arguments they are."""


def sample_count(inputs: Inputs) -> int:
    """N.

    Example:
        >>> sample_count({"input_ids": torch.ones(3, 8), "attention_mask": torch.ones(3, 8)})
        3
    """
    return len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values()), ()))


def each_input(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same inputs with every tensor changed: moved to a device, cut to some rows."""
    return change(inputs) if isinstance(inputs, Tensor) else {name: change(each) for name, each in inputs.items()}


def rows_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Some of the samples, by their places or a mask, which may lie on another device."""
    return each_input(inputs, lambda tensor: tensor[rows if isinstance(rows, slice) else rows.to(tensor.device)])


def described(inputs: Inputs) -> str:
    """Their shapes, for messages: of a sample, without N.

    Example:
        >>> described({"input_ids": torch.ones(3, 8)})
        'input_ids (8,)'
    """
    if isinstance(inputs, Tensor):
        return str(tuple(inputs.shape[1:]))
    return ", ".join(f"{name} {tuple(each.shape[1:])}" for name, each in inputs.items())


def finite_rows(inputs: Inputs) -> Tensor:
    """Which samples (N,) hold finite numbers alone.

    Example:
        >>> finite_rows({"tokens": torch.ones(2, 8), "length": torch.tensor([8.0, torch.inf])}).tolist()
        [True, False]
    """
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
    return torch.stack([each.isfinite().unsqueeze(1).flatten(1).all(1) for each in tensors]).all(0)
