"""Norms of gradients with respect to layer outputs, and how they turn from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from typing_extensions import override

from ...errors import ConfigError
from .activation_functions import is_activation
from .geometry import Geometry, precise_norm, record_geometry
from .quantity import OutputGradientQuantity

PER_SAMPLE = "norm per sample"


class OutputGradientGeometry(OutputGradientQuantity):
    """Norm of the gradient with respect to a layer's output, and its correlation with that of the batch before.

    As in monitorch the whole batch is one vector: "norm", and "correlation", the cosine of the angle between two
    batches in a row. Where the angle is undefined (the first batch after a reset, a batch of another size, a gradient
    of zero), no value is recorded. With `per_sample` there is also "norm per sample", one value for every sample.

    Args:
        normalize_by_size: divide norms by the root of the number of elements: root mean square.
        compute_correlation: also record correlations; keeps the last gradient of every layer.
        skip_activation: leave activation functions out, those derived from PyTorch's too.
        per_sample: also record the norm of every sample's gradient, for outputs whose first axis is the samples.
        reduction: how the loss joins the samples. With "mean", the gradients of single samples are multiplied by the
            batch size, so that they are those of the sample's own loss.
        options: see `Quantity`.

    Raises:
        ConfigError: another reduction.
    """

    name = "output gradient"
    title = "Gradients at layer outputs"
    captions: ClassVar[Mapping[str, str]] = {
        "norm": "Size of the loss's gradient with respect to what a layer returns, one value a batch.",
        PER_SAMPLE: "The same for every sample alone: where samples differ in size, their scores differ.",
        "correlation": "Cosine of the angle between the gradients of two batches in a row: 1 is the same direction, "
        "0 no relation.",
    }

    def __init__(
        self,
        *,
        normalize_by_size: bool = False,
        compute_correlation: bool = True,
        skip_activation: bool = True,
        per_sample: bool = False,
        reduction: Literal["mean", "sum"] = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if reduction not in ("mean", "sum"):
            raise ConfigError(
                f"{self.name}: the loss joins samples by reduction 'mean' or 'sum', got {reduction!r}; with "
                "reduction='none', name the one with which your loop joins them"
            )
        self.normalize_by_size, self.skip_activation = normalize_by_size, skip_activation
        self.per_sample, self.reduction = per_sample, reduction
        self._geometry = Geometry(correlation=compute_correlation, normalize=normalize_by_size, copies=False)

    @override
    def wants(self, module: nn.Module) -> bool:
        return not (self.skip_activation and is_activation(module))

    @override
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        del module
        record_geometry(self, self._geometry, layer, gradient)
        if self.per_sample and gradient.dim():
            norms = precise_norm(gradient.detach().reshape(len(gradient), -1), dim=1)
            size = sqrt(max(1, prod(gradient.shape[1:]))) if self.normalize_by_size else 1.0
            self.record(PER_SAMPLE, layer, norms * ((len(gradient) if self.reduction == "mean" else 1) / size))

    def reset(self) -> None:
        """The next batch has no batch before it."""
        super().reset()
        self._geometry.restart()
