"""Gradient metrics, with the interface of gradient_metrics; see `gradscore.statistics`."""

from __future__ import annotations

from .statistics.metrics import BUILT_IN, GradientMetric, Max, Mean, MeanStd, Min, PNorm, PooledMetric, Targets

__all__ = ["BUILT_IN", "GradientMetric", "Max", "Mean", "MeanStd", "Min", "PNorm", "PooledMetric", "Targets"]
