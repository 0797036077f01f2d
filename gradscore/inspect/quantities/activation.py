"""How much of a layer is active: what two quantities share."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, nan
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from ...errors import ConfigError
from .quantity import Quantity, Row

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
