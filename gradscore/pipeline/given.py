"""Samples that a program gives: to a data frame, `gradscore.features`, of any loss, or to a run folder."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from ..columns import feature_columns
from ..config import Config, ExtractConfig, FeaturesConfig, check_features, section
from ..data import (
    Batch,
    Preprocessing,
    PreprocessingConfig,
    Samples,
    check_classes,
    planned_splits,
    refuse_shuffled,
    samples_of,
    whole_batches,
)
from ..errors import ConfigError, DataError
from ..extractor import Extractor, LossExtractor, Tokens, check_mode, count_classes, input_dtype
from ..gradients import GradientWarning
from ..losses import is_of_logits, registered
from ..models import Interface, trusting_code
from ..store import RunFolder, RunWriter
from ..system import checked
from .extraction import ExtractSummary, SplitSummary, finished_split, resolved_features, summary_of
from .loop import GIVEN_SPLIT, Counter, Pace, Progress, RowExtractor, cut, write_rows

OF_FUNCTIONS = ("parameters", "granularity")
"""Settings of the section `features` that go with a loss which is a function."""


@checked
def features(
    model: nn.Module,
    data: Any,
    *,
    losses: str | Sequence[str] | Callable[..., Tensor] | None = None,
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
            collators of transformers make it. Inputs are as the model takes them. An iterable is read to its end, and
            the table kept in memory: cut one without end (`itertools.islice`).
        losses: names in `gradscore.losses.LOSSES`, or one; by default those of a run. Or a function of yours from
            logits (N, K) to the loss of each sample (N,), which autograd differentiates. Or one from the model and a
            batch to the loss of each sample (N,), or of each of its tokens (N, T): any model and any loss, of which
            only `statistics`, `parameters` and `granularity` are set. `data` is then an iterable of batches (tensors,
            or mappings, lists, tuples and dataclasses of such) whose first tensor has N rows, and the table
            `sample_id`, `loss`, and features `loss/<parameter>/<statistic>`.
        statistics: names of statistics, or one; by default those of a run.
        preprocessing: settings of the section `preprocessing`, for raw pixels (N, C, H, W) uint8 and for PIL images
            that a Dataset gives; other samples are as the model takes them, and refused with such settings.
        batch_size: samples that go through the model at a time; 64 by default.
        output: name or position of the logits among what the model returns, where it is not obvious.
        one_logit: the model returns one logit z for two classes, which become the logits `[0, z]`.
        tokens: what becomes of losses (N, T): their sum over the tokens, or, for "each", a row of the table for every
            token, at the price of a backward pass for each.
        progress: called with how far it is.
        **settings: others of the section `features` (parameters, granularity, penultimate, augmentations).

    Returns:
        One row for each sample, in order: `sample_id` (its position), `label` (-1 for none), `prediction`, `correct`
        (missing without a label), `content_hash`, `logit_0` ..., then features `<loss>/<parameter>/<statistic>`.

    Raises:
        ConfigError: an unknown setting, loss or statistic, or a DataLoader that shuffles.
        DataError: samples that cannot be used, or none.
        ModelError: the model is in training mode, or cannot take the samples.
        EngineError: gradients that cannot be computed: samples are coupled, for one.

    Warns:
        GradientWarning: samples with values that are not finite; losses or parameters whose features are all zero.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> table = features(model, torch.randn(10, 4), losses=["uniform"], statistics=["l2"])
        >>> table.shape, list(table.columns[-4:])
        ((10, 20), ['uniform/0.weight/l2', 'uniform/0.bias/l2', 'uniform/2.weight/l2', 'uniform/2.bias/l2'])

        A loss of one's own, of the logits:

        >>> def lead_of_the_first(logits):
        ...     first, second = logits.topk(2).values.unbind(1)
        ...     return second - first
        >>> table = features(model, torch.randn(10, 4), losses=lead_of_the_first, statistics=["l2"])
        >>> list(table.columns[-2:])
        ['lead_of_the_first/2.weight/l2', 'lead_of_the_first/2.bias/l2']
    """
    check_mode(model)
    if callable(losses) and is_of_logits(losses):
        losses = registered(losses)
    chosen = {"statistics": statistics} if callable(losses) else {"losses": losses, "statistics": statistics}
    named = {name: _names(value) for name, value in chosen.items() if value is not None}
    if callable(losses):
        others = {"preprocessing": preprocessing, "batch_size": batch_size, "output": output}
        _refuse_others({**others, "one_logit": one_logit or None, **settings})
        given = {name: value for name, value in settings.items() if value is not None}
        wanted = section(FeaturesConfig, {**given, **named}, where="features")
        check_features(wanted)
        table = _of_function(LossExtractor(model, losses, wanted, tokens=tokens), data, progress)
    else:
        if tokens != "sum":
            raise ConfigError(
                "tokens: losses by name have one value for each sample; give a function that returns (N, T)"
            )
        wanted = section(FeaturesConfig, {**settings, **named}, where="features")
        options = section(ExtractConfig, {} if batch_size is None else {"batch_size": batch_size}, where="extract")
        samples = given_samples(model, data, preprocessing=preprocessing)
        interface = Interface(output=output, one_logit=one_logit)
        table = feature_table(model, samples, wanted, options, interface=interface, progress=progress)
    warn_of_overflow(table)
    _warn_of_zeros(table)
    return table


def given_samples(model: nn.Module, data: Any, *, preprocessing: Mapping[str, Any] | None = None) -> Samples:
    """The samples that a program gives for a model.

    Args:
        model: the classifier, in eval mode.
        data: see `samples_of`.
        preprocessing: settings of the section `preprocessing`, for raw pixels.

    Raises:
        ConfigError: an unknown setting, or a DataLoader that shuffles.
        ModelError: the model is in training mode.
    """
    check_mode(model)
    refuse_shuffled(data)
    pixels = None if preprocessing is None else section(PreprocessingConfig, preprocessing, where="preprocessing")
    prepared = None if pixels is None else Preprocessing(pixels)
    return samples_of(data, name="data", dtype=input_dtype(model), preprocess=prepared)


def feature_table(
    model: nn.Module,
    samples: Samples,
    wanted: FeaturesConfig,
    options: ExtractConfig,
    *,
    interface: Interface,
    progress: Progress | None,
) -> pd.DataFrame:
    """The table that `features` returns for losses by name.

    Args:
        model: as for `features`.
        samples: what it is of.
        wanted: what is computed.
        options: batch size and part size.
        interface: how the model returns logits.
        progress: called with how far it is.

    Raises:
        ConfigError: as `features`; so do DataError, ModelError and EngineError.
    """
    with interface.attached(model):
        classes = count_classes(model, samples.first)
        check_features(wanted)
        wanted = resolved_features(wanted, model, samples.first.inputs)
        with trusting_code():
            extractor = Extractor(model, features=wanted, num_classes=classes)
        rows = RowExtractor(extractor)
        counter, computed = Counter(samples.count or 0, progress), []
        extractor.warm_up(samples.first.inputs)
        whole = (
            replace(batch, split=GIVEN_SPLIT) for batch in samples
        )  # whatever split it is, all is computed, and once
        for each in cut(whole, batch_size=options.batch_size, shard_size=options.part_size):
            check_classes(each.batch, classes, name=samples.name)
            computed.append((each.batch, rows(each)))
            counter.add("features", each.batch.places)
    found = rows.rows(computed)
    correct = pd.array(found.predictions == found.labels, dtype="boolean")
    correct[found.labels < 0] = pd.NA
    columns = {
        "sample_id": found.sample_ids,
        "label": found.labels,
        "prediction": found.predictions,
        "correct": correct,
        "content_hash": found.content_hashes,
    }
    return pd.concat([pd.DataFrame(columns), pd.DataFrame(found.values, columns=list(found.names))], axis=1)


def _of_function(extractor: LossExtractor, data: Any, progress: Progress | None) -> pd.DataFrame:
    """The table of a loss that is a function."""
    tables, counter = [], Counter(0, progress)
    for batch in whole_batches(data, hashed=False):
        tables.append(pd.DataFrame(extractor.values(batch)))
        counter.add("features", batch.places)
    return pd.concat(tables, ignore_index=True)


def _names(value: Any) -> Any:
    """List of one name or several; what is neither is refused with the other settings."""
    if isinstance(value, str):
        return [value]
    names = list(value) if isinstance(value, Iterable) else value
    if isinstance(names, list) and any(map(callable, names)):
        raise ConfigError(
            "losses: wanted names, or one function by itself, losses=function, from the model and a batch to the loss "
            "of each sample (N,), got a function in a list; give it without the list"
        )
    return names


def warn_of_overflow(table: pd.DataFrame) -> None:
    """Warns of samples with values that are not finite, which stay as they are, as those of a run do."""
    values = table[[name for name in table.columns if table[name].dtype.kind == "f"]]
    lost = ~np.isfinite(values.to_numpy()).all(axis=1)
    if lost.any():
        first = int(np.flatnonzero(lost)[0])
        column = next(name for name in values.columns if not np.isfinite(values[name].iloc[first]))
        warnings.warn(
            f"{int(lost.sum())} of {len(table)} samples have values that are not finite, the first of them sample "
            f"{table['sample_id'].iloc[first]}, {column}: its inputs or the weights are not finite, or "
            "outputs or gradients overflow; check the sample, then try float64, or find the layer (gradscore.inspect)",
            GradientWarning,
            stacklevel=4,
        )


def _warn_of_zeros(table: pd.DataFrame) -> None:
    """Warns of losses, and of parameters under other losses, whose features are zero for every sample."""
    by_loss: dict[str, dict[str, bool]] = {}
    for name in feature_columns(table.columns):
        loss, _, rest = name.partition("/")
        group, known = rest.rpartition("/")[0], by_loss.setdefault(loss, {})
        known[group] = known.get(group, True) and not table[name].any()
    losses = [loss for loss, groups in by_loss.items() if all(groups.values())]
    zero = [group for loss, groups in by_loss.items() if loss not in losses for group, none in groups.items() if none]
    advice = {
        **{f"loss {loss}": "take another loss" for loss in losses},
        **dict.fromkeys(
            zero, "where it is frozen, leave it out (parameters=...), else take out no_grad() and detach() behind it"
        ),
    }
    for name, what in advice.items():
        warnings.warn(
            f"{name}: its gradients are zero for all {len(table)} samples; {what}", GradientWarning, stacklevel=4
        )


def _refuse_others(settings: Mapping[str, Any]) -> None:
    """Refuses settings that do not go with a loss which is a function."""
    foreign = [name for name, value in settings.items() if value is not None and name not in OF_FUNCTIONS]
    if foreign:
        raise ConfigError(
            f"{foreign[0]}: does not go with a loss that is a function, which calls the model itself; wanted "
            f"{', '.join(('statistics', *OF_FUNCTIONS))} or tokens: prepare batches and choose outputs in the function"
        )


def extract_given(
    config: Config,
    extractor: Extractor,
    samples: Iterable[Batch],
    *,
    onto: RunFolder | None = None,
    progress: Progress | None,
    total: int,
) -> ExtractSummary:
    """Computes the feature tables of a run, or of splits that are new to it, from samples as a program gives them.

    Args:
        config: the settings; where it says that samples come from does not matter.
        extractor: of the model, warmed up.
        samples: of the splits that are not there yet, perhaps mixed; they are looked at once, in the order they come.
        onto: the run in `config.run` that goes on; None for a new one.
        progress: called after every batch.
        total: how many samples there are, for `progress`; 0 if that is unknown.

    Returns:
        A summary of the run.

    Raises:
        DataError: samples that cannot be used, or none of a split.
        ModelError: the model cannot take them.
        StoreError: a run folder of something else, or made with other weights or settings.
        EngineError: gradients that cannot be computed.
    """
    before = {} if onto is None else onto.manifest.inputs.data
    planned = planned_splits(config.data)
    # Fingerprints of samples that nobody has seen yet are empty.
    inputs = extractor.describe(config, {name: before[name].fingerprint if name in before else "" for name in planned})
    digests: defaultdict[str, Any] = defaultdict(hashlib.sha256)

    def noted() -> Iterator[Batch]:
        """Notes ids, labels and content of samples as they pass."""
        for batch in samples:
            for row in zip(batch.ids, batch.labels.tolist(), batch.content_hashes, strict=True):
                digests[batch.split].update(json.dumps(row).encode())
            yield batch

    with RunWriter.opened(config.run, config=config, inputs=inputs, head=extractor.head) as writer:
        extractor.take_gradient_seconds()
        counter = Counter(total, progress)
        ends = write_rows(noted(), RowExtractor(extractor), config, on_batch=counter.add)
        whole = sum(each.seconds for each in counter.paces.values())
        share = extractor.take_gradient_seconds() / whole if whole else None
        known = [name for name in planned if onto is not None and name in onto.manifest.splits]
        summaries = [SplitSummary.of(name, writer.manifest.splits[name], Pace()) for name in known]
        for split in (name for name in planned if name not in known):
            if split not in counter.paces:
                raise DataError(f"split {split}: wanted samples, got none; give more")
            writer.manifest.inputs.data[split].fingerprint = digests[split].hexdigest()
            notes = [*writer.existing(split, range(ends[split])).values()]
            summaries.append(finished_split(writer, split, notes, counter.paces[split], share))
        writer.finish(feature_count=len(extractor.feature_names), notices=list(extractor.notices))
    return summary_of(writer, extractor, summaries)
