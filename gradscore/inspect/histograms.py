"""Histograms of the elements of per-sample gradients, alone and against the values of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from ..errors import ConfigError
from ..gradients import Factored, PerSample, sample_slices
from ..kernels import count_products
from .quantity import MODEL, Quantity, Row, SampleGradientQuantity
from .sample_gradients import BUDGET, aligned_blocks

Range = tuple[float, float]

NORMAL_WIDTHS = (1e-30, 1e37)
"""Widths of ranges between which float32 holds the share of a range that a value is at: its normal numbers reach from
1.2e-38 to 3.4e38."""


@dataclass
class Histogram:
    """Counts over one axis or two.

    Bin b of B over the range (low, high) holds the values v with floor((v - low) / (high - low) * B) = b; values below
    and above the range are counted in the first and the last bin, and `high` itself in the last one.

    Attributes:
        bins: number of bins of each axis.
        ranges: low and high end of each axis.
        counts: int64 of shape `bins`.
        non_finite: entries with a value that is NaN or infinite; they are in no bin.
        largest: largest magnitude of a finite value on each axis.

    Raises:
        ConfigError: no bins, or a range that is empty or not finite.
    """

    bins: tuple[int, ...]
    ranges: tuple[Range, ...]
    counts: Tensor = field(init=False)
    non_finite: int = 0
    largest: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Checks the settings and begins with empty bins."""
        for bins, (low, high) in zip(self.bins, self.ranges, strict=True):
            if bins < 1 or not (isfinite(high - low) and low < high):
                raise ConfigError(
                    f"a histogram needs at least one bin and a finite range from low to high, got {bins} bins "
                    f"over {low:g} to {high:g}"
                )
        self.counts = torch.zeros(self.bins, dtype=torch.int64, device="cpu")
        self.largest = [0.0] * len(self.bins)

    @property
    def edges(self) -> tuple[NDArray[np.float64], ...]:
        """The bins + 1 edges of each axis."""
        return tuple(np.linspace(*span, bins + 1) for bins, span in zip(self.bins, self.ranges, strict=True))

    @property
    def total(self) -> int:
        """Entries in bins."""
        return int(self.counts.sum())

    def add(self, values: Tensor, columns: Tensor | None = None) -> None:
        """Counts entries.

        Args:
            values: (n, p) on the first axis.
            columns: (p,) on the second axis, if there is one: the same value for all n of a column.
        """
        if values.numel():
            values = values.reshape(1, -1) if columns is None else values
            largest = torch.stack(torch.aminmax(values)).abs().max()  # of rows, PyTorch takes twice as long
            self._count(values.new_ones(len(values), 1), values, columns, float(largest))

    def _count(self, left: Tensor, right: Tensor, columns: Tensor | None, largest: float) -> None:
        sizes = [largest] if columns is None else [largest, float(columns.abs().max())]
        if not all(map(isfinite, sizes)):
            for values in _written(left, right):
                keep = values.isfinite() if columns is None else values.isfinite() & columns.isfinite()
                self.non_finite += int((~keep).sum())
                self.add(values[keep][None], None if columns is None else columns.expand_as(values)[keep])
            return
        self.largest = [max(pair) for pair in zip(self.largest, sizes, strict=True)]
        left, right = (fitting(each, self.ranges[0]) for each in (left, right))
        places = None if columns is None else bin_index(columns, self.bins[1], self.ranges[1])
        counts = count_products(left, right, self.bins[0], *self.ranges[0], places, prod(self.bins[1:]))
        if counts is not None:
            self.counts += counts.view(self.bins)
            return
        for values in _written(left, right):
            found = bin_index(values, self.bins[0], self.ranges[0])
            if places is not None:
                found = found.mul_(self.bins[1]).add_(places)
            self.counts += torch.bincount(found.flatten(), minlength=prod(self.bins)).cpu().view(self.bins)

    def merge(self, other: Histogram) -> None:
        """Adds the counts of another histogram over the same bins.

        Raises:
            ConfigError: it has other bins.
        """
        if other.bins != self.bins or other.ranges != self.ranges:
            raise ConfigError(
                f"histograms over different bins cannot be merged: {self.bins} over {self.ranges} and {other.bins} "
                f"over {other.ranges}; give both the same range, without adaptation"
            )
        self.counts += other.counts
        self.non_finite += other.non_finite
        self.largest = [max(pair) for pair in zip(self.largest, other.largest, strict=True)]

    def add_gradient(self, gradient: PerSample, columns: Tensor | None) -> None:
        """Counts all elements of the gradients of some samples.

        Outer products are not written out where there is a compiled loop for it.

        Args:
            gradient: of one parameter of p elements.
            columns: (p,) values on the second axis, if there is one.
        """
        if isinstance(gradient, Factored) and gradient.is_outer_product:
            left, right = gradient.left[:, 0, :, 0], gradient.right[:, 0, :, 0]
            if left.numel() and right.numel():
                self._count(left, right, columns, float((left.abs().amax(1) * right.abs().amax(1)).max()))
        elif columns is None:
            for _, block in gradient.blocks(BUDGET):
                self.add(block)
            zero = bin_index(torch.zeros((), dtype=torch.float64, device="cpu"), self.bins[0], self.ranges[0])
            self.counts[int(zero)] += gradient.implicit_zeros * len(gradient)
        else:
            for each in aligned_blocks(gradient, BUDGET):
                self.add(each.values, columns if each.entries is None else columns[each.entries])


def _written(left: Tensor, right: Tensor) -> Iterator[Tensor]:
    """Outer products of (n, o) and (n, i), (some of n, o * i) at a time."""
    for rows in sample_slices(len(left), left.shape[1] * right.shape[1], BUDGET):
        yield (left[rows, :, None] * right[rows, None, :]).flatten(1)


def fitting(values: Tensor, span: Range) -> Tensor:
    """The values in a precision that holds the width of the range: float32, or float64 beyond `NORMAL_WIDTHS`."""
    low, high = span
    if not NORMAL_WIDTHS[0] < high - low < NORMAL_WIDTHS[1]:
        return values.double()
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def bin_index(values: Tensor, bins: int, span: Range) -> Tensor:
    """The bin of each finite value, int32.

    Dividing before multiplying puts the middle of a range that is symmetric about zero exactly where it belongs: zero
    is by far the most frequent gradient.
    """
    low, high = span
    values = fitting(values, span)
    return values.sub(low).div_(high - low).mul_(bins).clamp_(0, bins - 1).int()


WIDEST = 8e307
"""Half the width of the widest range: float64 ends at 1.8e308, and the width has to be a number."""


def range_up_to(largest: float, narrowest: float) -> Range:
    """A range symmetric about zero for values up to a magnitude, at least so wide, and not wider than float64 allows.

    Example:
        >>> range_up_to(2.0, 1e-6), range_up_to(0.0, 1e-6)
        ((-2.0, 2.0), (-5e-07, 5e-07))
    """
    radius = min(WIDEST, max(narrowest / 2, largest))
    return -radius, radius


class _Histograms(SampleGradientQuantity):
    """Histograms of parameters, or of the model, over the same axes.

    Where a range adapts, it holds everything that the last period saw. A period is what lies between two resets: an
    epoch or, with a reset after every step, a step. The new range holds from the next period on, since counts over
    different bins cannot be added.

    Args:
        bins: number of bins of each axis.
        spans: lowest and highest value of each axis.
        adapt: of each axis, how wide its range is at least if it follows what was seen; None for one that stays.
        options: see `Quantity`.
    """

    _mergeable = (*Quantity._mergeable, "histograms")

    def __init__(
        self, bins: tuple[int, ...], spans: tuple[Range, ...], adapt: tuple[float | None, ...], **options: Any
    ) -> None:
        super().__init__(**options)
        self.bins, self.spans, self.adapt = bins, spans, adapt
        self.histograms: dict[str, Histogram] = {}
        self._own: dict[str, tuple[Range, ...]] = {}
        Histogram(bins, spans)  # which refuses what makes none

    def count(self, name: str, gradient: PerSample, columns: Tensor | None = None) -> None:
        """Counts the gradients of some samples in the histogram of a name; see `Histogram.add_gradient`."""
        if name not in self.histograms:
            self.histograms[name] = Histogram(self.bins, self._own.get(name, self.spans))
        self.histograms[name].add_gradient(gradient, columns)

    @property
    def model(self) -> Histogram:
        """The sum over all parameters.

        Raises:
            ConfigError: the parameters have ranges of their own.
        """
        total = Histogram(self.bins, self.spans)
        for histogram in self.histograms.values():
            total.merge(histogram)
        return total

    def of_layers(self) -> dict[str, Histogram]:
        """The histograms by parameter, and that of the model where there is one."""
        return self.histograms if self._own else {**self.histograms, MODEL: self.model}

    def adapted(self, *histograms: Histogram) -> tuple[Range, ...]:
        """The ranges that hold what histograms saw, where they adapt."""
        largest = [max(sizes) for sizes in zip(*(each.largest for each in histograms), strict=True)]
        return tuple(
            span if narrowest is None else range_up_to(size, narrowest)
            for narrowest, span, size in zip(self.adapt, self.spans, largest, strict=True)
        )

    @override
    def summary(self) -> Iterator[Row]:
        for layer, histogram in self.of_layers().items():
            counts, total = histogram.counts.reshape(histogram.bins[0], -1).sum(1), histogram.total
            figures = {"count": total, "non_finite": histogram.non_finite, "largest magnitude": histogram.largest[0]}
            if total:
                figures["share in the lowest bin"] = int(counts[0]) / total
                figures["share in the highest bin"] = int(counts[-1]) / total
            for statistic, value in figures.items():
                yield Row("gradients", layer, statistic, value)

    def reset(self) -> None:
        """Forgets the counts and adapts the ranges to them."""
        super().reset()
        if self.histograms:
            self.spans = self.adapted(*self.histograms.values())
        self.histograms = {}


class GradHist1d(_Histograms):
    """Histogram of gradient values: every element of every sample's gradient, by parameter.

    A batch whose losses do not depend on a parameter adds nothing to its histogram.

    Args:
        bins: number of bins.
        span: lowest and highest value; what lies beyond is counted in the outermost bins.
        adapt: have the range follow what was seen, and be at least so wide; it stays by default.
        per_parameter: give every parameter a range of its own when adapting, instead of one for the model.
        options: see `Quantity`.

    Attributes:
        histograms: by parameter.

    Raises:
        ConfigError: unusable bins or range.

    Source: Schneider, Dangel, Hennig 2021, "Cockpit: A practical debugging tool for the training of deep neural
        networks", section 3.1.
    """

    name = "gradient histogram"

    def __init__(
        self,
        *,
        bins: int = 100,
        span: Range = (-2.0, 2.0),
        adapt: float | None = None,
        per_parameter: bool = False,
        **options: Any,
    ) -> None:
        super().__init__((bins,), (span,), (adapt,), **options)
        self.per_parameter = per_parameter

    @override
    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        self.count(name, gradient)

    @override
    def reset(self) -> None:
        if self.per_parameter and self.adapt != (None,):
            self._own = {name: self.adapted(histogram) for name, histogram in self.histograms.items()}
        super().reset()


class GradHist2d(_Histograms):
    """Histogram of gradient values by parameter values.

    The first axis is an element of a sample's gradient, the second the value of the same entry of the parameter.

    Args:
        bins: number of bins of both axes.
        spans: lowest and highest value of both axes; what lies beyond is counted in the outermost bins.
        adapt: have the range of each axis follow what was seen, and be at least so wide; it stays by default.
        options: see `Quantity`.

    Raises:
        ConfigError: unusable bins or ranges.

    Source: Schneider, Dangel, Hennig 2021, "Cockpit: A practical debugging tool for the training of deep neural
        networks", section 3.1.
    """

    name = "gradient and parameter histogram"

    def __init__(
        self,
        *,
        bins: tuple[int, int] = (40, 50),
        spans: tuple[Range, Range] = ((-1.0, 1.0), (-2.0, 2.0)),
        adapt: tuple[float | None, float | None] = (None, None),
        **options: Any,
    ) -> None:
        super().__init__(bins, spans, adapt, **options)

    @override
    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        self.count(MODEL, gradient, parameter.detach().flatten())
