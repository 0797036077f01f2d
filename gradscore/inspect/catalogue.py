"""The quantities that `gradscore inspect` knows by name, set up for saved models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..system import Registry
from .quantities.bin_adaptation import GradAbsMax, ParamAbsMax
from .quantities.grad_hist_1d import GradHist1d
from .quantities.grad_hist_2d import GradHist2d
from .quantities.gradient_activation import GradientActivation
from .quantities.gradient_geometry import GradientGeometry
from .quantities.mean_gsnr import MeanGSNR
from .quantities.output_activation import OutputActivation
from .quantities.output_gradient_geometry import OutputGradientGeometry
from .quantities.output_norm import OutputNorm
from .quantities.parameter_norm import ParameterNorm
from .quantities.quantity import Quantity

QUANTITIES: Registry[Callable[[], Quantity]] = Registry(
    "quantity",
    "gradscore.quantities",
    {
        "grad_hist_1d": lambda: GradHist1d(bins=61, adapt=GradAbsMax(min_size=1e-300), per_parameter=True),
        "grad_hist_2d": lambda: GradHist2d(bins=(61, 40), adapt=(GradAbsMax(min_size=1e-300), ParamAbsMax())),
        "mean_gsnr": lambda: MeanGSNR(inplace=False),
        "output_gradient_geometry": lambda: OutputGradientGeometry(
            inplace=False, per_sample=True, reduction="sum", skip_activation=False, log_scale=True
        ),
        "gradient_geometry": lambda: GradientGeometry(inplace=False, normalize=True, log_scale=True),
        "gradient_activation": lambda: GradientActivation(inplace=False, eps=0.0),
        "output_activation": lambda: OutputActivation(inplace=False, eps=0.0, record_eval=True),
        "output_norm": lambda: OutputNorm(inplace=False, normalize=True, record_eval=True),
        "parameter_norm": lambda: ParameterNorm(inplace=False, normalize=True),
    },
)
"""What makes a new quantity, by name.

Values are kept, for quartiles; zero is zero, since a saved model has no noise that hides it.
"""


def make_quantities(names: Sequence[str] | None) -> list[Quantity]:
    """New quantities by name; all of them for None.

    Raises:
        ConfigError: no such name.
    """
    return [QUANTITIES.find(name, where="quantities")() for name in dict.fromkeys(names or QUANTITIES)]
