"""Statistics of per-sample gradients, merged over blocks and over parameters in float64.

A block is reduced in its own precision with the fastest kernels there are, and only where that loses digits (a mean
far larger than the spread, squares that leave the range of float32) its samples are reduced once more in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import Node

from .. import kernels
from ..errors import ConfigError
from ..gradients import Convolved, Dense, Engine, Factored, PerSample, Sink, Tap
from .moments import Moments, Wanted, measure_exactly, on_host, scaled_norm

CACHE_ELEMENTS = 1 << 20
"""Elements of a block: small enough to stay in the cache between the reductions."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones."""

SMALL_ELEMENTS = 1 << 16
"""Blocks up to this size are reduced in float64 at once."""

SAFE = (1e-12, 1e12)
"""Euclidean norms in this range have squares that float32 holds."""

SAFE_DOUBLE = (1e-140, 1e140)
"""The same for float64."""


def measure(gradient: PerSample, wanted: Wanted) -> Moments:
    """Reduces per-sample gradients of one parameter, without ever holding those of more than a few samples.

    Args:
        gradient: the gradients.
        wanted: what to compute.

    Returns:
        Moments of all elements of every sample.
    """
    if isinstance(gradient, Factored) and gradient.is_outer_product:
        return _outer_product(gradient, wanted)
    elements = prod(gradient.shape)
    if not elements:
        return Moments.empty(len(gradient), wanted)
    if len(gradient) * elements <= SMALL_ELEMENTS:
        return measure_exactly(gradient.dense(slice(None)).flatten(1), wanted)
    sums = _Sums(wanted)
    if not sums.add_unwritten(gradient):
        for rows, block in gradient.blocks(CACHE_ELEMENTS if gradient.device.type == "cpu" else ACCELERATOR_ELEMENTS):
            if block.shape[-1]:
                sums.add(rows, block)
    found, doubtful = sums.moments(elements, gradient.implicit_zeros)
    for start in doubtful.nonzero()[0].tolist():
        row = slice(start, start + 1)
        better = measure_exactly(gradient.dense(row).flatten(1), wanted)
        found.mean[row], found.spread[row] = better.mean, better.spread
    return found


class _Sums:
    """Sums over the rows of blocks, joined in float64."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        passes = 2 * wanted.extrema + wanted.mean + wanted.spread + 2 * (1.0 in wanted.orders)
        self.fused = passes > 1
        self.single = False
        self.scratch: Tensor | None = None
        self.sums: dict[int, list[Tensor]] = {}
        self.norms: dict[float, dict[int, list[Tensor]]] = {order: {} for order in wanted.orders if order != 1}

    def add(self, rows: slice, block: Tensor) -> None:
        """Takes in a block, (n, p) or (parts, n, p)."""
        samples = rows.stop - rows.start
        values = block.reshape(-1, block.shape[-1])
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        self.single |= values.dtype == torch.float32
        fast = kernels.row_sums(values) if self.fused else None
        sums = self._row_sums(values) if fast is None else torch.from_numpy(fast)
        self.sums.setdefault(rows.start, []).append(sums.view(-1, samples, 5))
        for order, norms in self.norms.items():
            norm = scaled_norm(values.abs().double(), order)
            norms.setdefault(rows.start, []).append(norm.view(-1, samples, 1))

    def add_unwritten(self, gradient: PerSample) -> bool:
        """Takes in all of a gradient without writing it out; False where that is not possible."""
        if self.norms or not isinstance(gradient, Factored | Convolved):
            return False
        found = gradient.row_sums()
        if found is None:
            return False
        self.single = True
        self.sums[0] = [torch.from_numpy(found).view(len(gradient), -1, 5).transpose(0, 1)]
        return True

    def _row_sums(self, values: Tensor) -> Tensor:
        """As `kernels.row_sums`, with zeros for what is not wanted."""
        found = torch.zeros(len(values), 5, dtype=torch.float64, device=values.device)
        if self.wanted.extrema:
            found[:, 0], found[:, 1] = values.amax(1), values.amin(1)
        if self.wanted.mean:
            found[:, 2] = values.sum(1)
        if self.wanted.spread:
            found[:, 3] = torch.linalg.vector_norm(values, dim=1).double().square()
        if 1.0 in self.wanted.orders:
            if self.scratch is None or self.scratch.numel() < values.numel() or self.scratch.dtype != values.dtype:
                self.scratch = torch.empty_like(values).flatten()
            found[:, 4] = torch.abs(values, out=self.scratch[: values.numel()].view(values.shape)).sum(1)
        return found

    @np.errstate(all="ignore")
    def moments(self, elements: int, implicit_zeros: int) -> tuple[Moments, NDArray[np.bool_]]:
        """Moments of all blocks, and for which samples (N,) mean and spread have lost digits."""
        sums = on_host(_joined(self.sums))
        total, squares, magnitudes = (sums[0] if len(sums) == 1 else sums.sum(0)).T[2:]
        found = Moments.blank(len(total), elements, self.wanted)
        for order in self.wanted.orders:
            found.norms[order] = (
                magnitudes if order == 1 else on_host(scaled_norm(_joined(self.norms[order]).squeeze(2).t(), order))
            )
        doubtful = np.zeros(len(total), dtype=np.bool_)
        if self.wanted.extrema:
            found.maximum, found.minimum = sums[..., 0].max(0), sums[..., 1].min(0)
            if implicit_zeros:
                found.maximum, found.minimum = np.maximum(found.maximum, 0), np.minimum(found.minimum, 0)
        if self.wanted.mean:
            found.mean = total / elements
        if self.wanted.spread:
            about = squares - elements * found.mean**2
            found.spread = np.sqrt(np.maximum(about, 0))
            smallest, largest = SAFE if self.single else SAFE_DOUBLE
            doubtful = ~((about >= squares / 2) & (squares > smallest**2) & (squares < largest**2))
        return found, doubtful


def _joined(parts: dict[int, list[Tensor]]) -> Tensor:
    """The parts (k, n, c) of all slices of samples as (all k, N, c)."""
    return torch.cat([torch.cat(each) if len(each) > 1 else each[0] for each in parts.values()], 1)


@np.errstate(all="ignore")
def _outer_product(gradient: Factored, wanted: Wanted) -> Moments:
    """Moments of outer products in closed form, from the moments of the two vectors."""
    left = measure_exactly(gradient.left.flatten(1), wanted)
    right = measure_exactly(gradient.right.flatten(1), wanted)
    height, width = gradient.left.shape[2], gradient.right.shape[2]
    found = Moments.blank(len(gradient), height * width, wanted)
    if wanted.extrema:
        corners = np.stack([a * b for a in (left.maximum, left.minimum) for b in (right.maximum, right.minimum)])
        found.maximum, found.minimum = corners.max(0), corners.min(0)
    if wanted.mean:
        found.mean = left.mean * right.mean
    if wanted.spread:
        found.spread = left.spread * right.spread
        if wanted.mean:
            # Sum of squares of a b about its mean: every term is positive, so nothing cancels.
            found.spread = np.hypot(found.spread, left.spread * right.mean * sqrt(width))
            found.spread = np.hypot(found.spread, right.spread * left.mean * sqrt(height))
    for order in wanted.orders:
        found.norms[order] = left.norms[order] * right.norms[order]
    return found


def reduce_gradients(
    engine: Engine,
    outputs: Tensor,
    grad_outputs: Tensor,
    *,
    statistics: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    retain_graph: bool = False,
    sinks: Sequence[Sink] = (),
    taps: Mapping[Node, Tap] | None = None,
) -> dict[str, Tensor]:
    """Statistics of every sample's gradient, pooled over groups of parameters.

    Args:
        engine: knows the parameters.
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        statistics: names; see `norm_order`.
        groups: names of parameters by group; each element of a group counts once. A parameter may be in several.
        retain_graph: keep the graph for another call.
        sinks: take the gradients as well, in the same pass; see `Engine.stream`.
        taps: as for `Engine.stream`.

    Returns:
        `<group>/<statistic>` to (N,) float64 on the CPU, in the order of groups and statistics.

    Raises:
        ConfigError: no such statistic, or a group with an unknown parameter or none.
    """
    wanted = Wanted.by(statistics)
    members = _members(engine, groups)
    moments: dict[str, Moments] = {}
    owners: dict[str, list[str]] = {}
    for group, names in members.items():
        for name in names:
            owners.setdefault(name, []).append(group)
    reported: dict[str, int] = dict.fromkeys(owners, 0)

    def take(name: str, rows: slice, measured: Moments) -> None:
        reported[name] += len(measured.count)
        for group in owners[name]:
            if len(members[group]) == 1 and len(measured.count) == len(outputs):
                moments[group] = measured
                continue
            if group not in moments:
                moments[group] = Moments.empty(len(outputs), wanted)
            moments[group].merge(rows, measured)

    small: dict[int, dict[str, Tensor]] = {}

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        if name not in owners:
            pass
        elif (
            isinstance(gradient, Dense)
            and len(gradient) == len(outputs)  # a part at a time, a large one would end up whole
            and 0 < gradient.values.numel() <= SMALL_ELEMENTS
        ):
            values = gradient.values.flatten(1)
            small.setdefault(values.shape[1], {})[name] = values
        else:
            take(name, rows, measure(gradient, wanted))
        for other in sinks:
            other(name, rows, gradient)

    engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph, taps=taps)
    for several in small.values():  # of one size: biases and weights of norms, together
        measured = measure_exactly(torch.cat(list(several.values())), wanted)
        for place, name in enumerate(several):
            rows = slice(place * len(outputs), (place + 1) * len(outputs))
            take(name, slice(0, len(outputs)), measured.of(rows))
    for name, samples in reported.items():
        elements = engine.parameters[name].numel()
        if samples == 0 and elements:
            take(name, slice(0, len(outputs)), Moments.blank(len(outputs), elements, wanted))
    whole = Moments.stacked([moments[group] for group in groups])
    tables = {statistic: torch.from_numpy(whole.statistic(statistic)).unbind() for statistic in statistics}
    return {
        f"{group}/{statistic}": tables[statistic][place]
        for place, group in enumerate(groups)
        for statistic in statistics
    }


def _members(engine: Engine, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    members = {}
    for group, names in groups.items():
        unknown = [name for name in names if name not in engine.parameters]
        if unknown or not names:
            raise ConfigError(
                f"group {group!r} has {f'unknown parameters {unknown}' if unknown else 'no parameters'}; "
                f"the model has {len(engine.parameters)}: {', '.join(list(engine.parameters)[:5])}, ..."
            )
        members[group] = list(dict.fromkeys(names))
        if not sum(engine.parameters[name].numel() for name in members[group]):
            raise ConfigError(f"group {group!r} has no elements, so it has no statistics")
    return members
