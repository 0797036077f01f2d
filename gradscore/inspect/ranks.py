"""Training on several processes: what each saw joins at the end of an epoch."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence

import torch
from torch import distributed

from .quantities.quantity import Quantity, every


def merge_ranks(quantities: Sequence[Quantity]) -> None:
    """Gives the quantities of every process what those of all processes saw, in the order of their ranks.

    Every process calls it with the same quantities at the same point, and has the same figures afterwards. Nothing
    happens where `torch.distributed` is not at work, or has one process.

    Args:
        quantities: are changed in place; their schedules and what they compare the next batch with stay their own.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return
    gathered: list[bytes | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, _packed(quantities))
    ranks = [_unpacked(packed) for packed in gathered if packed is not None]
    for place, mine in enumerate(quantities):
        first, *others = (rank[place] for rank in ranks)
        for other in others:
            first.merge(other)
        own = {name: vars(mine)[name] for name in _OWN if name in vars(mine)}
        vars(mine).update({**vars(first), **own})
        mine.join()


def writes() -> bool:
    """Whether this process writes files: where several train one model, the first one does."""
    return not distributed.is_available() or not distributed.is_initialized() or distributed.get_rank() == 0


_OWN = ("schedule", "_geometry", "_last", "_versions", "step", "joined")
"""What a process keeps for itself: functions that cannot be sent, large tensors that are of its own batches, and what
all have already."""


def _packed(quantities: Sequence[Quantity]) -> bytes:
    shells = []
    for quantity in quantities:
        quantity.value  # noqa: B018  fetches what waits on a device
        shell = copy.copy(quantity)
        vars(shell).update({name: None for name in _OWN if name in vars(shell)}, schedule=every(1))
        shells.append(shell)
    buffer = io.BytesIO()
    torch.save(shells, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> list[Quantity]:
    found: list[Quantity] = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=False)
    return found
