"""What tells graphs apart that have the same nodes and shapes, and in which samples may lie otherwise.

Two things do: settings of nodes, such as the axis that a mean runs over, and numbers that say which rows go where, such
as the order in which a network sorts its samples. The first are part of the code, the second of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

SETTINGS = (
    "batch_first", "dim", "dim0", "dim1", "dimension", "dims", "index", "k", "offset", "shifts", "split_size",
    "split_sizes", "start", "step",
)  # fmt: skip
"""Whole numbers that nodes save, none of which depends on the number of samples where these are not cut apart."""

INDICES = {
    "GatherBackward0": "index",
    "IndexAddBackward0": "index",
    "IndexBackward0": "indices",
    "IndexCopyBackward0": "index",
    "IndexPutBackward0": "indices",
    "IndexSelectBackward0": "index",
    "MaskedScatterBackward0": "mask",
    "MaskedSelectBackward0": "mask",
    "ScatterAddBackward0": "index",
    "ScatterBackward0": "index",
    "SortBackward0": "indices",
    "TakeBackward0": "index",
    "TopkBackward0": "indices",
}
"""Nodes that move rows to where numbers say, and where these are saved."""

ALONG_AN_AXIS = (
    "GatherBackward0", "ScatterAddBackward0", "ScatterBackward0", "SortBackward0", "TopkBackward0",
)  # fmt: skip
"""Those that move elements along one axis: samples only if they lie there."""

_settings: dict[str, tuple[str, ...]] = {}
"""Which of `SETTINGS` the nodes of a kind have."""


def settings_of(node: Node, kind: str) -> list[object]:
    """The settings of a node that plans depend on.

    Args:
        node: the node.
        kind: its name.
    """
    if kind not in _settings:
        _settings[kind] = tuple(
            f"_saved_{name}" for name in SETTINGS if hasattr(type(node), f"_saved_{name}") and INDICES.get(kind) != name
        )
    return [getattr(node, name) for name in _settings[kind]]


def rows_moved(nodes: Sequence[tuple[Node, str]], samples: int) -> tuple[object, ...]:
    """What numbers say of where rows go, equal for batches in which they go alike.

    Args:
        nodes: those of `INDICES`, and their names, in a fixed order.
        samples: N.

    Returns:
        One entry for each node: hashes, but where one of its indices is that of all samples in their order, however
        many these are, its place alone.
    """
    indices = [_indices(node, kind, samples) for node, kind in nodes]
    several = iter(_on_the_host([each for some in indices for each in some]))
    found: list[object] = []
    for some in indices:
        here = [next(several) for _ in some]
        # x[lengths - 1, arange(N)] takes another row of each sample, and each sample keeps its place.
        stay = tuple(_is_in_order(each, samples) for each in here)
        found.append(stay if any(stay) else tuple(hash((each.shape, each.numpy().tobytes())) for each in here))
    return tuple(found)


def _indices(node: Node, kind: str, samples: int) -> list[Tensor]:
    """The numbers that say where rows go, none where they cannot move samples."""
    if kind in ALONG_AN_AXIS and not _may_move_samples(node, samples):
        return []
    try:
        saved = getattr(node, f"_saved_{INDICES[kind]}")
    except RuntimeError:  # changed in place since, or recomputed: what looks it up says so
        return []
    entries = saved if isinstance(saved, tuple | list) else (saved,)
    return [each.detach() for each in entries if isinstance(each, Tensor)]


def _is_in_order(numbers: Tensor, samples: int) -> bool:
    """Whether these are the places of all samples, one after the other; a mask says nothing of the kind."""
    whole = numbers.numel() == samples and numbers.dtype != torch.bool
    return whole and torch.equal(numbers.flatten().to(torch.int64), torch.arange(samples))


def _may_move_samples(node: Node, samples: int) -> bool:
    """Whether the axis along which a node moves elements may be that of the samples.

    It is not where it is the last of several that others precede, as classes and features lie, unless only a last axis
    is left for the samples.
    """
    shape = [int(size) for size in node._input_metadata[0].shape]
    dim = int(getattr(node, "_saved_dim", 0))
    dim -= dim >> 63 << 64  # saved without a sign: the last axis is that of the largest number
    dim %= max(1, len(shape))
    return dim == 0 or dim < len(shape) - 1 or not any(size % samples == 0 for size in shape[:-1])


def _on_the_host(several: Sequence[Tensor]) -> list[Tensor]:
    """Whole numbers in memory; those of an accelerator by one copy."""
    away = [each for each in several if each.device.type != "cpu"]
    if not away:
        return [each.contiguous() for each in several]
    whole = torch.cat([each.flatten().to(torch.int64) for each in away]).cpu()
    found, start = [], 0
    for each in several:
        if each.device.type == "cpu":
            found.append(each.contiguous())
        else:
            found.append(whole[start : start + each.numel()].view(each.shape))
            start += each.numel()
    return found
