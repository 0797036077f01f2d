"""The health of gradients, layer by layer, of saved models and during training.

In come a model and what it is run on; out come figures for each layer. A `quantity` says what is looked at:
`layer_quantities` whole batches, `histograms` and `sample_gradients` single samples. An `inspector` feeds quantities
from a model that runs, by `hooks`, and `saved_model` from the splits of a configuration, in groups of samples.
`findings` say what is not well, from `layer_figures`, and `health` looks for them in a saved model or while one trains.
`inspection_report` and `training_report` write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .findings import SCOPE
from .health import HealthWarning, examine
from .histograms import GradHist1d, GradHist2d
from .inspection_report import FILES, write_inspection
from .inspector import InspectionWarning, Inspector
from .layer_quantities import (
    ExplicitCall,
    GradientActivation,
    GradientGeometry,
    LossModule,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
)
from .quantity import (
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    SampleGradientQuantity,
    TensorQuantity,
    every,
)
from .sample_gradients import MeanGSNR
from .saved_model import QUANTITIES, Inspection, inspect_config

if TYPE_CHECKING:
    from .lightning_callback import InspectorCallback


def __getattr__(name: str) -> Any:
    """Imports what needs Lightning when it is first asked for."""
    if name == "InspectorCallback":
        from .lightning_callback import InspectorCallback

        return InspectorCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
