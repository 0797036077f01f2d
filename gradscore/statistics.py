"""Statistics of per-sample gradients, merged over blocks and over parameters in float64.

A block is reduced in its own precision with the fastest kernels there are, and only where that loses digits (a mean
far larger than the spread, squares that leave the range of float32) its samples are reduced once more in float64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor

from .errors import ConfigError
from .gradients import Engine, PerSample
from .gradients.factored import Factored

NAMED = ("max", "min", "mean", "std")

CACHE_ELEMENTS = 1 << 20
"""Elements of a block: small enough to stay in the cache between the reductions."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones."""

SMALL_ELEMENTS = 1 << 14
"""Blocks up to this size are reduced in float64 at once."""

SAFE = (1e-12, 1e12)
"""Euclidean norms in this range have squares that float32 holds."""

SAFE_DOUBLE = (1e-140, 1e140)
"""The same for float64."""


def norm_order(statistic: str) -> float | None:
    """The p of a p-norm by its name (`l1`, `l2`, `linf`, `l0.5`), None for `max`, `min`, `mean` and `std`.

    Args:
        statistic: the name.

    Returns:
        p, or None.

    Raises:
        ConfigError: no such statistic.

    Example:
        >>> norm_order("l0.5"), norm_order("linf"), norm_order("mean")
        (0.5, inf, None)
    """
    if statistic in NAMED:
        return None
    match = re.fullmatch(r"l(inf|\d+(?:\.\d+)?)", statistic)
    order = float(match.group(1)) if match else 0.0
    if order <= 0:
        raise ConfigError(
            f"no statistic {statistic!r}: use {', '.join(NAMED)}, or a p-norm such as l1, l2, linf, l0.5 (p above 0)"
        )
    return order


@dataclass(frozen=True)
class Wanted:
    """What has to be computed for some statistics.

    Attributes:
        extrema: largest and smallest element.
        mean: mean of the elements.
        spread: root of the sum of squares.
        orders: the p of further p-norms.
    """

    extrema: bool
    mean: bool
    spread: bool
    orders: tuple[float, ...]

    @classmethod
    def by(cls, statistics: Sequence[str]) -> Wanted:
        """What these statistics need.

        Args:
            statistics: names; see `norm_order`.

        Returns:
            The union over all of them.
        """
        orders = {order for order in map(norm_order, statistics) if order is not None and order not in (2.0, inf)}
        names = set(statistics)
        return cls(
            bool(names & {"max", "min", "linf"}),
            bool(names & {"mean", "std"}),
            bool(names & {"std", "l2"}),
            tuple(sorted(orders)),
        )


@dataclass
class Moments:
    """Statistics of the elements of each sample's gradient, in a form that can be merged.

    Attributes:
        wanted: which of the attributes below are kept.
        count: number of elements of each sample.
        maximum: (N,) float64, -inf for no elements.
        minimum: (N,) float64, inf for no elements.
        mean: (N,) float64.
        spread: (N,) float64: root of the sum of squared deviations from the mean, or from zero if no mean is kept.
        norms: (N,) float64 for every order.
    """

    wanted: Wanted
    count: Tensor
    maximum: Tensor
    minimum: Tensor
    mean: Tensor
    spread: Tensor
    norms: dict[float, Tensor]

    @classmethod
    def empty(cls, samples: int, wanted: Wanted, device: torch.device) -> Moments:
        """Statistics of no elements.

        Args:
            samples: N.
            wanted: what is kept.
            device: where.

        Returns:
            Moments to merge others into.
        """
        zero = torch.zeros(samples, dtype=torch.float64, device=device)
        norms = {order: zero.clone() for order in wanted.orders}
        return cls(
            wanted, zero.clone(), torch.full_like(zero, -inf), torch.full_like(zero, inf), zero.clone(), zero, norms
        )

    def merge(self, rows: slice, other: Moments) -> None:
        """Takes in further elements of some samples.

        Args:
            rows: the samples that `other` describes.
            other: statistics of other elements.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
        """
        mine, theirs = self.count[rows], other.count
        total = mine + theirs
        if self.wanted.extrema:
            self.maximum[rows] = torch.maximum(self.maximum[rows], other.maximum)
            self.minimum[rows] = torch.minimum(self.minimum[rows], other.minimum)
        if self.wanted.mean:
            share = torch.where(total > 0, theirs / total.clamp(min=1), 0.0)
            difference = other.mean - self.mean[rows]
            between = difference * (mine * share).sqrt()
            self.mean[rows] += difference * share
            if self.wanted.spread:
                self.spread[rows] = self.spread[rows].hypot(other.spread).hypot(between)
        elif self.wanted.spread:
            self.spread[rows] = self.spread[rows].hypot(other.spread)
        for order, norm in self.norms.items():
            norm[rows] = _join_norms(norm[rows], other.norms[order], order)
        self.count[rows] = total

    def to(self, device: torch.device) -> Moments:
        """The same moments on another device.

        Args:
            device: where.

        Returns:
            Moments there; these ones if they are there already.
        """
        if self.count.device == device:
            return self
        norms = {order: norm.to(device) for order, norm in self.norms.items()}
        return Moments(
            self.wanted,
            self.count.to(device),
            self.maximum.to(device),
            self.minimum.to(device),
            self.mean.to(device),
            self.spread.to(device),
            norms,
        )

    def statistic(self, name: str) -> Tensor:
        """A statistic of every sample.

        Args:
            name: one of those asked for.

        Returns:
            (N,) float64. `std` divides by the number of elements less one, and is 0 for one element; p-norms are the
            sum of |g|^p to the power 1/p.
        """
        order = norm_order(name)
        if order is not None and order in self.norms:
            return self.norms[order]
        if name == "std":
            return self.spread / (self.count - 1).clamp(min=1).sqrt()
        if order == 2:
            return self.spread.hypot(self.mean * self.count.sqrt()) if self.wanted.mean else self.spread
        if order == inf:
            return torch.maximum(self.maximum, -self.minimum)
        return {"max": self.maximum, "min": self.minimum, "mean": self.mean}[name]


def _join_norms(one: Tensor, other: Tensor, order: float) -> Tensor:
    if order == 1:
        return one + other
    largest = torch.maximum(one, other)
    divisor = torch.where(largest > 0, largest, 1.0)
    joined = divisor * ((one / divisor) ** order + (other / divisor) ** order) ** (1 / order)
    return torch.where(largest > 0, joined, largest)


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
    if len(gradient) * elements <= SMALL_ELEMENTS:
        return measure_exactly(gradient.dense(slice(None)).flatten(1), wanted)
    sums = _Sums(len(gradient), wanted, gradient.device)
    for rows, block in gradient.blocks(CACHE_ELEMENTS if gradient.device.type == "cpu" else ACCELERATOR_ELEMENTS):
        if block.shape[-1]:
            sums.add(rows, block)
    found, doubtful = sums.moments(elements, gradient.implicit_zeros)
    for start in doubtful.nonzero().flatten().tolist():
        row = slice(start, start + 1)
        better = measure_exactly(gradient.dense(row).flatten(1), wanted)
        found.mean[row], found.spread[row] = better.mean, better.spread
    return found


class _Sums:
    """Sums of blocks, in float64 but for the sums inside a block."""

    def __init__(self, samples: int, wanted: Wanted, device: torch.device) -> None:
        self.wanted = wanted
        zero = torch.zeros(samples, dtype=torch.float64, device=device)
        self.maximum, self.minimum = torch.full_like(zero, -inf), torch.full_like(zero, inf)
        self.total, self.squares = zero.clone(), zero.clone()
        self.norms = {order: zero.clone() for order in wanted.orders}
        self.single = False
        self.scratch: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """Takes in a block, (n, p) or (parts, n, p)."""
        samples = rows.stop - rows.start
        values = block.reshape(-1, block.shape[-1])
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        self.single |= values.dtype == torch.float32
        if self.wanted.extrema:
            torch.maximum(self.maximum[rows], values.amax(1).view(-1, samples).amax(0).double(), out=self.maximum[rows])
            torch.minimum(self.minimum[rows], values.amin(1).view(-1, samples).amin(0).double(), out=self.minimum[rows])
        if self.wanted.mean:
            self.total[rows] += values.sum(1).view(-1, samples).sum(0, dtype=torch.float64)
        if self.wanted.spread:
            norm = torch.linalg.vector_norm(values, dim=1).double().view(-1, samples)
            self.squares[rows] += (norm * norm).sum(0)
        if self.wanted.orders:
            if self.scratch is None or self.scratch.numel() < values.numel() or self.scratch.dtype != values.dtype:
                self.scratch = torch.empty(values.numel(), dtype=values.dtype, device=values.device)
            magnitude = torch.abs(values, out=self.scratch[: values.numel()].view(values.shape))
            for order, norm in self.norms.items():
                if order == 1:
                    norm[rows] += magnitude.sum(1).view(-1, samples).sum(0, dtype=torch.float64)
                else:
                    part = _scaled_norm(magnitude.double(), order).view(-1, samples)
                    norm[rows] = _join_norms(norm[rows], _scaled_norm(part.t(), order), order)

    def moments(self, elements: int, implicit_zeros: int) -> tuple[Moments, Tensor]:
        """Moments of all blocks, and for which samples (N,) mean and spread have lost digits."""
        found = Moments.empty(len(self.total), self.wanted, self.total.device)
        found.count.fill_(elements)
        found.norms = self.norms
        doubtful = torch.zeros_like(self.total, dtype=torch.bool)
        if self.wanted.extrema:
            found.maximum, found.minimum = self.maximum, self.minimum
            if implicit_zeros:
                found.maximum, found.minimum = found.maximum.clamp(min=0), found.minimum.clamp(max=0)
        if self.wanted.mean:
            found.mean = self.total / elements
        if self.wanted.spread:
            about = self.squares - elements * found.mean**2
            found.spread = about.clamp(min=0).sqrt()
            doubtful |= about < self.squares / 2
            smallest, largest = SAFE if self.single else SAFE_DOUBLE
            doubtful |= ~((self.squares > smallest**2) & (self.squares < largest**2))
        return found, doubtful


def zeros(samples: int, elements: int, wanted: Wanted, device: torch.device) -> Moments:
    """Moments of elements that are all zero.

    Args:
        samples: N.
        elements: number of elements of each sample, at least one.
        wanted: what is kept.
        device: where.

    Returns:
        The moments.
    """
    found = Moments.empty(samples, wanted, device)
    found.count.fill_(elements)
    found.maximum.zero_()
    found.minimum.zero_()
    return found


def measure_exactly(block: Tensor, wanted: Wanted) -> Moments:
    """Moments of rows of elements in float64, in two passes and scaled to magnitude one.

    Args:
        block: (n, p) with p of at least one.
        wanted: what to compute.

    Returns:
        Moments of n samples.
    """
    values = block.double()
    found = Moments.empty(len(block), wanted, block.device)
    found.count.fill_(values.shape[1])
    if wanted.extrema:
        found.maximum, found.minimum = values.amax(1), values.amin(1)
    if wanted.mean:
        found.mean = values.mean(1)
    if wanted.spread:
        about = values - found.mean.unsqueeze(1) if wanted.mean else values
        found.spread = _scaled_norm(about.abs(), 2.0)
    for order in wanted.orders:
        found.norms[order] = values.abs().sum(1) if order == 1 else _scaled_norm(values.abs(), order)
    return found


def _scaled_norm(magnitude: Tensor, order: float) -> Tensor:
    """The p-norm of each row of non-negative float64 numbers, scaled so that powers neither under- nor overflow."""
    largest = magnitude.amax(1, keepdim=True)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return divisor.squeeze(1) * ((magnitude / divisor) ** order).sum(1) ** (1 / order)


def _outer_product(gradient: Factored, wanted: Wanted) -> Moments:
    """Moments of outer products in closed form, from the moments of the two vectors."""
    left = measure_exactly(gradient.left.flatten(1), wanted)
    right = measure_exactly(gradient.right.flatten(1), wanted)
    found = Moments.empty(len(gradient), wanted, left.count.device)
    found.count = left.count * right.count
    if wanted.extrema:
        corners = torch.stack([a * b for a in (left.maximum, left.minimum) for b in (right.maximum, right.minimum)])
        found.maximum, found.minimum = corners.amax(0), corners.amin(0)
    if wanted.mean:
        found.mean = left.mean * right.mean
    if wanted.spread:
        found.spread = left.spread * right.spread
        if wanted.mean:
            # Sum of squares of a b about its mean: every term is positive, so nothing cancels.
            found.spread = found.spread.hypot(left.spread * right.mean * right.count.sqrt())
            found.spread = found.spread.hypot(right.spread * left.mean * left.count.sqrt())
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
) -> dict[str, Tensor]:
    """Statistics of every sample's gradient, pooled over groups of parameters.

    Args:
        engine: knows the parameters.
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        statistics: names; see `norm_order`.
        groups: names of parameters by group; each element of a group counts once. A parameter may be in several.
        retain_graph: keep the graph for another call.

    Returns:
        `<group>/<statistic>` to (N,) float64 on the CPU, in the order of groups and statistics.

    Raises:
        ConfigError: no such statistic, or a group with an unknown parameter or none.
    """
    wanted = Wanted.by(statistics)
    members = _members(engine, groups)
    moments = {group: Moments.empty(len(outputs), wanted, outputs.device) for group in groups}
    owners: dict[str, list[str]] = {}
    for group, names in members.items():
        for name in names:
            owners.setdefault(name, []).append(group)
    reported: dict[str, int] = dict.fromkeys(owners, 0)

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        if name in owners:
            reported[name] += len(gradient)
            measured = measure(gradient, wanted)
            for group in owners[name]:
                moments[group].merge(rows, measured)

    engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph)
    for name, samples in reported.items():
        elements = engine.parameters[name].numel()
        if samples == 0 and elements and len(outputs):
            nothing = zeros(len(outputs), elements, wanted, outputs.device)
            for group in owners[name]:
                moments[group].merge(slice(0, len(outputs)), nothing)
    return {
        f"{group}/{statistic}": found.statistic(statistic).cpu()
        for group, found in moments.items()
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
