"""Which units a gradient reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from .activation import ACTIVATION, DEATH, UnitActivation
from .quantity import TensorQuantity


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
