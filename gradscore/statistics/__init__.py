"""From per-sample gradients to a few numbers per sample.

In come per-sample gradients in whatever form the engine has them; out come statistics, pooled over groups of parameters
and merged in float64. `reduce` runs a batch through the engine, `moments` merges, `metrics` and `collector` are the
interface of the package gradient_metrics.
"""

from __future__ import annotations

from .collector import GradientMetricCollector
from .moments import norm_order
from .reduce import reduce_gradients

__all__ = ["GradientMetricCollector", "norm_order", "reduce_gradients"]
