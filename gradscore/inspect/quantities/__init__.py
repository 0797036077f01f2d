"""What can be looked at: one file for each quantity.

In come outputs, gradients, parameters or modules; out come aggregates by measure and layer. `quantity` has the base
classes, `aggregate` what becomes of values that are observed again and again, `histogram` and `bin_adaptation` bins.
"""

from __future__ import annotations

from .activation import GradientActivation, OutputActivation
from .aggregates import Aggregate, Running, Series
from .geometry import GradientGeometry, OutputGradientGeometry, OutputNorm, ParameterDifferenceGeometry, ParameterNorm
from .gsnr import MeanGSNR
from .histograms import BinAdaptation, GradAbsMax, GradHist1d, GradHist2d, Histogram, ParamAbsMax
from .losses import ExplicitCall, LossModule
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
