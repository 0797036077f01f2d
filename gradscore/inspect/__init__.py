"""The health of gradients, layer by layer: on saved models and real data, and during training.

In come a model and what it is run on; out come figures for each layer. A quantity (`quantities`) says what is looked
at, an `inspector` feeds quantities from a model that runs, by way of a `watcher`, and `saved_model` from the splits
of a configuration, in groups of samples. What is not well is found from `vitals`, worded by `findings` and tried out
by an `examination`, of a saved model or while one trains. `checkpoints` shows how a model moved, `training_record` a
run; `inspection_report`, `training_report` and `tensorboard` write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checkpoints import CheckpointMoves, compare_checkpoints
from .examination import Group, HealthWarning, examine
from .findings import Finding
from .inspection_report import InspectionFiles, write_inspection, write_moves
from .inspector import InspectionWarning, Inspector
from .quantities import (
    QUANTITIES,
    BinAdaptation,
    ExplicitCall,
    GradHist1d,
    GradHist2d,
    GradientActivation,
    GradientGeometry,
    Histogram,
    InputGradientQuantity,
    InputQuantity,
    LossModule,
    MeanGSNR,
    ModuleQuantity,
    OutputActivation,
    OutputGradientGeometry,
    OutputGradientQuantity,
    OutputNorm,
    OutputQuantity,
    ParameterDifferenceGeometry,
    ParameterNorm,
    Quantity,
    Running,
    SampleGradientQuantity,
    Series,
    TensorQuantity,
    every,
)
from .saved_model import Inspection, inspect_config
from .tensorboard import to_tensorboard
from .training_record import TrainingRecord, read_record
from .training_report import write_training

if TYPE_CHECKING:
    from .lightning_callback import InspectorCallback

__all__ = [
    "QUANTITIES",
    "BinAdaptation",
    "CheckpointMoves",
    "ExplicitCall",
    "Finding",
    "GradHist1d",
    "GradHist2d",
    "GradientActivation",
    "GradientGeometry",
    "Group",
    "HealthWarning",
    "Histogram",
    "InputGradientQuantity",
    "InputQuantity",
    "Inspection",
    "InspectionFiles",
    "InspectionWarning",
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
    "ParameterDifferenceGeometry",
    "ParameterNorm",
    "Quantity",
    "Running",
    "SampleGradientQuantity",
    "Series",
    "TensorQuantity",
    "TrainingRecord",
    "compare_checkpoints",
    "every",
    "examine",
    "inspect_config",
    "read_record",
    "to_tensorboard",
    "write_inspection",
    "write_moves",
    "write_training",
]


def __getattr__(name: str) -> Any:
    """Imports what needs Lightning when it is first asked for."""
    if name == "InspectorCallback":
        from .lightning_callback import InspectorCallback

        return InspectorCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
