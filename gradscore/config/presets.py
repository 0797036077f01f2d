"""Published choices of gradient features, by name.

A preset fills in what a configuration leaves out of `losses`, `statistics`, `parameters` and `granularity`; what the
configuration says itself wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from ..models import LAST_LAYER
from ..system import closest


@dataclass(frozen=True)
class Preset:
    """Losses, statistics, parameters and granularity, as in the section `features` of a configuration."""

    losses: tuple[str, ...]
    statistics: tuple[str, ...]
    parameters: tuple[str, ...]
    granularity: str

    def settings(self) -> dict[str, Any]:
        """The same as settings of the section `features`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


OBERDIEK = Preset(("pseudo_label",), ("max", "min", "mean", "std", "l1", "l2"), ("*",), "parameter")
"""Statistics of the gradient of every parameter, as if the predicted class were the label.

Source: Oberdiek, Rottmann, Gottschalk 2018, "Classification uncertainty of deep neural networks based on gradient
    information".
"""

GRADNORM = Preset(("uniform",), ("l1",), (LAST_LAYER,), "parameter")
"""L1 norm of the gradient of the last layer, with a label of equal probabilities. The paper's score is that of the
weight; a small one means OOD.

Source: Huang, Geng, Li 2021, "On the importance of gradients for detecting distributional shifts in the wild",
    equations 4 to 6.
"""

EXGRAD = Preset(("expected",), ("l1", "l2"), (LAST_LAYER,), "parameter")
"""Norm of the gradient of the last layer, expected when the label is drawn from the predicted distribution.

Source: Igoe, Chung, Char, Schneider 2022, "How useful are gradients for OOD detection really?".
"""

LEE_ALREGIB = Preset(("confounding",), ("l2",), ("*",), "module")
"""L2 norm of the gradient of every layer, with a label that says all classes at once. The paper squares the norms; meta
models look at logarithms, to which a square does nothing but double them.

Source: Lee and AlRegib 2020, "Gradients as a measure of uncertainty in neural networks"; Lee, Prabhushankar, AlRegib
    2022, "Gradient-based adversarial and out-of-distribution detection".
"""

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"oberdiek": OBERDIEK, "gradnorm": GRADNORM, "exgrad": EXGRAD, "lee_alregib": LEE_ALREGIB}
)


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the section `features` with what their `preset` adds.

    Raises:
        ValueError: no such preset.
    """
    name = settings.get("preset")
    if name is None:
        return dict(settings)
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"no preset {name!r}; {closest(str(name), PRESETS)}")
    return {**PRESETS[name].settings(), **settings}
