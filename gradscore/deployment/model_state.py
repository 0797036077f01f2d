"""Whether a model is still what it was: a program may have gone on with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ..models import Interface

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def memory_state(model: nn.Module) -> list[object]:
    """What changes where a program goes on with a model: its weights, what is frozen, and hooks.

    Of each tensor it has where it lies, how often it was written to, and its sum, since PyTorch does not count what is
    written through `.data`. Hooks of an interface come and go with every call and do not count.
    """
    tensors = [each for each in chain(model.parameters(), model.buffers()) if not each.is_meta]
    hooks = (hook for module in model.modules() for kind in _HOOKS for hook in getattr(module, kind).values())
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
        *(id(hook) for hook in hooks if getattr(hook, "__module__", "") != Interface.__module__),
    ]


@torch.no_grad()
def _sums(tensors: Sequence[Tensor]) -> Iterator[list[float]]:
    """Sums of tensors, device by device, so that an accelerator is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in tensors:
        parts = torch.view_as_real(each) if each.is_complex() else each
        is_coarse = parts.is_floating_point() and parts.element_size() < 4
        by_device.setdefault(each.device, []).append(parts.sum(dtype=torch.float32 if is_coarse else None))
    yield from (torch.stack(sums).tolist() for sums in by_device.values())
