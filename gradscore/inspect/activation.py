"""How much of a layer is active: what two quantities share."""

from __future__ import annotations

from torch import Tensor

ACTIVATION, DEATH = "activation rate", "death rate"


def unit_rates(values: Tensor, *, unit_axis: int, eps: float) -> Tensor:
    """For every unit the share of its values whose magnitude exceeds `eps`.

    Args:
        values: of any shape.
        unit_axis: the axis of the units.
        eps: magnitudes up to this count as zero; NaN counts as active.

    Returns:
        (units,) float64.
    """
    active = values.detach().abs().le(eps).logical_not_()
    active = active.movedim(unit_axis, 0).reshape(active.shape[unit_axis], -1)
    return active.sum(1).double() / active.shape[1]


class Units:
    """Remembers for every layer which units were active at least once."""

    def __init__(self) -> None:
        self._seen: dict[str, Tensor] = {}

    def add(self, layer: str, rates: Tensor) -> None:
        """Takes the rates of one batch, (units,)."""
        active = (rates > 0).cpu()
        known = self._seen.get(layer)
        self._seen[layer] = active if known is None or known.shape != active.shape else known | active

    def merge(self, other: Units) -> None:
        """Takes in what another one saw."""
        for layer, active in other._seen.items():
            self.add(layer, active)

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By layer: units that were never active, and all units."""
        return {layer: (int((~active).sum()), len(active)) for layer, active in self._seen.items()}
