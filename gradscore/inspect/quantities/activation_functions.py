"""Which modules are activation functions."""

from __future__ import annotations

from torch import nn

ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn.modules.activation, name)
    for name in nn.modules.activation.__all__
    if name != "MultiheadAttention" and isinstance(getattr(nn.modules.activation, name), type)
)
"""All activation functions of PyTorch. Attention is not one, though it lives beside them."""


def is_activation(module: nn.Module) -> bool:
    """True for activation functions and everything derived from them.

    Example:
        >>> is_activation(nn.ReLU()), is_activation(nn.Linear(1, 1))
        (True, False)
    """
    return isinstance(module, ACTIVATIONS)
