"""Which units of a layer say anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor, nn

from .activation import ACTIVATION, DEATH, Units, unit_rates
from .quantity import OutputQuantity, Row


class OutputActivation(OutputQuantity):
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

    def __init__(self, *, death: bool = True, eps: float = 1e-8, channel_last: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.death, self.eps, self.channel_last = death, eps, channel_last
        self._units = Units()

    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        """See `OutputQuantity`."""
        if output.dim() < 2 or not output.numel() or not (self.record_eval or self.is_training(module)):
            return
        rates = unit_rates(output, unit_axis=-1 if self.channel_last else 1, eps=self.eps)
        self.record(ACTIVATION, layer, rates.mean())
        if self.death:
            self.record(DEATH, layer, (rates == 0).double().mean())
        self._units.add(layer, rates)

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By layer: units that were zero in every batch since the last reset, and all units."""
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
