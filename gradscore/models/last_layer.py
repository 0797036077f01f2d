"""The features before the last layer, caught on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..columns import PENULTIMATE
from ..errors import ConfigError, ModelError
from ..system import FloatArray, closest
from .parameter_groups import last_layer


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last layer as arrays: `features @ weight.T + bias` are the logits.

    Attributes:
        weight: (K, D) float64; of one logit for two classes, the first row is zero.
        bias: (K,) float64, zeros for a layer without.
    """

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True)
class LastLayer:
    """The linear layer that makes the logits.

    Attributes:
        name: of the module.
        module: the layer.
    """

    name: str
    module: nn.Linear

    @property
    def columns(self) -> list[str]:
        """The names of the columns of its inputs."""
        return [f"{PENULTIMATE}{place}" for place in range(self.module.in_features)]

    @property
    def head(self) -> Head:
        """Its weights."""
        weight = self.module.weight.detach().cpu().double().numpy()
        found = torch.zeros(len(weight)) if self.module.bias is None else self.module.bias
        bias = found.detach().cpu().double().numpy()
        if len(weight) == 1:
            weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
        return Head(weight=weight, bias=bias)

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Runs the model once and looks at what enters the layer; no hook stays on the model.

        Args:
            forward: runs the model and returns its outputs (N, K).

        Returns:
            The outputs, and the features (N, D) without a graph.

        Raises:
            ModelError: the logits are not what the layer makes of one matrix of features.
        """
        seen: list[tuple[Any, Any]] = []

        def look(_module: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
            seen.append((inputs[0], result))

        handle = self.module.register_forward_hook(look)
        try:
            outputs = forward()
        finally:
            handle.remove()
        if len(seen) != 1 or seen[0][0].dim() != 2 or not _same(seen[0][1], outputs):
            raise ModelError(
                f"features.penultimate: the logits are not what layer '{self.name}' makes of one vector of features "
                "per sample; name the linear layer that makes them, or set it to false (an audit of labels needs one)"
            )
        return outputs, seen[0][0].detach()


def find_last_layer(model: nn.Module, setting: bool | str) -> LastLayer | None:
    """The layer whose inputs are wanted.

    Args:
        model: the classifier.
        setting: the name of the linear layer that makes the logits, True for the last one, False for none.

    Raises:
        ConfigError: no such module, or it is not a linear layer.
        ModelError: the model has no layer with a weight matrix.
    """
    if setting is False:
        return None
    name = last_layer(model) if setting is True else setting
    modules = dict(model.named_modules())
    if name not in modules:
        raise ConfigError(f"features.penultimate: no module '{name}'; {closest(name, modules)}")
    module = modules[name]
    if not isinstance(module, nn.Linear):
        raise ConfigError(
            f"features.penultimate: wanted the linear layer that makes the logits, got '{name}', a "
            f"{type(module).__name__}; name another one, or set it to false (an audit of labels needs one)"
        )
    return LastLayer(name, module)


def _same(result: Tensor, outputs: Tensor) -> bool:
    if result.shape[-1:] == (1,):  # one logit for two classes
        outputs = outputs[:, 1:]
    return result is outputs or torch.equal(result.nan_to_num(), outputs.nan_to_num())
