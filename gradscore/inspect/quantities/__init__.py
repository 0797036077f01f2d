"""What can be looked at: one file for each quantity.

In come outputs, gradients, parameters or modules; out come aggregates by measure and layer. `quantity` has the base
classes, `aggregate` what becomes of values that are observed again and again, `histogram` and `bin_adaptation` bins.
"""

from __future__ import annotations

from .aggregate import Aggregate, Running, Series
from .bin_adaptation import BinAdaptation, GradAbsMax, ParamAbsMax
from .explicit_call import ExplicitCall
from .grad_hist_1d import GradHist1d
from .grad_hist_2d import GradHist2d
from .gradient_activation import GradientActivation
from .gradient_geometry import GradientGeometry
from .histogram import Histogram
from .loss_module import LossModule
from .mean_gsnr import MeanGSNR
from .output_activation import OutputActivation
from .output_gradient_geometry import OutputGradientGeometry
from .output_norm import OutputNorm
from .parameter_difference_geometry import ParameterDifferenceGeometry
from .parameter_norm import ParameterNorm
from .quantity import (
    InputGradientQuantity,
    InputQuantity,
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    SampleGradientQuantity,
    TensorQuantity,
    every,
)

__all__ = [
    "Aggregate",
    "BinAdaptation",
    "ExplicitCall",
    "GradAbsMax",
    "GradHist1d",
    "GradHist2d",
    "GradientActivation",
    "GradientGeometry",
    "Histogram",
    "InputGradientQuantity",
    "InputQuantity",
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
]
