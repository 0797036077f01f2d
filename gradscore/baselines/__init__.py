"""Scores of the features before the last layer, to compare with; they need the extra `baselines`."""

from __future__ import annotations

from .detectors import FEATURE_BASELINES, fit_detectors
from .head import Head, read_head, write_head

__all__ = ["FEATURE_BASELINES", "Head", "fit_detectors", "read_head", "write_head"]
