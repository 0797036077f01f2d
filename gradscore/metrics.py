"""Gradient metrics, with the interface of gradient_metrics; see `gradscore.statistics`."""

from __future__ import annotations

from .statistics import GradientMetric, Max, Mean, MeanStd, Min, PNorm

__all__ = ["GradientMetric", "Max", "Mean", "MeanStd", "Min", "PNorm"]
