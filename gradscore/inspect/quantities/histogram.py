"""Counts of values in bins of equal width."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ConfigError
from ...kernels import count_bins, count_products

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
        self.counts = torch.zeros(self.bins, dtype=torch.int64)
        self.largest = [0.0] * len(self.bins)

    @property
    def edges(self) -> tuple[NDArray[np.float64], ...]:
        """The bins + 1 edges of each axis."""
        return tuple(np.linspace(*span, bins + 1) for bins, span in zip(self.bins, self.ranges, strict=True))

    @property
    def total(self) -> int:
        """Entries in bins."""
        return int(self.counts.sum())

    def add(self, *values: Tensor) -> None:
        """Counts entries.

        Args:
            values: (n, p) for the first axis and, if there is a second one, (p,) for that, with the same value for all
                n of a column.
        """
        if not values[0].numel():
            return
        extremes = [torch.stack(torch.aminmax(value)).double().tolist() for value in values]
        if not all(isfinite(end) for ends in extremes for end in ends):
            values = self._finite(values)
            if not values[0].numel():
                return
            extremes = [torch.stack(torch.aminmax(value)).double().tolist() for value in values]
        self.largest = [
            max(known, abs(low), abs(high)) for known, (low, high) in zip(self.largest, extremes, strict=True)
        ]
        self.counts += self._counted(*values)

    def add_zeros(self, count: int) -> None:
        """Counts so many zeros, for a histogram over one axis."""
        if count:
            self.counts += count * self._counted(torch.zeros(1, dtype=torch.float64))

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

    def add_products(self, left: Tensor, right: Tensor, columns: Tensor | None = None) -> bool:
        """Counts the elements of outer products, (n, o) and (n, i), without writing them out.

        Args:
            left: (n, o).
            right: (n, i).
            columns: (o * i,) values on the second axis, if there is one.

        Returns:
            False, with nothing counted, where there is no compiled loop for it or a value is not finite.
        """
        if not left.numel() or not right.numel():
            return False
        largest = float((left.abs().amax(1) * right.abs().amax(1)).max())
        sizes = [largest] if columns is None else [largest, float(columns.abs().max())]
        if not all(map(isfinite, sizes)):
            return False
        left, right = (fitting(each, self.ranges[0]) for each in (left, right))
        places = None if columns is None else bin_index(columns, self.bins[1], self.ranges[1])
        counts = count_products(left, right, self.bins[0], *self.ranges[0], places, prod(self.bins[1:]))
        if counts is None:
            return False
        self.largest = [max(pair) for pair in zip(self.largest, sizes, strict=True)]
        self.counts += counts.view(self.bins)
        return True

    def _counted(self, values: Tensor, columns: Tensor | None = None) -> Tensor:
        places = None if columns is None else bin_index(columns, self.bins[1], self.ranges[1])
        values = fitting(values, self.ranges[0])
        if columns is None or columns.dim() == 1:
            flat = values.reshape(-1, values.shape[-1])
            fast = count_bins(flat, self.bins[0], *self.ranges[0], places, prod(self.bins[1:]))
            if fast is not None:
                return fast.view(self.bins)
        found = bin_index(values, self.bins[0], self.ranges[0])
        if places is not None:
            found = found.mul_(self.bins[1]).add_(places)
        return torch.bincount(found.flatten(), minlength=prod(self.bins)).cpu().view(self.bins)

    def _finite(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The entries that are finite on all axes; the others are counted."""
        together = [value.expand_as(values[0]) for value in values]
        keep = torch.stack([value.isfinite() for value in together]).all(0)
        self.non_finite += int((~keep).sum())
        return tuple(value[keep] for value in together)


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
