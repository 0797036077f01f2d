"""Norms of parameter gradients, and how they turn from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from .geometry import NORM, Geometry, WholeModel, record_geometry
from .quantity import MODEL, TensorQuantity


class GradientGeometry(TensorQuantity):
    """Norm of the gradient of each parameter, and its correlation with that of the batch before.

    The norm of the gradient of the whole model, all parameters in one vector, stands beside them as `(model)`.

    See `OutputGradientGeometry` for both measures and for where no value is recorded.

    Args:
        correlation: also record correlations; keeps a copy of the last gradient of every parameter.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter gradient"
    title = "Gradients of parameters"
    captions: ClassVar[Mapping[str, str]] = {
        "norm": "Root mean square of the gradient of each parameter, one value a batch.",
        "correlation": "Whether batches pull a parameter in the same direction (1) or not (0).",
    }

    def __init__(self, *, correlation: bool = True, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._geometry = Geometry(correlation=correlation, normalize=normalize)
        self._model = WholeModel(normalize=normalize)

    @override
    def caption(self, measure: str) -> str:
        said = super().caption(measure)
        return said if self._model.normalize else said.replace("Root mean square", "Euclidean norm")

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        record_geometry(self, self._geometry, name, tensor)
        self._model.add(self._geometry.last_norm, tensor.numel())

    @override
    def finish(self) -> None:
        if self._model.size:
            self.record(NORM, MODEL, self._model.take())

    def reset(self) -> None:
        """The next batch has no batch before it."""
        super().reset()
        self._geometry.restart()
        self._model.take()
