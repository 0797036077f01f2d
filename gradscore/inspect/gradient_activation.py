"""Which units a gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor

from .activation import ACTIVATION, DEATH, Units, unit_rates
from .quantity import Row, TensorQuantity


class GradientActivation(TensorQuantity):
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

    def __init__(self, *, death: bool = True, eps: float = 1e-8, **options: Any) -> None:
        super().__init__(**options)
        self.death, self.eps = death, eps
        self._units = Units()

    def observe(self, name: str, tensor: Tensor) -> None:
        """See `TensorQuantity`."""
        if tensor.numel():
            rates = unit_rates(tensor.reshape(-1) if not tensor.dim() else tensor, unit_axis=0, eps=self.eps)
            self.record(ACTIVATION, name, rates.mean())
            if self.death:
                self.record(DEATH, name, (rates == 0).double().mean())
            self._units.add(name, rates)

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By parameter: units whose gradient was zero in every batch since the last reset, and all units."""
        return self._units.never_active()

    def summary(self) -> Iterator[Row]:
        """See `Quantity`."""
        yield from super().summary()
        for name, (dead, units) in self.never_active().items():
            yield Row("never active", name, "units", dead)
            yield Row("never active", name, "share", dead / units)

    def reset(self) -> None:
        """See `Quantity`."""
        super().reset()
        self._units = Units()

    def merge(self, other: Self) -> None:
        """See `Quantity`."""
        super().merge(other)
        self._units.merge(other._units)
