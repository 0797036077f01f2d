"""Gradient metrics of every sample in a batch; see `gradscore.statistics`."""

from __future__ import annotations

from .statistics import GradientMetricCollector

__all__ = ["GradientMetricCollector"]
