"""How large the outputs of layers are."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from .geometry import precise_norm
from .quantity import OutputQuantity


class OutputNorm(OutputQuantity):
    """Mean over a batch of the Euclidean norm of each sample's output, all axes but the first flattened.

    The order of the axes does not matter, so there is no setting for it. Outputs of one axis are samples of one number.

    Args:
        normalize: divide norms by the root of the number of elements of a sample: root mean square.
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "output"
    title = "Outputs"
    captions: ClassVar[Mapping[str, str]] = {
        "norm": "Root mean square of what a layer returns, mean over the batch.",
    }

    def __init__(self, *, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.normalize = normalize

    @override
    def caption(self, measure: str) -> str:
        said = super().caption(measure)
        return said if self.normalize else said.replace("Root mean square", "Euclidean norm")

    @override
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        if not output.dim() or not output.numel() or not (self.record_eval or self.is_training(module)):
            return
        flat = output.detach().reshape(len(output), -1)
        norm = precise_norm(flat, dim=1).mean()
        self.record("norm", layer, norm / sqrt(flat.shape[1]) if self.normalize else norm)
