"""Feature tables: one row per sample, one column per loss, parameter group and statistic.

In come a configuration, its model and its data, or a model and samples that a program has; out comes a finished run
folder, or a data frame. `live_model` is a model with what computes its features. `extraction` runs all splits of
`datasets`, `streams` those whose samples a program gives, which `cutting` cuts into the same batches; `of_samples`
makes a data frame of them, or of those of a split (`split_samples`), and `of_losses` one of losses of whole batches
(`batch_losses`), those of language models for example.
`split_rows` makes rows of batches, `extractor` values of them, of which `sharing` computes several parts at once;
`forward` has what takes no gradients (logits, penultimate features, augmentations), `extra_columns` adds what is no
statistic of parameter gradients, `class_gradients` has the mean gradients of predicted classes, which are computed
beforehand. `run_plan` cuts a run into shards and computes them, `makers` says who does; `freshness` whether a run is
still of its model and data.
"""

from __future__ import annotations

import sys
from inspect import signature
from types import ModuleType
from typing import Any

import pandas as pd
from torch import nn

from .batch_losses import BatchLosses, LossOfBatch, content_hashes, count_samples, each_batch
from .class_gradients import ClassSums, MeanGradients, read_means, run_means, write_means
from .cutting import Cut, Cutter
from .datasets import open_datasets
from .extraction import ExtractSummary, SplitSummary, complete_run, extract
from .extractor import Extractor
from .forward import FAILURES, ForwardPass, refusal
from .freshness import Outdated, outdated
from .live_model import WARM_UP, LiveModel, check_mode, count_classes, input_dtype
from .makers import Maker
from .of_samples import feature_table, features_of, given_samples, warn_of_overflow
from .progress import Counter, Progress
from .run_plan import RunPlan, Told, check_names
from .split_rows import check_labelled, check_samples
from .split_samples import model_on, open_split
from .streams import Stream, extract_streams

__all__ = [
    "FAILURES",
    "WARM_UP",
    "BatchLosses",
    "ClassSums",
    "Counter",
    "Cut",
    "Cutter",
    "ExtractSummary",
    "Extractor",
    "ForwardPass",
    "LiveModel",
    "LossOfBatch",
    "Maker",
    "MeanGradients",
    "Outdated",
    "Progress",
    "RunPlan",
    "SplitSummary",
    "Stream",
    "Told",
    "check_labelled",
    "check_mode",
    "check_names",
    "check_samples",
    "complete_run",
    "content_hashes",
    "count_classes",
    "count_samples",
    "each_batch",
    "extract",
    "extract_streams",
    "feature_table",
    "features_of",
    "given_samples",
    "input_dtype",
    "model_on",
    "open_datasets",
    "open_split",
    "outdated",
    "read_means",
    "refusal",
    "run_means",
    "warn_of_overflow",
    "write_means",
]


class _Room(ModuleType):
    """This room, which can be called: `gradscore.features(model, data)` is `features_of`."""

    def __call__(self, model: nn.Module, data: Any, **options: Any) -> pd.DataFrame:
        return features_of(model, data, **options)

    __call__.__doc__ = features_of.__doc__
    __call__.__signature__ = signature(features_of)  # type: ignore[attr-defined]  # what help() shows


sys.modules[__name__].__class__ = _Room
