"""The quantities that `gradscore inspect` knows by name, set up for saved models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..system import Registry
from .quantities.activation import GradientActivation, OutputActivation
from .quantities.geometry import GradientGeometry, OutputGradientGeometry, OutputNorm, ParameterNorm
from .quantities.gsnr import MeanGSNR
from .quantities.histograms import GradAbsMax, GradHist1d, GradHist2d, ParamAbsMax
from .quantities.quantity import Quantity

KEPT: Mapping[str, Any] = {"inplace": False, "line_aggregation": "median", "range_aggregation": "Q1-Q3"}
"""Values are kept, for medians and quartiles."""

QUANTITIES: Registry[Callable[[], Quantity]] = Registry(
    "quantity",
    "gradscore.quantities",
    {
        "grad_hist_1d": lambda: GradHist1d(bins=61, adapt=GradAbsMax(min_size=1e-300), per_parameter=True),
        "grad_hist_2d": lambda: GradHist2d(bins=(61, 40), adapt=(GradAbsMax(min_size=1e-300), ParamAbsMax())),
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
"""What makes a new quantity, by name.

Zero is zero, since a saved model has no noise that hides it.
"""


def make_quantities(names: Sequence[str] | None) -> list[Quantity]:
    """New quantities by name; all of them for None.

    Raises:
        ConfigError: no such name.
    """
    return [QUANTITIES.find(name, where="quantities")() for name in dict.fromkeys(names or QUANTITIES)]
