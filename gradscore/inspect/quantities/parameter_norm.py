"""How large parameters are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from .geometry import precise_norm
from .quantity import ModuleQuantity


class ParameterNorm(ModuleQuantity):
    """Euclidean norm of the parameters of each module that are its own, by name.

    Args:
        attrs: names of attributes that are tensors, or one name, to look at instead; a module without one, or where it
            is None, is left out.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter"
    title = "Parameters"
    captions: ClassVar[Mapping[str, str]] = {
        "weight norm": "Root mean square of the weights.",
        "bias norm": "Root mean square of the biases.",
    }

    def __init__(self, *, attrs: str | Sequence[str] | None = None, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.attrs = (attrs,) if isinstance(attrs, str) else attrs
        self.normalize = normalize

    @override
    def caption(self, measure: str) -> str:
        said = super().caption(measure)
        return said if self.normalize else said.replace("Root mean square", "Euclidean norm")

    @override
    def observe(self, layer: str, module: nn.Module) -> None:
        own = [name for name, _ in module.named_parameters(recurse=False)]
        for name in own if self.attrs is None else self.attrs:
            tensor = getattr(module, name, None)
            if isinstance(tensor, Tensor) and tensor.numel():
                norm = precise_norm(tensor.detach())
                self.record(f"{name} norm", layer, norm / sqrt(tensor.numel()) if self.normalize else norm)
