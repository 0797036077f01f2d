"""How far parameters move, and whether they keep their direction."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from .geometry import Geometry, record_geometry
from .quantity import TensorQuantity


class ParameterDifferenceGeometry(TensorQuantity):
    """Norm of the difference between successive values of each parameter, and correlation of successive differences.

    The first value only begins the history. A difference never spans a reset: an inspector looks at the parameters
    before every training step and once more at the end of an epoch, so that no step is lost.

    Args:
        correlation: also record correlations.
        normalize: divide norms by the root of the number of elements: root mean square.
        log_scale: draw norms on a logarithmic scale.
        options: see `Quantity`.
    """

    name = "parameter step"
    source = "parameter"

    def __init__(
        self, *, correlation: bool = True, normalize: bool = False, log_scale: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.log_scale = log_scale
        self._geometry = Geometry(correlation=correlation, normalize=normalize)
        self._last: dict[str, Tensor] = {}

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        tensor = tensor.detach()
        if name in self._last:
            record_geometry(self, self._geometry, name, tensor - self._last[name])
        self._last[name] = tensor.clone()

    def reset(self) -> None:
        """The next value begins a new history."""
        super().reset()
        self._geometry.restart()
        self._last = {}
