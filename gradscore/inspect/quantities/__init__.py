"""What can be looked at, and the quantities that `gradscore inspect` knows by name.

In come outputs, gradients, parameters or modules; out come `aggregates` by measure and layer. `quantity` has the base
classes, the other files quantities by subject: `geometry` (norms and turns), `activation` (what is zero), `histograms`
and `gsnr` (of the gradients of single samples, which `sample_gradients` brings), and `losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...system import Registry
from .activation import GradientActivation, OutputActivation
from .aggregates import Running, Series
from .geometry import GradientGeometry, OutputGradientGeometry, OutputNorm, ParameterDifferenceGeometry, ParameterNorm
from .gsnr import MeanGSNR
from .histograms import BinAdaptation, GradHist1d, GradHist2d, Histogram
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
    "QUANTITIES",
    "BinAdaptation",
    "ExplicitCall",
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
    "ParameterDifferenceGeometry",
    "ParameterNorm",
    "Quantity",
    "Running",
    "SampleGradientQuantity",
    "Series",
    "TensorQuantity",
    "every",
]

KEPT: Mapping[str, Any] = {"inplace": False, "line_aggregation": "median", "range_aggregation": "Q1-Q3"}
"""Values are kept, for medians and quartiles."""

ANY_SIZE = BinAdaptation(min_size=1e-300)
"""Bins as narrow as gradients are small."""

QUANTITIES: Registry[Callable[[], Quantity]] = Registry(
    "quantity",
    "gradscore.quantities",
    {
        "grad_hist_1d": lambda: GradHist1d(bins=61, adapt=ANY_SIZE, per_parameter=True),
        "grad_hist_2d": lambda: GradHist2d(bins=(61, 40), adapt=(ANY_SIZE, BinAdaptation())),
        "mean_gsnr": lambda: MeanGSNR(inplace=False),
        "output_gradient_geometry": lambda: OutputGradientGeometry(
            **KEPT, per_sample=True, reduction="sum", skip_activation=False, log_scale=True
        ),
        "gradient_geometry": lambda: GradientGeometry(**KEPT, normalize=True, log_scale=True),
        "gradient_activation": lambda: GradientActivation(**KEPT, eps=0.0),
        "output_activation": lambda: OutputActivation(**KEPT, eps=0.0, record_eval=True),
        "output_norm": lambda: OutputNorm(**KEPT, normalize=True, record_eval=True),
        "parameter_norm": lambda: ParameterNorm(**KEPT, normalize=True),
    },
)
"""What makes a new quantity, by name, set up for saved models.

Zero is zero, since a saved model has no noise that hides it.
"""
