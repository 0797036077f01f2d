"""From per-sample gradients to a few numbers per sample.

In come per-sample gradients in whatever form the engine has them; out come statistics, pooled over groups of parameters
and merged in float64. `reduce` runs a batch through the engine, `moments` merges, `metrics` and `collector` are the
interface of the package gradient_metrics.
"""

from __future__ import annotations

from .collector import GradientMetricCollector
from .metrics import GradientMetric, Max, Mean, MeanStd, Min, PNorm
from .moments import norm_order
from .reduce import reduce_gradients

__all__ = [
    "GradientMetric",
    "GradientMetricCollector",
    "Max",
    "Mean",
    "MeanStd",
    "Min",
    "PNorm",
    "norm_order",
    "reduce_gradients",
]
