"""From per-sample gradients to a few numbers per sample.

In come per-sample gradients in whatever form the engine has them; out come statistics, pooled over groups of parameters
and merged in float64. `statistic` has the statistics by name, sends a batch through the engine and pools what `measure`
makes of the gradients of each parameter: their moments. `gradient_metrics` is the interface of the package of that
name.
"""

from __future__ import annotations

from .gradient_metrics import GradientMetric, GradientMetricCollector, Max, Mean, MeanStd, Min, PNorm
from .measure import Moments
from .statistic import STATISTICS, Statistic, find_statistic, reduce_gradients
