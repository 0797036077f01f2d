"""The health of gradients, layer by layer: on saved models and real data, and during training.

A quantity says what is looked at, an `Inspector` feeds quantities from a model, and `inspect_config` runs all of them
over the splits of a configuration.
"""

from typing import TYPE_CHECKING, Any

from .aggregate import Running, Series
from .bin_adaptation import BinAdaptation, GradAbsMax, ParamAbsMax
from .explicit_call import ExplicitCall
from .grad_hist_1d import GradHist1d
from .grad_hist_2d import GradHist2d
from .gradient_activation import GradientActivation
from .gradient_geometry import GradientGeometry
from .histogram import Histogram
from .inspector import Inspector
from .loss_module import LossModule
from .mean_gsnr import MeanGSNR
from .output_activation import OutputActivation
from .output_gradient_geometry import OutputGradientGeometry
from .output_norm import OutputNorm
from .parameter_difference_geometry import ParameterDifferenceGeometry
from .parameter_norm import ParameterNorm
from .quantity import (
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    SampleGradientQuantity,
    TensorQuantity,
    every,
)
from .samples import observe_samples
from .tensorboard import to_tensorboard

if TYPE_CHECKING:
    from .lightning_callback import InspectorCallback

__all__ = [
    "BinAdaptation",
    "ExplicitCall",
    "GradAbsMax",
    "GradHist1d",
    "GradHist2d",
    "GradientActivation",
    "GradientGeometry",
    "Histogram",
    "Inspector",
    "InspectorCallback",
    "LossModule",
    "MeanGSNR",
    "ModuleQuantity",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputGradientQuantity",
    "OutputNorm",
    "OutputQuantity",
    "ParamAbsMax",
    "ParameterDifferenceGeometry",
    "ParameterNorm",
    "Quantity",
    "Running",
    "SampleGradientQuantity",
    "Series",
    "TensorQuantity",
    "every",
    "observe_samples",
    "to_tensorboard",
]


def __getattr__(name: str) -> Any:
    """Imports what needs Lightning when it is first asked for."""
    if name == "InspectorCallback":
        from .lightning_callback import InspectorCallback

        return InspectorCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
