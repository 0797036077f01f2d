"""Copies of a model for several forward passes at once, in threads, and how much such a pass computes.

Networks keep things while they run: a feature map in an attribute, skips in a list, a scratch buffer, weights that are
exchanged for a while. Nobody can tell from outside whether two passes of one network may run at once, so each thread
has a copy of its own, weights included. What lies outside of the network is shared after all: of that, random numbers
and hooks are looked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import TorchDispatchMode

from .interface import Interface
from .layers import first_tensor

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True, kw_only=True)
class ForwardLook:
    """One forward pass.

    Attributes:
        random: it uses random numbers of PyTorch's.
        products: of a weight with a value, for each sample.
        weights: elements of all weight matrices and kernels that were used.
        layers: calls of modules with such weights.
    """

    random: bool
    products: float
    weights: int
    layers: int


def look_at_forward(model: nn.Module, forward: Callable[[], Tensor]) -> ForwardLook:
    """Runs a model once and counts; no hook stays on it.

    Args:
        model: what runs.
        forward: runs it and returns its outputs (n, ...).
    """
    used: list[tuple[Tensor, int]] = []

    def leave(module: nn.Module, _inputs: object, output: Any) -> None:
        found = first_tensor(output)
        values = 0 if found is None else found.numel()
        used.extend((weight, values) for weight in module._parameters.values() if weight is not None)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(leave).remove)
        operations = stack.enter_context(_Operations())
        samples = max(1, len(forward()))
    matrices = [(weight, values / samples / len(weight)) for weight, values in used if weight.dim() > 1 and len(weight)]
    return ForwardLook(
        random=operations.random,
        products=sum(weight.numel() * places for weight, places in matrices),
        weights=sum({id(weight): weight.numel() for weight, _ in matrices}.values()),
        layers=len(matrices),
    )


def copy_of(model: nn.Module) -> nn.Module:
    """A copy that shares nothing with a model but what lies outside of both; models may refuse with any exception.

    Raises:
        TypeError: a weight is computed from others (`torch.nn.utils.parametrize`), whose cache all networks share.
    """
    if any(map(is_parametrized, model.modules())):
        raise TypeError("a parametrized weight")
    return copy.deepcopy(model)


def is_hooked(model: nn.Module) -> bool:
    """Whether anybody looks on when the model runs; an interface does not count."""
    everywhere = (each for name in HOOKS for each in getattr(all_modules, f"_global{name}").values())
    hooks = (hook for module in model.modules() for kind in HOOKS for hook in getattr(module, kind).values())
    return any(getattr(hook, "__module__", "") != Interface.__module__ for hook in chain(everywhere, hooks))


def memory_state(model: nn.Module) -> list[object]:
    """What changes with the weights: where each tensor lies, how often it was written to, its sum, and what is frozen.

    PyTorch does not count what is written through `.data`, which the sums show.
    """
    tensors = [each for each in chain(model.parameters(), model.buffers()) if not each.is_meta]
    return [
        *(
            (
                each.data_ptr() if each.layout == torch.strided else None,
                None if each.is_inference() else each._version,
                each.requires_grad,
            )
            for each in tensors
        ),
        *_sums(tensors),
    ]


@torch.no_grad()
def _sums(tensors: Sequence[Tensor]) -> Iterator[list[float]]:
    """Sums of tensors, device by device, so that an accelerator is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in tensors:
        parts = torch.view_as_real(each) if each.is_complex() else each
        by_device.setdefault(each.device, []).append(parts.sum())
    yield from (torch.stack(sums).tolist() for sums in by_device.values())


def memory_size(model: nn.Module) -> int:
    """Bytes of the weights and buffers of a model."""
    return sum(each.numel() * each.element_size() for each in chain(model.parameters(), model.buffers()))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether random numbers are drawn, in this thread and while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
