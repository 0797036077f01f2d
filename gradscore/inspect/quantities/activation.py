"""Which units of a layer are active, and which a gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from ...errors import ConfigError
from .quantity import OutputQuantity, Quantity, Row, TensorQuantity

ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn.modules.activation, name)
    for name in nn.modules.activation.__all__
    if name != "MultiheadAttention" and isinstance(getattr(nn.modules.activation, name), type)
)
"""All activation functions of PyTorch. Attention is not one, though it lives beside them."""


def is_activation(module: nn.Module) -> bool:
    """True for activation functions and everything derived from them.

    Example:
        >>> is_activation(nn.ReLU()), is_activation(nn.Linear(1, 1))
        (True, False)
    """
    return isinstance(module, ACTIVATIONS)


ACTIVATION, DEATH = "activation rate", "death rate"


def unit_rates(values: Tensor, *, unit_axis: int, eps: float) -> Tensor:
    """For every unit the share of its values whose magnitude exceeds `eps`.

    Args:
        values: of any shape.
        unit_axis: the axis of the units: 0, 1 or -1.
        eps: magnitudes up to this count as zero.

    Returns:
        (units,) float64; NaN for all if a value is not finite.
    """
    sizes = values.detach().abs()
    sizes = sizes if sizes.dtype in (torch.float32, torch.float64) else sizes.float()
    largest = sizes.amax()
    active = sizes.gt_(eps)
    # Ones and zeros in floating point: PyTorch sums those several times as fast as booleans.
    if unit_axis == -1:
        counts = active.flatten(0, -2).sum(0, dtype=torch.float64)
    elif unit_axis == 1:
        counts = active.reshape(*active.shape[:2], -1).sum(2).double().sum(0)
    else:
        counts = active.reshape(len(active), -1).sum(1).double()
    rates = counts / (active.numel() / len(counts))
    if largest.device.type == "cpu":
        return rates if isfinite(float(largest)) else torch.full_like(rates, nan)
    return rates + 0 * largest.double()  # which does not wait for the device


class Units:
    """Remembers for every layer which units were active at least once."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, Tensor]] = {}

    def add(self, layer: str, active: Tensor) -> None:
        """Takes the units that are active in one batch, (units,) bool; other widths of a layer are kept apart."""
        widths = self._seen.setdefault(layer, {})
        active = active.cpu()
        widths[len(active)] = widths[len(active)] | active if len(active) in widths else active

    def merge(self, other: Units) -> None:
        """Takes in what another one saw."""
        for layer, widths in other._seen.items():
            for active in widths.values():
                self.add(layer, active)

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By layer, and width if it has several: units that were never active, and all units."""
        return {
            layer if len(widths) == 1 else f"{layer} ({width} wide)": (int((~active).sum()), width)
            for layer, widths in self._seen.items()
            for width, active in widths.items()
        }


class UnitActivation(Quantity):
    """Records how much of the units of a layer is active, and remembers those that never were.

    Args:
        death: also record death rates.
        eps: magnitudes up to this count as zero.
        options: see `Quantity`.

    Raises:
        ConfigError: a negative eps.
    """

    def __init__(self, *, death: bool = True, eps: float = 1e-8, **options: Any) -> None:
        super().__init__(**options)
        if not eps >= 0:
            raise ConfigError(f"{self.name}: eps is a magnitude, 0 or more, got {eps}")
        self.death, self.eps = death, eps
        self._units = Units()

    def record_units(self, layer: str, values: Tensor, *, unit_axis: int) -> None:
        """Takes the values of one batch; see `unit_rates`."""
        rates = unit_rates(values, unit_axis=unit_axis, eps=self.eps)
        rate = rates.mean()
        self.record(ACTIVATION, layer, rate)
        if self.death:
            self.record(DEATH, layer, (rates == 0).double().mean() + 0 * rate)
        self._units.add(layer, rates != 0)

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By layer or parameter: units that were zero in every batch since the last reset, and all units."""
        return self._units.never_active()

    @override
    def summary(self) -> Iterator[Row]:
        yield from super().summary()
        for name, (dead, units) in self.never_active().items():
            yield Row("never active", name, "units", dead)
            yield Row("never active", name, "share", dead / units)

    @override
    def reset(self) -> None:
        super().reset()
        self._units = Units()

    @override
    def merge(self, other: Self) -> None:
        super().merge(other)
        self._units.merge(other._units)


class GradientActivation(UnitActivation, TensorQuantity):
    """Share of a parameter's gradient that is not zero, and of its units whose gradient is zero throughout.

    A unit is a row of the first axis: an output feature or channel. "activation rate" is the mean over units of the
    share of their elements that are not zero, "death rate" the share of units without any, both per batch. A unit may
    be dead for a batch only; `never_active` counts those that were dead in every batch.

    The gradient is that of the whole batch, so samples can cancel each other; with magnitudes this is rare.

    Args:
        death: also record death rates.
        eps: magnitudes up to this count as zero.
        options: see `Quantity`.
    """

    name = "gradient activation"
    title = "What gradients reach"
    captions: ClassVar[Mapping[str, str]] = {
        ACTIVATION: "Share of the elements of a gradient that are not zero.",
        DEATH: "Share of the units of a layer that no gradient of the batch reaches.",
    }

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        if tensor.numel():
            self.record_units(name, tensor if tensor.dim() else tensor.reshape(-1), unit_axis=0)


class OutputActivation(UnitActivation, OutputQuantity):
    """Share of a layer's outputs that are not zero, and of its units that are zero throughout a batch.

    A unit is a feature or channel. "activation rate" is the mean over units of the share of samples and positions at
    which they are not zero, "death rate" the share of units that are zero everywhere, both per batch. `never_active`
    counts the units that were dead in every batch. A layer whose outputs have one axis has no units and is left out.

    Args:
        death: also record death rates.
        eps: magnitudes up to this count as zero.
        channel_last: units lie on the last axis (transformers), not on the second.
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "output activation"
    title = "Active units"
    captions: ClassVar[Mapping[str, str]] = {
        ACTIVATION: "Share of samples and positions at which a unit is not zero.",
        DEATH: "Share of the units that are zero for the whole batch.",
    }

    def __init__(self, *, channel_last: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.channel_last = channel_last

    @override
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        if output.dim() >= 2 and output.numel() and (self.record_eval or self.is_training(module)):
            self.record_units(layer, output, unit_axis=-1 if self.channel_last else 1)
