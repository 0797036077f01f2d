"""`gradscore.features`: the feature table of any samples, as a data frame."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd
from torch import nn

from ..config import ExtractConfig, FeaturesConfig, section
from ..data import GivenSamples, Peeked, Preprocessing, PreprocessingConfig, check_classes
from ..errors import ConfigError
from ..gradients import GradientWarning
from ..models import Interface
from ..store import ShardRows
from .batch_losses import LossOfBatch
from .cutting import Cutter
from .live_model import LiveModel, check_mode, count_classes, input_dtype
from .of_losses import Tokens, features_of_losses
from .progress import Counter, Progress
from .run_plan import check_names
from .split_rows import SplitRows

OF_FUNCTIONS = ("parameters", "granularity")
"""Settings of the section `features` that go with a loss which is a function."""

SPLIT = "given"
"""What the samples of a table without a run folder are called."""


def features_of(
    model: nn.Module,
    data: Any,
    *,
    losses: str | Sequence[str] | LossOfBatch | None = None,
    statistics: str | Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    output: str | int | None = None,
    one_logit: bool = False,
    tokens: Tokens = "sum",
    progress: Progress | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """The per-sample gradient features of any samples.

    The columns are those of the feature tables of a run folder, bit for bit, where the samples, the settings, the
    batch size, the processor and the number of threads are the same.

    Args:
        model: the classifier, in eval mode, on the device that computes. Nothing about it is changed.
        data: a DataLoader, a Dataset, a tensor or array of samples (N, ...), a pair of these and labels (N,), or an
            iterable of batches, each a tensor, a pair, or a mapping of keyword arguments, `labels` among them, as
            collators of transformers make it. Inputs are as the model takes them.
        losses: names in `gradscore.losses.LOSSES`, or one; by default those of a run. Or a function from the model and
            a batch to the loss of each sample (N,), or of each of its tokens (N, T): any model and any loss, of which
            only `statistics`, `parameters` and `granularity` are set. `data` is then an iterable of batches (tensors,
            or mappings, lists, tuples and dataclasses of such) whose first tensor has N rows, and the table
            `sample_id`, `loss`, and features `loss/<parameter>/<statistic>`.
        statistics: names of statistics, or one; by default those of a run.
        preprocessing: settings of the section `preprocessing`, for raw pixels (N, C, H, W) uint8; other
            samples are as the model takes them, and refused with such settings.
        batch_size: samples that go through the model at a time; 64 by default.
        output: name or position of the logits among what the model returns, where it is not obvious.
        one_logit: the model returns one logit z for two classes, which become the logits `[0, z]`.
        tokens: what becomes of losses (N, T): their sum over the tokens, or, for "each", a row of the table for every
            token, at the price of a backward pass for each.
        progress: told how far it is.
        **settings: others of the section `features` (parameters, granularity, preset, penultimate, augmentations).

    Returns:
        One row for each sample, in order: `sample_id` (its position), `label` (-1 for none), `prediction`, `correct`
        (missing without a label), `content_hash`, `logit_0` ..., then features `<loss>/<parameter>/<statistic>`.

    Raises:
        ConfigError: an unknown setting, loss or statistic.
        DataError: samples that cannot be used, or none.
        ModelError: the model is in training mode, or cannot take the samples.
        EngineError: gradients that cannot be computed: samples are coupled, for one.

    Warns:
        GradientWarning: samples with values that are not finite.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> table = features_of(model, torch.randn(10, 4), losses=["uniform"], statistics=["l2"])
        >>> table.shape, list(table.columns[-4:])
        ((10, 12), ['uniform/0.weight/l2', 'uniform/0.bias/l2', 'uniform/2.weight/l2', 'uniform/2.bias/l2'])
    """
    check_mode(model)
    if tokens not in get_args(Tokens):
        raise ConfigError(f"tokens: wanted one of {', '.join(get_args(Tokens))}, got {tokens!r}")
    if callable(losses):
        others = {
            "preprocessing": preprocessing,
            "batch_size": batch_size,
            "output": output,
            "one_logit": one_logit or None,
        }
        features = _features_of_function(statistics, {**others, **settings})
        table = features_of_losses(model, data, losses, features, tokens=tokens, progress=progress)
        warn_of_overflow(table)
        return table
    if tokens != "sum":
        raise ConfigError("tokens: losses by name have one value for each sample; give a function that returns (N, T)")
    chosen = {"losses": losses, "statistics": statistics}
    given = {name: _names(value) for name, value in chosen.items() if value is not None}
    features = section(FeaturesConfig, {**given, **settings}, where="features")
    options = section(ExtractConfig, {} if batch_size is None else {"batch_size": batch_size}, where="extract")
    samples = Peeked.of(given_samples(model, data, preprocessing=preprocessing))
    interface = Interface(num_classes=0, output=output, one_logit=one_logit, in_python=True)
    table = feature_table(model, samples, features, options, interface=interface, progress=progress)
    warn_of_overflow(table)
    return table


def given_samples(model: nn.Module, data: Any, *, preprocessing: Mapping[str, Any] | None = None) -> GivenSamples:
    """The samples that a program gives for a model.

    Args:
        model: the classifier, in eval mode.
        data: see `GivenSamples`.
        preprocessing: settings of the section `preprocessing`, for raw pixels.

    Raises:
        ConfigError: an unknown setting.
        ModelError: the model is in training mode.
    """
    check_mode(model)
    pixels = None if preprocessing is None else section(PreprocessingConfig, preprocessing, where="preprocessing")
    prepared = None if pixels is None else Preprocessing(pixels)
    return GivenSamples(data=data, name="data", dtype=input_dtype(model), preprocess=prepared)


def feature_table(
    model: nn.Module,
    samples: Peeked,
    features: FeaturesConfig,
    options: ExtractConfig,
    *,
    interface: Interface,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The table that `features_of` returns.

    Args:
        model: as for `features_of`.
        samples: what it is of.
        features: what is computed.
        options: batch size and part size.
        interface: how the model returns logits.
        progress: told how far it is.

    Raises:
        ConfigError: as `features_of`; so do DataError, ModelError and EngineError.
    """
    with interface.attached(model):
        return pd.concat(_tables(model, samples, features, options, progress), ignore_index=True)


def _names(value: Any) -> Any:
    """One name or several as a list; what is neither is refused with the other settings."""
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, Iterable) else value


def warn_of_overflow(table: pd.DataFrame) -> None:
    """Warns of samples with values that are not finite, which stay as they are, as those of a run do."""
    values = table[[name for name in table.columns if table[name].dtype.kind == "f"]]
    lost = ~np.isfinite(values.to_numpy()).all(axis=1)
    if lost.any():
        first = int(np.flatnonzero(lost)[0])
        column = next(name for name in values.columns if not np.isfinite(values[name].iloc[first]))
        warnings.warn(
            f"{int(lost.sum())} of {len(table)} samples have values that are not finite, the first of them sample "
            f"{table['sample_id'].iloc[first]}, {column}: outputs or gradients overflow, or weights are not "
            "finite; try the model and its inputs in float64, or look where it begins (gradscore.inspect)",
            GradientWarning,
            stacklevel=3,
        )


def _features_of_function(statistics: str | Sequence[str] | None, settings: Mapping[str, Any]) -> FeaturesConfig:
    """The settings that go with a loss which is a function.

    Raises:
        ConfigError: one that does not.
    """
    foreign = [name for name, value in settings.items() if value is not None and name not in OF_FUNCTIONS]
    if foreign:
        raise ConfigError(
            f"{foreign[0]}: does not go with a loss that is a function, which calls the model itself; wanted "
            f"{', '.join(('statistics', *OF_FUNCTIONS))} or tokens: prepare batches and choose outputs in the function"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    chosen = {} if statistics is None else {"statistics": _names(statistics)}
    return section(FeaturesConfig, {**given, **chosen}, where="features")


def _tables(
    model: nn.Module,
    samples: Peeked,
    features: FeaturesConfig,
    options: ExtractConfig,
    progress: Progress | None,
) -> list[pd.DataFrame]:
    classes = count_classes(model, samples.first)
    check_names(features)
    live = LiveModel.of(model, features=features, num_classes=classes, trust_code=True)
    rows = SplitRows(live.extractor, split=SPLIT, num_classes=classes)
    cutter = Cutter(batch_size=options.batch_size, shard_size=options.part_size)
    frames: list[pd.DataFrame] = []
    counter = Counter(samples.samples or 0, progress)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        live.warm_up(samples.first.images)
        for cut in cutter.cuts(samples.batches):
            check_classes(cut.batch, classes, name=samples.name)
            rows.compute(cut.batch)
            counter.add("features", len(cut.batch.sample_ids))
            if cut.last:
                frames.append(_frame(rows.taken()))
    if rows.are_waiting:
        frames.append(_frame(rows.taken()))
    return frames


def _frame(rows: ShardRows) -> pd.DataFrame:
    known = rows.labels >= 0
    correct = pd.array(rows.predictions == rows.labels, dtype="boolean")
    correct[~known] = pd.NA
    samples = {
        "sample_id": rows.sample_ids,
        "label": rows.labels,
        "prediction": rows.predictions,
        "correct": correct,
        "content_hash": rows.content_hashes,
    }
    return pd.concat([pd.DataFrame(samples), pd.DataFrame(rows.values, columns=list(rows.names))], axis=1)
