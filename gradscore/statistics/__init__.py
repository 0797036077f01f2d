"""From per-sample gradients to a few numbers per sample.

In come per-sample gradients in whatever form the engine has them; out come statistics, pooled over groups of parameters
and merged in float64. `table` has the statistics by name. `reduce` runs a batch through the engine, `measure` reduces
the gradients of a parameter to `moments`, in closed form, by `sums` or by the `gram` matrix, and `pool` pools those of
groups; `metrics` and `collector` are the interface of the package gradient_metrics.
"""

from __future__ import annotations

from .collector import GradientMetricCollector
from .metrics import GradientMetric, Max, Mean, MeanStd, Min, PNorm
from .moments import Moments
from .reduce import reduce_gradients
from .table import STATISTICS, Statistic, find_statistic

__all__ = [
    "STATISTICS",
    "GradientMetric",
    "GradientMetricCollector",
    "Max",
    "Mean",
    "MeanStd",
    "Min",
    "Moments",
    "PNorm",
    "Statistic",
    "find_statistic",
    "reduce_gradients",
]
