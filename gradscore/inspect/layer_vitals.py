"""A few figures of one layer, and of its units."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .quantities.quantity import MODEL

FAR_UNITS = 5.0
"""A silent unit is dead if its mean output is this many times as far from zero as that of the median active unit, both
in standard deviations."""


@dataclass
class UnitMoments:
    """Mean and spread of the outputs of units, in float64.

    Attributes:
        count: values of each unit.
        mean: (units,).
        squares: (units,) sums of squared deviations.
    """

    count: int
    mean: Tensor
    squares: Tensor

    @property
    def deviation(self) -> Tensor:
        """Standard deviations, (units,)."""
        return (self.squares / self.count).sqrt()

    @classmethod
    def of(cls, values: Tensor, axis: int) -> UnitMoments:
        """Moments of a batch, units on one axis."""
        rows = values.movedim(axis, 0).flatten(1)
        variance, mean = torch.var_mean(rows, dim=1, correction=0)
        return cls(rows.shape[1], mean.double().cpu(), variance.double().cpu() * rows.shape[1])

    def merged(self, other: UnitMoments) -> UnitMoments:
        """Moments of both; see `aggregate.Running` for the source."""
        total = self.count + other.count
        difference = other.mean - self.mean
        squares = self.squares + other.squares + difference.square() * (self.count * other.count / total)
        return UnitMoments(total, self.mean + difference * (other.count / total), squares)


@dataclass
class LayerVitals:
    """A call of a layer.

    Attributes:
        kind: class of the layer.
        place: number of the call in the first pass, counted from 1.
        parameters: full names of the parameters that are its own.
        widths: sizes of the first axis of those parameters.
        is_convolution: whether units lie on the second axis before the last.
        is_table: whether it looks up what it returns, as tables of positions do that never learn.
        broke: batches whose outputs are not finite though the inputs are.
        spoilt: batches whose outputs are not finite, as the inputs were not.
        largest: magnitude of the outputs.
        differs: whether two samples had different outputs.
        slopes: log10 of the root mean square over samples of the norm of the gradient at the output, by batch.
        bad_slopes: batches whose gradient at the output is not finite.
        reached: which units a gradient reached; None where units cannot be told.
        outputs: moments of the outputs of every unit, over samples and positions.
        shift: how far the means of a batch lie from running ones, in running standard deviations: median over channels,
            least over batches; NaN for anything but batch norm with running statistics.
        spread: the same for the log10 of the ratio of variances, by magnitude.
    """

    kind: str
    place: int
    parameters: tuple[str, ...]
    widths: tuple[int, ...]
    is_convolution: bool
    is_table: bool
    broke: int = 0
    spoilt: int = 0
    largest: float = 0.0
    differs: bool = False
    slopes: list[float] = field(default_factory=list)
    bad_slopes: int = 0
    reached: Tensor | None = None
    outputs: UnitMoments | None = None
    shift: float = nan
    spread: float = nan
    first: Tensor | None = None

    @property
    def slope(self) -> float:
        """Mean of `slopes` that are finite; -inf if all gradients were zero, NaN without any."""
        finite = [slope for slope in self.slopes if slope > -inf]
        return sum(finite) / len(finite) if finite else -inf if self.slopes else nan

    @property
    def is_silent(self) -> bool:
        """Whether gradients were there, and all of them zero."""
        return self.slope == -inf

    @property
    def width(self) -> int:
        """Units; 0 where they cannot be told."""
        return 0 if self.reached is None else len(self.reached)

    @property
    def dead_units(self) -> int:
        """Units that no gradient reached, and whose outputs stay on one side much more than those of the others.

        In networks whose outputs hardly differ between samples, as fresh deep ones, half of the units are silent for
        all of them, and none is dead.
        """
        if self.reached is None or self.outputs is None or len(self.outputs.mean) != len(self.reached):
            return 0
        distance = self.outputs.mean.abs() / self.outputs.deviation.clamp_(min=torch.finfo(torch.float64).tiny)
        if not bool(self.reached.any()):
            return len(self.reached)
        return int((~self.reached & (distance > FAR_UNITS * distance[self.reached].median())).sum())


def known(value: float) -> float:
    """For `min`: what is not known yet is larger than anything."""
    return inf if value != value else value


def of_module(name: str, module: nn.Module, place: int) -> LayerVitals:
    """The figures of a layer that has seen nothing.

    Args:
        name: of the module in its model, `(model)` for that itself.
        module: the layer.
        place: number of its call in the first pass, counted from 1.
    """
    prefix = "" if name == MODEL else f"{name}."
    own = dict(module.named_parameters(recurse=False))
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    widths = tuple(
        each.shape[1] * int(getattr(module, "groups", 1)) if transposed and each.dim() > 1 else each.shape[0]
        for each in own.values()
        if each.dim()
    )
    channels = isinstance(module, nn.modules.conv._ConvNd | _BatchNorm | nn.GroupNorm)
    return LayerVitals(
        type(module).__name__,
        place,
        tuple(prefix + each for each in own),
        widths,
        channels,
        isinstance(module, nn.Embedding),
    )


def note_units(layer: LayerVitals, values: Tensor) -> None:
    """Takes in the outputs of a batch, if units can be told in them."""
    axis = unit_axis(layer, values)
    if axis is not None:
        moments = UnitMoments.of(values, axis)
        layer.outputs = moments if layer.outputs is None else layer.outputs.merged(moments)


def unit_axis(layer: LayerVitals, values: Tensor) -> int | None:
    """The axis of units: the one that is as wide as the parameters of the layer."""
    if values.dim() < 2:
        return None
    axes = (1, -1) if layer.is_convolution else (-1, 1)
    return next((axis for axis in axes if layer.widths and values.shape[axis] == layer.widths[-1]), None)


def note_statistics(layer: LayerVitals, module: Any, given: Tensor) -> None:
    """How far a batch is from the running statistics of a batch norm that has been trained and is in eval mode."""
    tracked = module.num_batches_tracked
    if module.training or module.running_mean is None or tracked is None or not int(tracked) or given.dim() < 2:
        return
    channels = given.double().transpose(0, 1).flatten(1)
    variance = module.running_var.double() + module.eps
    shift = ((channels.mean(1) - module.running_mean) / variance.sqrt()).abs().median()
    spread = ((channels.var(1, correction=0) + module.eps) / variance).log10().median().abs()
    layer.shift = min(layer.shift, float(shift), key=known)
    layer.spread = min(layer.spread, float(spread), key=known)
