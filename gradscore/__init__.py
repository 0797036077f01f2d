"""Per-sample gradients that tell whether a prediction is wrong or a sample is out of distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import losses, metrics
from .collector import GradientMetricCollector
from .doctor import check_model
from .errors import GradscoreError
from .gradients import Engine, GradientWarning

if TYPE_CHECKING:
    from .scorer import Scorer

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "GradientMetricCollector",
    "GradientWarning",
    "GradscoreError",
    "Scorer",
    "__version__",
    "check_model",
    "losses",
    "metrics",
]


def __getattr__(name: str) -> Any:
    """`Scorer` is imported when it is first used: scikit-learn and pandas take their time."""
    if name != "Scorer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .scorer import Scorer

    return Scorer
