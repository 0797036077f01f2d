"""Per-sample gradients that tell whether a prediction is wrong or a sample is out of distribution.

Everything named here is imported when it is first used, so that `import gradscore` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import GradscoreError

if TYPE_CHECKING:
    from . import losses, metrics
    from .deployment import Scorer
    from .detector import Detector, Report
    from .doctor import check_model
    from .gradients import Engine, GradientWarning
    from .label_audit import Audit, audit
    from .monitoring import Monitor
    from .pipeline import features
    from .projections import Projections, load_projections, project
    from .statistics import GradientMetricCollector

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Detector",
    "Engine",
    "GradientMetricCollector",
    "GradientWarning",
    "GradscoreError",
    "Monitor",
    "Projections",
    "Report",
    "Scorer",
    "__version__",
    "audit",
    "check_model",
    "features",
    "load_projections",
    "losses",
    "metrics",
    "project",
]

_PACKAGES = {
    "Audit": "label_audit",
    "Detector": "detector",
    "Engine": "gradients",
    "GradientMetricCollector": "statistics",
    "GradientWarning": "gradients",
    "Monitor": "monitoring",
    "Projections": "projections",
    "Report": "detector",
    "Scorer": "deployment",
    "audit": "label_audit",
    "check_model": "doctor",
    "features": "pipeline",
    "load_projections": "projections",
    "project": "projections",
}
_MODULES = ("losses", "metrics")


def __getattr__(name: str) -> Any:
    """Imports what is asked for."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PACKAGES[name]}", __name__), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
