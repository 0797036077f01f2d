"""The statistics that can be asked for by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from ..system import Registry
from .measure import Array, Moments, Wanted


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number that says something of the elements of a sample's gradient: what `features.statistics` may name.

    It follows from the moments that one fused pass computes.

    Attributes:
        summary: what it is, on one line.
        value: from the moments of the elements of N samples to (N,) float64.
        extrema: it needs the largest and smallest element.
        mean: it needs the mean.
        deviation: it needs the root of the sum of squared deviations.
        order: it needs the p-norm of this order.
        degree: 1 if it grows with the gradient, 0 if it does not depend on its size.
        logarithmic: meta models look at the logarithm of its magnitude, which may lie many decades apart; else at the
            value as it stands.
        ratio: meta models look at it over the L1 norm as well, times this sign; None if they do not.
        signed: it may have either sign. Where meta models look at the ratio, they do so as it stands and not at the
            logarithm of the magnitude, which near zero tells of nothing but rounding.
        of_elements: it is of the size of one element, so that beside a large one it may be rounding.
        source: where it comes from.
    """

    summary: str
    value: Callable[[Moments], Array]
    extrema: bool = False
    mean: bool = False
    deviation: bool = False
    order: float | None = None
    degree: int = 1
    logarithmic: bool = True
    ratio: float | None = None
    signed: bool = False
    of_elements: bool = False
    source: str = ""


def _std(moments: Moments) -> Array:
    return moments.deviation / moments.xp.sqrt((moments.count - 1).clip(min=1))


def _l2(moments: Moments) -> Array:
    if not moments.wanted.mean:
        return moments.deviation
    return moments.xp.hypot(moments.deviation, moments.mean * moments.xp.sqrt(moments.count))


def _linf(moments: Moments) -> Array:
    return moments.xp.maximum(moments.maximum, -moments.minimum)


STATISTICS: Registry[Statistic] = Registry(
    "statistic",
    {
        "l1": Statistic(summary="sum of magnitudes", value=lambda moments: moments.norms[1.0], order=1.0),
        "l2": Statistic(summary="root of the sum of squares", value=_l2, deviation=True, ratio=1.0),
        "max": Statistic(
            summary="largest element, with its sign",
            value=lambda moments: moments.maximum,
            extrema=True,
            ratio=1.0,
            of_elements=True,
        ),
        "min": Statistic(
            summary="smallest element, with its sign",
            value=lambda moments: moments.minimum,
            extrema=True,
            ratio=-1.0,
            of_elements=True,
        ),
        "mean": Statistic(
            summary="mean of the elements",
            value=lambda moments: moments.mean,
            mean=True,
            ratio=1.0,
            signed=True,
            of_elements=True,
        ),
        "std": Statistic(
            summary="standard deviation, over the number of elements less one; 0 for one element",
            value=_std,
            mean=True,
            deviation=True,
            of_elements=True,
        ),
        "linf": Statistic(summary="largest magnitude", value=_linf, extrema=True, of_elements=True),
    },
    wanted=Statistic,
)
"""Statistics by name; `find_statistic` knows the p-norms of other orders too."""


def find_statistic(name: str, *, where: str = "statistic") -> Statistic:
    """The statistic called `name`: one of `STATISTICS`, or a p-norm such as `l0.5`.

    Raises:
        ConfigError: there is none; the message begins with `where`.

    Example:
        >>> find_statistic("l0.5").order
        0.5
    """
    if name in STATISTICS:
        return STATISTICS[name]
    match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name)
    order = float(match.group(1)) if match else 0.0
    if order <= 0:
        raise ConfigError(
            f"{where}: no statistic {name!r}: use {', '.join(STATISTICS)}, or another p-norm such as l0.5 (p above 0)"
        )
    return Statistic(summary=f"{order:g}-norm", value=lambda moments: moments.norms[order], order=order)


def needs(names: Sequence[str]) -> Wanted:
    """What has to be computed for statistics, by name."""
    found = {name: find_statistic(name) for name in names}
    return Wanted(
        extrema=any(each.extrema for each in found.values()),
        mean=any(each.mean for each in found.values()),
        deviation=any(each.deviation for each in found.values()),
        orders=tuple(sorted({each.order for each in found.values() if each.order is not None})),
    )


@np.errstate(all="ignore")
def evaluate(name: str, moments: Moments) -> Array:
    """The statistic called `name` of pooled elements, (N,) float64."""
    return find_statistic(name).value(moments)
