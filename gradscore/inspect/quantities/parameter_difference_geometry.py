"""How far parameters move, and whether they keep their direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from .geometry import NORM, Geometry, WholeModel, precise_norm, record_geometry
from .quantity import MODEL, TensorQuantity

RELATIVE = "size relative to the weights"


class ParameterDifferenceGeometry(TensorQuantity):
    """Norm of the difference between successive values of each parameter, and correlation of successive differences.

    The first value only begins the history. Parameters that nothing wrote to since the last look made no step: with
    gradient accumulation, batches after which the optimizer waits do not count. A difference never spans a reset: an
    inspector looks at the parameters before every training step and once more at the end of an epoch, so that no step
    is lost.

    The step of the whole model, all parameters in one vector, stands beside them as `(model)`, with its size relative
    to the weights it began at.

    Args:
        correlation: also record correlations.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter step"
    source = "parameter"

    def __init__(self, *, correlation: bool = True, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._geometry = Geometry(correlation=correlation, normalize=normalize)
        self._last: dict[str, Tensor] = {}
        self._steps, self._weights = WholeModel(normalize=normalize), WholeModel(normalize=normalize)
        self._versions: dict[str, int] = {}

    @override
    def is_news(self, tensors: Mapping[str, Tensor]) -> bool:
        return not all(self._is_as_before(name, tensor) for name, tensor in tensors.items())

    def _is_as_before(self, name: str, tensor: Tensor) -> bool:
        # Some optimizers write past the counter of changes in place, so that values have the last word.
        known = self._last.get(name)
        return known is not None and tensor._version == self._versions.get(name) and torch.equal(known, tensor.detach())

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        self._versions[name] = tensor._version
        tensor = tensor.detach()
        if name in self._last:
            record_geometry(self, self._geometry, name, tensor - self._last[name])
            self._steps.add(self._geometry.last_norm, tensor.numel())
            self._weights.add(precise_norm(self._last[name]), tensor.numel())
        self._last[name] = tensor.clone()

    @override
    def finish(self) -> None:
        if self._steps.size:
            step, weights = self._steps.take(), self._weights.take()
            self.record(NORM, MODEL, step)
            self.record(RELATIVE, MODEL, step / weights)

    def reset(self) -> None:
        """The next value begins a new history."""
        super().reset()
        self._geometry.restart()
        self._last = {}
