"""What is not well with gradients, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from .quantities.aggregate import Aggregate
from .quantities.grad_hist_1d import GradHist1d
from .quantities.gradient_activation import GradientActivation
from .quantities.gradient_geometry import GradientGeometry
from .quantities.mean_gsnr import MeanGSNR
from .quantities.output_activation import OutputActivation
from .quantities.output_gradient_geometry import PER_SAMPLE, OutputGradientGeometry
from .quantities.quantity import Quantity

MANY_DEAD = 0.25
"""Share of units without gradient or output from which on a layer is named.

The digits model is right 93 % of the time with a fifth of the units of a layer dead, over 256 samples.
"""

FAR = 1e3
"""A gradient this many times as large, or as small, as the median over all parameters is named, by root mean squares.

Seen: 7 times at most on the trained digits model, 56 on fresh ResNet-18, VGG-11, DenseNet-121 and Swin-T, 23,000 on
eight hidden layers of sigmoids.
"""

GROWTH = 1e3
"""Gradients that grow or shrink by this factor from the last layer to the first are named.

Seen: a factor of 2 on the trained digits model, 18 at most on the fresh networks above, 4e7 on eight hidden layers of
sigmoids, 3e6 on sixteen of ReLU as PyTorch initialises them.
"""


NOTICED_BY: dict[str, tuple[type[Quantity], ...]] = {
    "gradients that are not finite": (GradHist1d, GradientGeometry),
    "dead units": (GradientActivation, OutputActivation),
    "exploding or vanishing gradients": (GradientGeometry, OutputGradientGeometry),
}
"""What `findings` can name, and the quantities of which any one shows it."""


def looked_for(quantities: Sequence[Quantity]) -> tuple[list[str], list[str]]:
    """What `findings` would have named, given these quantities, and what it could not have."""
    seen = [what for what, kinds in NOTICED_BY.items() if any(isinstance(quantity, kinds) for quantity in quantities)]
    return seen, [what for what in NOTICED_BY if what not in seen]


def findings(groups: Mapping[str, Sequence[Quantity]], samples: Mapping[str, int]) -> list[str]:
    """Names layers with gradients that are not finite, dead, exploding or vanishing.

    Args:
        groups: quantities by group of samples.
        samples: number of samples by group.

    Returns:
        Sentences, the gravest first; a sentence that holds for all groups is said once.
    """
    said: dict[tuple[int, str], list[str]] = {}
    for group, quantities in groups.items():
        for quantity in quantities:
            for weight, sentence in _about(quantity, samples[group]):
                said.setdefault((weight, sentence), []).append(group)
    ordered = sorted(said.items(), key=lambda item: item[0][0])
    return [f"{sentence} ({_where(found, groups)})." for (_, sentence), found in ordered]


def _where(found: Sequence[str], groups: Mapping[str, object]) -> str:
    return "all groups" if len(found) == len(groups) > 1 else ", ".join(found)


def _about(quantity: Quantity, samples: int) -> Iterator[tuple[int, str]]:
    match quantity:
        case GradHist1d():
            for name, histogram in quantity.histograms.items():
                if histogram.non_finite:
                    yield 0, f"{name}: gradients are NaN or infinite"
        case GradientActivation():
            yield from _dead(quantity.never_active(), "get no gradient from any sample", "gradient reaches none of")
        case OutputActivation():
            yield from _dead(quantity.never_active(), "are zero for every sample", "the output is zero for all of")
        case GradientGeometry():
            yield from _outliers(quantity.value.get("norm", {}))
        case OutputGradientGeometry():
            yield from _growth(quantity.value.get(PER_SAMPLE, {}))
        case MeanGSNR():
            if samples < 2:
                yield 4, "The gradient signal-to-noise ratio is undefined: it needs at least two samples"
        case _:
            pass


def _dead(units: Mapping[str, tuple[int, int]], some: str, every: str) -> Iterator[tuple[int, str]]:
    for name, (dead, count) in units.items():
        if dead == count:
            yield 1, f"{name} is dead: {every} its {count} units"
        elif dead >= MANY_DEAD * count:
            yield 2, f"{name} is partly dead: {dead} of {count} units {some}"


def _outliers(norms: Mapping[str, Aggregate]) -> Iterator[tuple[int, str]]:
    sizes = {name: norm.point("mean") for name, norm in norms.items() if norm.count}
    positive = [size for size in sizes.values() if size > 0]
    if not positive:
        return
    middle = median(positive)
    for name, size in sizes.items():
        if norms[name].non_finite:
            yield 0, f"{name}: the gradient of {norms[name].non_finite} batches is NaN or infinite"
        if size > FAR * middle:
            yield 1, f"{name} explodes: its gradient is {size / middle:.2g} times that of the median parameter"
        elif 0 < size < middle / FAR:
            yield 2, f"{name} vanishes: its gradient is {size / middle:.2g} times that of the median parameter"


def _growth(norms: Mapping[str, Aggregate]) -> Iterator[tuple[int, str]]:
    sizes = [(name, norm.point("mean")) for name, norm in norms.items() if norm.count]
    if len(sizes) < 2 or not sizes[0][1] > 0:
        return
    (last, at_last), (first, at_first) = sizes[0], sizes[-1]  # in the order of the backward pass
    factor = at_first / at_last
    if factor > GROWTH:
        yield 1, f"Gradients explode on their way back: {factor:.2g} times as large at {first} as at {last}"
    elif factor < 1 / GROWTH:
        yield 1, f"Gradients vanish on their way back: {factor:.2g} times as large at {first} as at {last}"
