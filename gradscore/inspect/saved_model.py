"""Inspecting a saved model with its own data: the same quantities for every group of samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ..config import Config
from ..data import TEST, SampleDataset, collate, planned_splits
from ..errors import AmplifiedRoundingError, ConfigError, DataError, EngineError, ModelError
from ..extractor import ForwardPass
from ..gradients import Engine, prepare
from ..losses import LOSSES, LossHead, first_without_labels
from ..models import build_model, trusting_code
from ..pipeline import open_datasets
from ..system import full_precision, replacing, resolve_device
from .examination import Group, examine
from .findings import LOOKED_FOR, Finding
from .inspector import Inspector
from .quantities import QUANTITIES
from .quantities.gsnr import MeanGSNR
from .quantities.histograms import GradHist1d, GradHist2d
from .quantities.quantity import (
    MODEL,
    OutputGradientQuantity,
    Quantity,
    SampleGradientQuantity,
    TensorQuantity,
    ordered_rows,
)
from .quantities.sample_gradients import feeding

Grouping = Literal["split", "correct", "class"]


def chosen_groups(
    config: Config,
    model: nn.Module,
    datasets: Mapping[str, SampleDataset],
    *,
    by: Grouping,
    samples: int,
    batch_size: int,
    notices: list[str],
) -> dict[str, Group]:
    """Draws samples of the splits that are reported on: the test split, and OOD sets that are not auxiliary.

    Args:
        config: says which splits there are, and the seed.
        model: predicts.
        datasets: by split.
        by: "split" for one group per split; "correct" parts the test split into right and wrong predictions and keeps
            the OOD sets beside them; "class" parts the test split by label and leaves OOD sets out.
        samples: at most so many of each split.
        batch_size: samples that go through the model at a time.
        notices: are told of samples that cannot be used.

    Returns:
        Samples by what reports call their group; groups without one are left out.

    Raises:
        DataError: a sample that cannot be used, unless the configuration says that they are skipped; a split of which
            nothing is left; or no sample has a label, and the grouping needs them.
        ModelError: the model has no parameters, cannot take the images or returns something else than logits.
    """
    if config.data.in_dist.test is None:
        raise DataError("data.in_dist.test is null, and its samples are what is looked at; give some")
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is None:
        raise ModelError("the model has no parameters, so there are no gradients to look at")
    classes = config.model.num_classes
    run = ForwardPass(model, device=device, num_classes=classes, autocast=None, last_layer=None, augmentations=())
    found: dict[str, Group] = {}
    for info, _ in planned_splits(config.data).values():
        if info.name != TEST and (not info.is_reported_ood or by == "class"):
            continue
        dataset = datasets[info.name]
        places = np.random.default_rng(config.extract.seed).permutation(len(dataset))[:samples]
        batch = collate([dataset[int(place)] for place in places])
        if batch.bad and config.extract.on_error == "fail":
            raise DataError(f"split {info.name}, sample {batch.bad[0].id}: {batch.bad[0].error}")
        if not isinstance(batch.inputs, Tensor):
            raise DataError(f"split {info.name}: wanted samples of one tensor each, got several by name")
        if not len(batch.inputs):
            raise DataError(f"split {info.name}: none of {len(places)} samples can be used: {batch.bad[0].error}")
        if batch.bad:
            notices.append(f"{info.name}: {len(batch.bad)} of {len(places)} samples cannot be used and are left out")
        group = Group(batch.inputs, batch.labels)
        with torch.no_grad():
            predicted = [run.outputs(part.images).argmax(1).cpu() for part in group.parts(batch_size)]
        if info.name == TEST:
            found |= _parted(group, torch.cat(predicted), by)
        else:
            found[info.dataset_name] = Group.without_labels(group.images)
    return {name: group for name, group in found.items() if len(group)}


def _parted(test: Group, predictions: Tensor, by: Grouping) -> dict[str, Group]:
    """The groups of the test split."""
    if by == "split":
        return {TEST: test}
    known = test.labels >= 0
    if not bool(known.any()):
        raise DataError(f"grouping by {by} needs labels, and no sample of {TEST} has one; use --by split")
    right = test.labels == predictions
    chosen = {"right": known & right, "wrong": known & ~right}
    if by == "class":
        chosen = {f"class {label}": test.labels == label for label in sorted(set(test.labels[known].tolist()))}
    return {name: Group(test.images[places], test.labels[places]) for name, places in chosen.items()}


COLUMNS = ["group", "quantity", "measure", "layer", "statistic", "value"]

SHOWN_TO_ENGINE = 4
"""Samples with which the engine is compared with the reference."""

Progress = Callable[[str, int, int], None]
"""Is told the group, and how many of how many samples are done."""


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        groups: quantities by group of samples; those of one class hold the same bins in every group.
        samples: number of samples by group.
        layers: layers and parameters in the order of the model.
        findings: what is not well, whatever the quantities are; its `str` is a sentence.
        notices: what a reader of the figures should know.
    """

    groups: dict[str, list[Quantity]]
    samples: dict[str, int]
    layers: list[str]
    findings: list[Finding]
    notices: list[str]

    @property
    def verdict(self) -> str:
        """Whether anything stands out, for a heading."""
        return "not well" if self.findings else "nothing stands out"

    @property
    def scope(self) -> str:
        """What was looked for."""
        return f"looked for {', '.join(LOOKED_FOR[:-1])}, and {LOOKED_FOR[-1]}"

    def table(self) -> pd.DataFrame:
        """All figures, with columns group, quantity, measure, layer, statistic, value."""
        rows = [
            (group, quantity.name, row.measure, row.layer, row.statistic, row.value)
            for group, quantities in self.groups.items()
            for quantity in quantities
            for row in ordered_rows(quantity.summary(), self.layers)
        ]
        return pd.DataFrame(rows, columns=COLUMNS)


def inspect_config(
    config: Config,
    *,
    quantities: Sequence[str] | None = None,
    by: Grouping = "split",
    samples: int = 256,
    batch_size: int = 32,
    loss: str | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Inspects the classifier of a configuration with samples of its test split and OOD sets.

    Args:
        config: the settings.
        quantities: names in `QUANTITIES`; all by default.
        by: what makes a group of samples.
        samples: at most so many of each split, drawn at random with the seed of the configuration.
        batch_size: samples in a batch; what is measured per batch depends on it.
        loss: whose gradients are looked at; by default the first loss of the configuration that looks at no labels.
        trust_code: allow a `python:` model, whose code is run.
        progress: told after every batch.

    Returns:
        What was found.

    Raises:
        ConfigError: an unknown quantity or loss, or a device that is not there.
        ModelError: a model that cannot be built.
        DataError: data that cannot be used.
        EngineError: gradients that cannot be computed.
    """
    loss = loss or first_without_labels(config.features.losses)
    head = LOSSES.find(loss, where="loss")
    if head.several or head.needs_labels:
        single = ", ".join(name for name in LOSSES if not LOSSES[name].several and not LOSSES[name].needs_labels)
        reason = "has several gradients" if head.several else "looks at given labels, and OOD samples have none"
        raise ConfigError(f"loss: '{loss}' {reason}; choose one of {single}")
    names = list(dict.fromkeys(quantities or QUANTITIES))
    templates = [QUANTITIES.find(name, where="quantities")() for name in names]
    device = resolve_device(config.extract.device)
    origin: list[str] = []
    with trusting_code(trust_code):
        model = build_model(config.model, seed=config.extract.seed, notices=origin).to(device)
        _refuse_complex(model, templates, names)
        datasets = open_datasets(config)
    notices: list[str] = []
    groups = chosen_groups(config, model, datasets, by=by, samples=samples, batch_size=batch_size, notices=notices)
    found = inspect_groups(model, groups, templates, loss=head, batch_size=batch_size, progress=progress)
    return replace(found, notices=[*notices, *origin, *found.notices])


def _refuse_complex(model: nn.Module, templates: Sequence[Quantity], names: Sequence[str]) -> None:
    """Makes sure that quantities which look at single samples find real parameters; says which others there are."""
    hard = next((name for name, each in model.named_parameters() if each.is_complex()), None)
    if hard is None or not any(isinstance(quantity, SampleGradientQuantity) for quantity in templates):
        return
    fitting = [name for name in QUANTITIES if not isinstance(QUANTITIES[name](), SampleGradientQuantity)]
    chosen = [name for name in names if name in fitting] or fitting
    raise EngineError(
        f"{hard} is complex, and gradients of single samples are those of real parameters; leave out histograms "
        f"and the signal-to-noise ratio: --quantities {','.join(chosen)}"
    )


def inspect_groups(
    model: nn.Module,
    samples: Mapping[str, Group],
    templates: Sequence[Quantity],
    *,
    loss: LossHead,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Inspection:
    """Looks at the gradients of groups of samples, each with copies of the same quantities.

    Quantities that adapt their bins first see a batch of every group, and then have the same bins for all.

    Args:
        model: the classifier, in eval mode.
        samples: by group.
        templates: quantities that have seen nothing; they are used up.
        loss: from logits to the loss whose gradients are looked at.
        batch_size: samples in a batch.
        progress: told after every batch.

    Returns:
        What was found.

    Raises:
        EngineError: gradients that cannot be computed.
    """
    device = next(iter(model.parameters())).device
    engine = Engine(dict(model.named_parameters()), warns=False)
    task = _Task(model, engine, loss)
    sampled = [quantity for quantity in templates if isinstance(quantity, SampleGradientQuantity)]
    notices: list[str] = []
    with full_precision():
        for group in samples.values() if sampled else ():
            first = group.images[:batch_size].to(device)
            notices += task.prepare(first[:SHOWN_TO_ENGINE])
            task.observe_samples(model(first.clone()), sampled)
        for quantity in sampled:
            quantity.reset()
        groups: dict[str, list[Quantity]] = {}
        done, total = 0, sum(map(len, samples.values()))
        for name, group in samples.items():
            groups[name] = copy.deepcopy(list(templates))
            with Inspector(model, groups[name]) as inspector:
                for batch in group.parts(batch_size):
                    task.observe(inspector, batch.images.to(device))
                    done += len(batch)
                    if progress is not None:
                        progress(name, done, total)
                inspector.finish_step()
                inspector.observe_modules()
        batches = [
            Group(part.images.to(device), part.labels) for each in samples.values() for part in each.parts(batch_size)
        ]
        found = examine(model, batches)
    counts = {name: len(group) for name, group in samples.items()}
    if any(isinstance(quantity, MeanGSNR) for quantity in templates) and min(counts.values()) < 2:
        notices.append("the gradient signal-to-noise ratio is undefined: it needs at least two samples in a group")
    layers = [*inspector.layers, *inspector.parameters]
    return Inspection(groups, counts, layers, found, [*dict.fromkeys(notices), *engine.notices])


@dataclass(frozen=True)
class _Task:
    model: nn.Module
    engine: Engine
    loss: LossHead

    def prepare(self, images: Tensor) -> list[str]:
        """Shows the engine a few images, and returns what a reader should know of the model."""
        try:
            prepare(self.engine, self.model, images, lambda logits: self.loss(logits).direction)
        except AmplifiedRoundingError as error:
            logits = self.model(images.clone())
            self.engine.learn(logits, self.loss(logits.detach()).direction.to(logits.dtype))
            return [str(error)]
        return []

    def observe(self, inspector: Inspector, batch: Tensor) -> None:
        """Feeds all quantities with a batch, samples first: those need no hooks, the rest needs nothing else."""
        sampled = [quantity for quantity in inspector.quantities if isinstance(quantity, SampleGradientQuantity)]
        logits = self.model(batch.clone())  # it may work in place on what it is given
        if sampled:
            with inspector.paused():
                self.observe_samples(logits, sampled)
        if any(isinstance(quantity, OutputGradientQuantity | TensorQuantity) for quantity in inspector.quantities):
            gradient = self.loss(logits.detach())
            wanted = [parameter for parameter in inspector.parameters.values() if parameter.requires_grad]
            at_logits = (gradient.direction * gradient.scale.unsqueeze(1)).to(logits.dtype)
            torch.autograd.grad(logits, wanted, at_logits, retain_graph=True, allow_unused=True)

    def observe_samples(self, logits: Tensor, quantities: Sequence[SampleGradientQuantity]) -> None:
        gradient = self.loss(logits.detach())
        with feeding(quantities, self.engine.parameters, len(logits), scale=gradient.scale) as sink:
            self.engine.stream(logits, gradient.direction.to(logits.dtype), sink, retain_graph=True)


TABLES = ("figures.parquet", "histograms.parquet", "histograms_2d.parquet", "gsnr.parquet")
"""What an inspection writes, the first always."""


def write_tables(inspection: Inspection, folder: Path) -> list[Path]:
    """Writes `figures.parquet` and, where those quantities were asked for, histograms and signal-to-noise maps.

    Args:
        inspection: what was found.
        folder: where the files go; it has none of them.

    Returns:
        The files: `figures.parquet` (group, quantity, measure, layer, statistic, value), `histograms.parquet` (group,
        layer, low, high, count, one row for each bin), `histograms_2d.parquet` (with low and high of gradient and
        parameter, empty bins left out) and `gsnr.parquet` (group, layer, entry, gsnr: one row for each entry of each
        parameter, in the order of its elements).
    """
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    frames[TABLES[0]].append(inspection.table())
    for group, quantities in inspection.groups.items():
        for quantity in quantities:
            for name, layer, columns in _long(quantity):
                frames[name].append(pd.DataFrame({"group": group, "layer": layer, **columns}))
    written = [folder / name for name in TABLES if frames[name]]
    for path in written:
        with replacing(path) as temporary:
            pd.concat(frames[path.name], ignore_index=True).to_parquet(temporary, index=False)
    return written


def _long(quantity: Quantity) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What a table has of a quantity beside its figures: name of the table, layer, and columns."""
    if isinstance(quantity, GradHist1d):
        for layer, histogram in quantity.histograms.items():
            edges = histogram.edges[0]
            yield TABLES[1], layer, {"low": edges[:-1], "high": edges[1:], "count": histogram.counts.numpy()}
    elif isinstance(quantity, GradHist2d):
        for layer, histogram in {**quantity.histograms, MODEL: quantity.model}.items():
            counts = histogram.counts.numpy()
            x, y = counts.nonzero()
            gradient, parameter = histogram.edges
            columns = {"gradient_low": gradient[x], "gradient_high": gradient[x + 1]}
            columns |= {"parameter_low": parameter[y], "parameter_high": parameter[y + 1], "count": counts[x, y]}
            yield TABLES[2], layer, columns
    elif isinstance(quantity, MeanGSNR):
        for layer in quantity.moments:
            ratios = quantity.ratios(layer).cpu().numpy()
            yield TABLES[3], layer, {"entry": range(len(ratios)), "gsnr": ratios}
