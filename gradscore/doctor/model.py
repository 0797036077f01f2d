"""Checks a model: with a batch of its inputs, or as a configuration has it, with its own data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from ..config import Config, check_features
from ..data import BANK, FILL, FIT, TEST, BadSample, Batch, SampleDataset, empty_rows, load_batches, samples_of
from ..errors import ConfigError, CoupledSamplesError, DataError, EngineError, ModelError
from ..extractor import FAILURES, ForwardPass, input_dtype, refusal
from ..gradients import Engine, prepare
from ..losses import LOSSES, LossHead, first_without_labels
from ..models import (
    Interface,
    build_model,
    check_logits,
    check_module,
    group_parameters,
    refuse_foreign,
    refuse_probabilities,
)
from ..pipeline import NO_BANK, cut, open_datasets, resolved_features
from ..statistics import reduce_gradients
from ..store import partly_labelled, raw_labels
from ..system import (
    Inputs,
    checked,
    each_input,
    finite_rows,
    full_precision,
    is_number,
    is_whole,
    resolve_device,
    rows_of,
    sample_count,
    some,
)
from .checks import (
    OF_SAMPLES,
    Diagnosis,
    Remark,
    check_accuracy,
    check_magnitudes,
    check_modes,
    check_parameters,
    evaluating,
    note,
    problem,
    warning,
)

SHOWN_TO_ENGINE = 4
"""Inputs with which the engine is compared with the reference: three tell sample layouts apart; one may be blank."""

DIFFERENTIATED = 16
"""Inputs whose gradients are looked at; the others count for the accuracy only."""

SAMPLES = 256
"""Samples of a loader that are looked at."""

FORWARD = 64
"""Inputs that go through the model at a time, as many as `extract.batch_size` has by default."""

MANY = 64
"""Outputs from which on it is no accident that all lie between 0 and 1."""

REPEAT_TOLERANCE = 1e-3
"""Largest accepted change of logits from call to call, relative to themselves or the largest logit.

Sums on accelerators may come in another order, which is rounding; dropout of one feature in a thousand before the last
layer moves the logits of the digits model by 9e-2.
"""


@checked
def check_model(
    model: nn.Module,
    batch: Any,
    *,
    labels: Tensor | None = None,
    declared_accuracy: float | None = None,
    loss: str = "pseudo_label",
    num_classes: int | None = None,
    output: str | int | None = None,
) -> Diagnosis:
    """Looks for what would make gradient scores of a classifier wrong, useless or slow.

    The model is checked as it stands; where modules are in training mode, that is reported and the rest is looked at in
    eval mode. Nothing about the model is changed.

    Args:
        model: the classifier, with its weights.
        batch: (N, ...) inputs, preprocessed as for scoring, or a mapping of keyword arguments with such tensors; about
            16 of them are enough, a few hundred if labels are given. Or a DataLoader or anything else that
            `gradscore.features` takes, of which the first 256 samples and their labels are looked at.
        labels: (N,) int64 classes of the inputs, -1 for none; by default those that a loader gives.
        declared_accuracy: what the accuracy should be, between 0 and 1.
        loss: the loss whose gradients are looked at, a name in `gradscore.losses.LOSSES`; one without labels.
        num_classes: how many outputs there should be, 1 for one logit for two classes; None for any number.
        output: name or position of the logits among what the model returns.

    Returns:
        Remarks and how each parameter is covered.

    Raises:
        ConfigError: no such loss, one of given labels, labels of another number than the inputs, or figures that are
            none.
        DataError: a loader of what cannot be used.
        ModelError: the model is no module.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> diagnosis = check_model(model.eval(), torch.randn(16, 4))
        >>> diagnosis.usable
        True
        >>> diagnosis.coverage["0.weight"]
        'rule'
    """
    check_module(model)
    head = LOSSES.find(loss, where="check_model")
    if head.needs_labels:
        raise ConfigError(f"check_model: loss '{loss}' looks at given labels; choose one that does not (pseudo_label)")
    if not isinstance(batch, Tensor | Mapping):
        samples = samples_of(batch, name="batch", dtype=input_dtype(model))
        given = next(cut(samples, batch_size=SAMPLES, shard_size=SAMPLES)).batch
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        batch = each_input(given.inputs, lambda tensor: tensor.to(device))
        labels = given.labels if labels is None and bool((given.labels >= 0).any()) else labels
    if not all(isinstance(each, Tensor) for each in (batch.values() if isinstance(batch, Mapping) else [batch])):
        raise DataError("batch: wanted a tensor (N, ...) for each keyword argument")
    if not (declared_accuracy is None or (is_number(declared_accuracy) and 0 <= declared_accuracy <= 1)):
        raise ConfigError(f"declared_accuracy: wanted a share from 0 to 1, got {declared_accuracy!r}")
    if not (num_classes is None or (is_whole(num_classes) and num_classes >= 1)):
        raise ConfigError(f"num_classes: wanted how many outputs there should be, got {num_classes!r}")
    count = sample_count(batch)
    if labels is not None and labels.shape != (count,):
        raise ConfigError(f"labels have shape {tuple(labels.shape)} for {count} inputs; wanted ({count},)")
    interface = Interface(num_classes=num_classes or 0, output=output, one_logit=num_classes == 1)
    check = None if labels is None else partial(check_accuracy, labels=labels, batch=batch, declared=declared_accuracy)
    return _diagnosed(model, batch, head, interface, check)


def _diagnosed(
    model: nn.Module,
    batch: Inputs,
    head: LossHead,
    interface: Interface,
    check: Callable[[Tensor], Iterator[Remark]] | None,
) -> Diagnosis:
    """Diagnosis as of `check_model`; `check` looks at finite logits of the batch, where there are labels for them."""
    try:
        refuse_foreign(model, source="the model")
    except ModelError as error:
        return Diagnosis.of([problem("hidden parameters", str(error))], {})
    remarks = [*check_modes(model), *check_parameters(model)]
    engine = Engine(dict(model.named_parameters()), warns=False)
    with interface.attached(model), evaluating(model), full_precision():
        if any(parameter.requires_grad for parameter in engine.parameters.values()):
            logits = _finite_logits(model, batch, interface.num_classes or None, remarks)
            if logits is not None:
                remarks += () if check is None else check(logits)
                remarks += _check_gradients(model, rows_of(batch, slice(DIFFERENTIATED)), engine, head)
    return Diagnosis.of(remarks, engine.coverage)


def _finite_logits(model: nn.Module, batch: Inputs, num_classes: int | None, remarks: list[Remark]) -> Tensor | None:
    """The logits of a batch; None where there are none to go on with. What is wrong with them joins the remarks."""
    if not sample_count(batch):
        remarks.append(problem("empty batch", "there is nothing to check the model with; pass at least two inputs"))
        return None
    try:
        logits = _logits(model, batch)
        with torch.enable_grad():
            refuse_probabilities(model(each_input(rows_of(batch, slice(SHOWN_TO_ENGINE)), Tensor.clone)))
    except ModelError as error:
        remarks.append(problem("outputs", str(error).removeprefix("model outputs: ")))
        return None
    except (*FAILURES, SystemExit) as error:
        remarks.append(problem("inputs", refusal(error, batch)))
        return None
    wanted = 2 if num_classes == 1 else num_classes
    if wanted is not None and logits.shape[1] != wanted:
        what = f"the model returns {logits.shape[1]} logits, num_classes says {wanted}"
        remarks.append(problem("num_classes", f"{what}; correct model.num_classes or model.arguments"))
        return None
    remarks += _check_logits(model, batch, logits)
    return logits if bool(torch.isfinite(logits).all()) else None


@torch.no_grad()
def _logits(model: nn.Module, batch: Inputs) -> Tensor:
    found = []
    for start in range(0, sample_count(batch), FORWARD):
        part = rows_of(batch, slice(start, start + FORWARD))
        logits = check_logits(model(each_input(part, Tensor.clone)), sample_count(part))
        refuse_probabilities(logits)
        found.append(logits)
    return torch.cat(found)


def _check_logits(model: nn.Module, batch: Inputs, logits: Tensor) -> Iterator[Remark]:
    finite = torch.isfinite(logits).all(1)
    if not bool(finite.all()):
        yield problem(
            "logits that are not finite",
            f"for {int((~finite).sum())} of {len(finite)} inputs; look at the inputs and the weights, or compute in "
            "float32",
        )
        return
    again = _logits(model, batch)
    allowed = REPEAT_TOLERANCE * float(logits.abs().max())
    if not torch.allclose(again, logits, rtol=REPEAT_TOLERANCE, atol=allowed, equal_nan=True):
        yield problem(
            "outputs at random",
            "two calls with the same inputs differ in eval mode; remove what draws random numbers in forward",
        )
    if logits.numel() >= MANY and bool(((logits >= 0) & (logits <= 1)).all()):
        yield warning(
            "outputs",
            "all lie between 0 and 1, as probabilities do that are made for each class by itself; if they are, make "
            "forward return the logits, and do not score a model of several labels for one sample",
        )
    if len(logits) > 1 and bool((logits == logits[0]).all()):
        yield warning("outputs", "equal for all inputs; the inputs are equal, or the model does not look at them")


def _check_gradients(model: nn.Module, batch: Inputs, engine: Engine, head: LossHead) -> Iterator[Remark]:
    count = sample_count(batch)
    if count == 1:
        yield note("a single input", "coupling and coverage need at least two; pass a larger batch")
    try:
        prepare(engine, model, rows_of(batch, slice(SHOWN_TO_ENGINE)), lambda found: head(found).direction)
        logits = model(each_input(batch, Tensor.clone))
        names = [name for name, parameter in engine.parameters.items() if parameter.numel()]
        direction = head(logits.detach()).direction.to(logits.dtype)
        groups = {name: [name] for name in names}
        largest = reduce_gradients(engine, logits, direction, statistics=["linf"], groups=groups)
    except CoupledSamplesError as error:
        yield problem("coupled samples", str(error))
        return
    except EngineError as error:
        yield problem("gradients", str(error))
        return
    used = [name for name in names if engine.coverage[name] not in ("frozen", "unused")]
    yield from check_magnitudes(
        {name: largest[f"{name}/linf"].cpu() for name in used}, {name: engine.parameters[name].dtype for name in used}
    )
    yield from _check_coverage(engine)


def _check_coverage(engine: Engine) -> Iterator[Remark]:
    unused = [name for name, way in engine.coverage.items() if way == "unused"]
    if unused:
        yield warning(
            "unused parameters",
            f"{some(unused)}: the logits do not depend on them, so their features are zero; name the others in "
            "features.parameters",
        )
    for notice in engine.notices:
        if "reference" in notice:
            yield warning("slow gradients", f"{notice}; name the others in features.parameters if that is too slow")
    counts = Counter(engine.coverage.values())
    ways = ", ".join(f"{count} by {way}" for way, count in counts.most_common())
    yield note("coverage", f"{len(engine.coverage)} parameters: {ways}")


READ = 2048
"""Samples of a split up to which all of them are read; of larger ones, so many at random."""

TRIED = 16
"""Samples of every other split that go through the model."""

OF_OUTPUTS = ("inputs", "outputs", "num_classes", "no parameters", "hidden parameters")
"""Topics of problems that samples of other splits would show once more."""


def check_config(config: Config, *, samples: int = 256) -> Diagnosis:
    """Builds the classifier of a configuration and checks it with inputs of `in_dist.test`, or else `in_dist.fit`.

    Samples of all splits are read, and some of each go through the model.

    Args:
        config: the settings.
        samples: so many inputs are drawn at random, with the seed of the configuration.

    Returns:
        As `check_model`.

    Raises:
        ConfigError: an unknown loss, statistic or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built.
        DataError: data that cannot be used.
    """
    device = resolve_device(config.extract.device)
    check_features(config.features)
    built = build_model(config.model, seed=config.extract.seed)
    model = built.model.to(device)
    group_parameters(model, config.features.parameters, granularity=config.features.granularity)
    datasets = open_datasets(config)
    split, spec = (TEST, config.data.in_dist.test) if config.data.in_dist.test else (FIT, config.data.in_dist.fit)
    own, are_names = raw_labels(config.data, spec, datasets[split].class_names)
    batch = Batch.joined(list(_drawn(config, datasets[split], samples, name=split)))
    inputs = each_input(batch.inputs, lambda tensor: tensor.to(device))
    check = partial(
        check_accuracy,
        labels=batch.labels.to(device),
        batch=inputs,
        declared=config.model.declared_accuracy,
        label_map=own,
        are_names=are_names,
        in_config=True,
    )
    head, classes = LOSSES[first_without_labels(config.features.losses)], config.model.classes
    found = _diagnosed(model, inputs, head, Interface(num_classes=classes), check)
    make = note if config.model.checkpoint is None else warning
    more = [make("checkpoint", sentence) for sentence in built.notices]
    if names := datasets[split].class_names:
        more.append(note("classes", f"the outputs are in this order: {some(list(names), 20)}"))
    more += _classes({name: datasets[name] for name in (FIT, TEST) if name in datasets}, classes)
    labels = {name: each.labels for name, each in datasets.items() if name != BANK and not name.startswith("ood.")}
    counts = {name: (int((each < 0).sum()), len(each)) for name, each in labels.items() if each is not None}
    more += [warning("labels", str(each)) for each in partly_labelled(counts)]
    if config.data.in_dist.test == config.data.in_dist.fit:
        more.append(
            warning(
                "splits",
                "in_dist.fit and in_dist.test are the same samples, and what is reported fits nothing, so that none "
                "are left to fit on: select halves, {hash: [0, 0.5]} and {hash: [0.5, 1]}",
            )
        )
    if config.data.in_dist.bank and not any(each.topic in OF_OUTPUTS for each in found.problems):
        penultimate = resolved_features(config.features, model, inputs).penultimate
        more += [] if penultimate else [warning("bank", str(NO_BANK))]
    forward = ForwardPass(model, device=device, num_classes=classes)
    for name, dataset in datasets.items():
        is_tried = name != split and not any(each.topic in OF_OUTPUTS for each in found.problems)
        more += _check_split(config, dataset, name=name, forward=forward if is_tried else None)
    return Diagnosis.of([*found.remarks, *more], found.coverage)


def _classes(splits: Mapping[str, SampleDataset], count: int) -> Iterator[Remark]:
    """Looks for classes that no sample of a split has, and for splits that have none in common."""
    found = {
        name: {*each.labels[each.labels >= 0].tolist()} for name, each in splits.items() if each.labels is not None
    }
    if len(found) > 1 and not set.intersection(*found.values()):
        yield warning("classes", f"{' and '.join(found)} have none in common: figures would say nothing of the model")
    for name, labels in found.items():
        names = splits[name].class_names or range(max(count, 2))
        if lacking := [str(each) for place, each in enumerate(names) if place not in labels]:
            yield warning("classes", f"{name} has no sample of {len(lacking)} of {len(names)}: {some(lacking)}")


def _drawn(config: Config, dataset: SampleDataset, count: int, *, name: str) -> Iterator[Batch]:
    """Samples of a split, at random; those that cannot be used as well."""
    places = np.random.default_rng(config.extract.seed).permutation(len(dataset))[:count].tolist()
    return load_batches(
        Subset(dataset, places), split=name, batch_size=FORWARD, workers=config.extract.workers, on_error="skip"
    )


def _check_split(config: Config, dataset: SampleDataset, *, name: str, forward: ForwardPass | None) -> Iterator[Remark]:
    """Reads the samples of a split, and shows some to the model, if there is one to show them to."""
    bad: list[BadSample] = []
    first: Batch | None = None
    read = min(READ, len(dataset))
    for batch in _drawn(config, dataset, READ, name=name):
        bad += batch.bad
        first = batch if first is None and batch.ids else first
    skips = config.extract.on_error == "skip"
    make = warning if skips else problem
    empty, others = [each.empty for each in bad if each.empty], [each for each in bad if not each.empty]
    if empty:
        or_else = "they are left out (extract.on_error is skip)" if skips else "extract.on_error=skip leaves them out"
        yield make(OF_SAMPLES + name, f"{empty_rows(empty, read)}: {FILL}, or {or_else}")
    if others:
        or_else = "they are left out (extract.on_error is skip)" if skips else "set extract.on_error=skip"
        named = some([f"{each.id} ({each.error})" for each in others])
        yield make(
            OF_SAMPLES + name,
            f"{len(others)} of {read} cannot be used: {named}; repair or remove them, or {or_else}",
        )
    if read < len(dataset):
        yield note(OF_SAMPLES + name, f"{read} of {len(dataset)} were read")
    if first is None:
        yield problem(OF_SAMPLES + name, "none of those that were read can be used")
    elif forward is not None:
        images = rows_of(first.inputs, slice(TRIED))
        try:
            with torch.no_grad():
                finite = finite_rows(forward.outputs(images))
        except ModelError as error:
            yield problem(OF_SAMPLES + name, str(error))
            return
        if not bool(finite.any()):
            yield problem(OF_SAMPLES + name, f"none of {len(finite)} has finite logits; look at what is in them")
