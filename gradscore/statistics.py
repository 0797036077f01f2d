"""Statistics of per-sample gradients, merged over blocks and over parameters in float64.

A block is reduced in its own precision with the fastest kernels there are, and only where that loses digits (a mean
far larger than the spread, squares that leave the range of float32) its samples are reduced once more in float64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .errors import ConfigError
from .gradients import Engine, PerSample
from .gradients.factored import Factored

NAMED = ("max", "min", "mean", "std")

CACHE_ELEMENTS = 1 << 19
"""Elements of a block: small enough to stay in the cache between the reductions."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones."""

SMALL_ELEMENTS = 1 << 14
"""Blocks up to this size are reduced in float64 at once."""

SAFE = (1e-12, 1e12)
"""Euclidean norms in this range have squares that float32 holds."""


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


def measure(gradient: PerSample, wanted: Wanted, device: torch.device) -> Iterator[tuple[slice, Moments]]:
    """Reduces per-sample gradients of one parameter, without ever holding those of more than a few samples.

    Args:
        gradient: the gradients.
        wanted: what to compute.
        device: where they are.

    Yields:
        Samples, and moments of some of their elements: every element comes once.
    """
    if isinstance(gradient, Factored) and gradient.is_outer_product:
        yield slice(0, len(gradient)), _outer_product(gradient, wanted)
        return
    for rows, block in gradient.blocks(CACHE_ELEMENTS if device.type == "cpu" else ACCELERATOR_ELEMENTS):
        if block.shape[1]:
            yield rows, measure_block(block, wanted)
    if gradient.implicit_zeros:
        yield slice(0, len(gradient)), zeros(len(gradient), gradient.implicit_zeros, wanted, device)


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


def measure_block(block: Tensor, wanted: Wanted) -> Moments:
    """Moments of each row of a block, to the accuracy of float64 sums over its elements where it matters.

    Args:
        block: (n, p) with p of at least one.
        wanted: what to compute.

    Returns:
        Moments of n samples.
    """
    if block.numel() <= SMALL_ELEMENTS or block.dtype in (torch.float16, torch.bfloat16):
        return _measure_exactly(block, wanted)
    found = Moments.empty(len(block), wanted, block.device)
    width = block.shape[1]
    found.count.fill_(width)
    doubtful = torch.zeros(len(block), dtype=torch.bool, device=block.device)
    if wanted.extrema:
        found.maximum, found.minimum = block.amax(1).double(), block.amin(1).double()
    if wanted.mean:
        found.mean = block.sum(1).double() / width
    if wanted.spread:
        norm = torch.linalg.vector_norm(block, dim=1).double()
        if block.dtype == torch.float32:
            doubtful |= (norm < SAFE[0]) | (norm > SAFE[1])
        if wanted.mean:
            squares = norm**2
            left = squares - width * found.mean**2
            doubtful |= left < squares / 2
            found.spread = left.clamp(min=0).sqrt()
        else:
            found.spread = norm
    if wanted.orders:
        magnitude = block.abs()
        for order in wanted.orders:
            if order == 1:
                found.norms[order] = magnitude.sum(1).double()
            else:
                found.norms[order] = _scaled_norm(magnitude.double(), order)
    if bool(doubtful.any()):
        rows = doubtful.nonzero().squeeze(1)
        better = _measure_exactly(block[rows], wanted)
        found.mean[rows], found.spread[rows] = better.mean, better.spread
    return found


def _measure_exactly(block: Tensor, wanted: Wanted) -> Moments:
    """Moments in float64, in two passes and on elements scaled to magnitude one."""
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
    left = _measure_exactly(gradient.left.flatten(1), wanted)
    right = _measure_exactly(gradient.right.flatten(1), wanted)
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
            for part, measured in measure(gradient, wanted, outputs.device):
                for group in owners[name]:
                    moments[group].merge(slice(rows.start + part.start, rows.start + part.stop), measured)

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
