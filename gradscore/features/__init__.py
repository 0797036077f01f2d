"""Feature tables: one row per sample, one column per loss, parameter group and statistic.

In come a configuration, its model and its data; out comes a finished run folder. `extraction` runs all splits of
`datasets`, `extractor` turns a batch into rows, `forward` has what takes no gradients (logits, penultimate features,
views), `extra_columns` adds what is no statistic of parameter gradients, `class_gradients` has the mean gradients of
predicted classes, which `class_gradients_pass` computes beforehand.
"""

from __future__ import annotations

from .class_gradients import MeanGradients, run_means
from .datasets import open_datasets
from .extraction import ExtractSummary, SplitSummary, check_names, extract
from .extractor import Extractor
from .forward import FAILURES, ForwardPass, refusal

__all__ = [
    "FAILURES",
    "ExtractSummary",
    "Extractor",
    "ForwardPass",
    "MeanGradients",
    "SplitSummary",
    "check_names",
    "extract",
    "open_datasets",
    "refusal",
    "run_means",
]
