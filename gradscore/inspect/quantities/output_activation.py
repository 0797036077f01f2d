"""Which units of a layer say anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from .activation import ACTIVATION, DEATH, UnitActivation
from .quantity import OutputQuantity


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
