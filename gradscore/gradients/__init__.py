"""Per-sample gradients, read off the autograd graph."""

from .engine import Engine, GradientWarning
from .factored import PerSample

__all__ = ["Engine", "GradientWarning", "PerSample"]
