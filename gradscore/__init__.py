"""Per-sample gradients that tell whether a prediction is wrong or a sample is out of distribution."""

from . import losses, metrics
from .collector import GradientMetricCollector
from .errors import GradscoreError
from .gradients import Engine, GradientWarning

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "GradientMetricCollector",
    "GradientWarning",
    "GradscoreError",
    "__version__",
    "losses",
    "metrics",
]
