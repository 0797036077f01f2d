"""Saved models: looked at with their own data, in groups of samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from ..config import Config
from ..data import TEST, BadSample, SampleDataset, planned_splits, split_samples
from ..errors import AmplifiedRoundingError, ConfigError, DataError
from ..extractor import ForwardPass
from ..gradients import Engine, prepare
from ..losses import LOSSES, LossHead, first_without_labels
from ..models import build_model, first_parameter
from ..pipeline import Progress, open_datasets
from ..system import Registry, full_precision, resolve_device
from .findings import Finding
from .health import examine
from .histograms import GradHist1d, GradHist2d
from .inspector import Inspector
from .layer_quantities import (
    GradientActivation,
    GradientGeometry,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterNorm,
)
from .quantity import OutputGradientQuantity, Quantity, SampleGradientQuantity, TensorQuantity, ordered_rows
from .sample_gradients import MeanGSNR, feeding

KEPT: Mapping[str, Any] = {"inplace": False, "line_aggregation": "median", "range_aggregation": "Q1-Q3"}
"""Values are kept, for medians and quartiles."""

ANY_SIZE = 1e-300
"""Bins as narrow as gradients are small."""

QUANTITIES: Registry[Callable[[], Quantity]] = Registry(
    "quantity",
    {
        "grad_hist_1d": lambda: GradHist1d(bins=61, adapt=ANY_SIZE, per_parameter=True),
        "grad_hist_2d": lambda: GradHist2d(bins=(61, 40), adapt=(ANY_SIZE, 1e-6)),
        "mean_gsnr": lambda: MeanGSNR(inplace=False),
        "output_gradient_geometry": lambda: OutputGradientGeometry(
            **KEPT, per_sample=True, reduction="sum", skip_activation=False, log_scale=True
        ),
        "gradient_geometry": lambda: GradientGeometry(**KEPT, normalize=True, log_scale=True),
        "gradient_activation": lambda: GradientActivation(**KEPT, eps=0.0),
        "output_activation": lambda: OutputActivation(**KEPT, eps=0.0, record_eval=True),
        "output_norm": lambda: OutputNorm(**KEPT, normalize=True, record_eval=True),
        "parameter_norm": lambda: ParameterNorm(**KEPT, normalize=True),
    },
)
"""Makers of quantities, by name, set up for saved models.

Zero is zero, since a saved model has no noise that hides it.
"""

Grouping = Literal["split", "correct", "class"]


SHOWN_TO_ENGINE = 4
"""Samples with which the engine is compared with the reference."""


@dataclass(frozen=True)
class Inspection:
    """Result of an inspection.

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

    def table(self) -> pd.DataFrame:
        """All figures, with columns group, quantity, measure, layer, statistic, value."""
        rows = [
            (group, quantity.name, *row)
            for group, quantities in self.groups.items()
            for quantity in quantities
            for row in ordered_rows(quantity.summary(), self.layers)
        ]
        return pd.DataFrame(rows, columns=["group", "quantity", "measure", "layer", "statistic", "value"])


def inspect_config(
    config: Config,
    *,
    quantities: Sequence[str] | None = None,
    by: Grouping = "split",
    samples: int = 256,
    batch_size: int = 32,
    loss: str | None = None,
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
    built = build_model(config.model, seed=config.extract.seed)
    model = built.model.to(device)
    datasets = open_datasets(config)
    notices: list[str] = []
    groups = _chosen_groups(config, model, datasets, by=by, samples=samples, batch_size=batch_size, notices=notices)
    ood = {info.dataset_name for info, _ in planned_splits(config.data).values() if info.is_reported_ood}
    found = inspect_groups(model, groups, templates, loss=head, ood=ood, batch_size=batch_size, progress=progress)
    return replace(found, notices=[*notices, *built.notices, *found.notices])


def _chosen_groups(
    config: Config,
    model: nn.Module,
    datasets: Mapping[str, SampleDataset],
    *,
    by: Grouping,
    samples: int,
    batch_size: int,
    notices: list[str],
) -> dict[str, Tensor]:
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
    device = first_parameter(model).device
    classes = config.model.classes
    forward = ForwardPass(model, device=device, num_classes=classes)

    found: dict[str, Tensor] = {}
    for info, _ in planned_splits(config.data).values():
        if info.name != TEST and (not info.is_reported_ood or by == "class"):
            continue
        dataset, skipped = datasets[info.name], list[BadSample]()
        places = np.random.default_rng(config.extract.seed).permutation(len(dataset))[:samples].tolist()
        stream = split_samples(
            Subset(dataset, places),
            name=info.name,
            batch_size=samples,  # all in one, since they are one tensor in the end
            workers=config.extract.workers,
            on_error=config.extract.on_error,
            skipped=skipped,
        )
        batch = stream.first
        with torch.no_grad():
            predictions = torch.cat(
                [forward.outputs(part).argmax(1).cpu() for part in torch.split(batch.tensor, batch_size)]
            )
        if skipped:
            notices.append(f"{info.name}: {len(skipped)} of {len(places)} samples cannot be used and are left out")
        if info.name == TEST:
            found |= _parted(batch.tensor, batch.labels, predictions, by, dataset.class_names)
        else:
            found[info.dataset_name] = batch.tensor
    return {name: group for name, group in found.items() if len(group)}


def _parted(
    images: Tensor, labels: Tensor, predictions: Tensor, by: Grouping, names: Sequence[str] | None
) -> dict[str, Tensor]:
    """The groups of the test split."""
    if by == "split":
        return {TEST: images}
    known = labels >= 0
    if not bool(known.any()):
        raise DataError(f"grouping by {by} needs labels, and no sample of {TEST} has one; use --by split")
    right = labels == predictions
    chosen = {"right": known & right, "wrong": known & ~right}
    if by == "class":
        present = sorted(set(labels[known].tolist()))
        chosen = {f"class {label if names is None else names[label]}": labels == label for label in present}
    return {name: images[places] for name, places in chosen.items()}


def inspect_groups(
    model: nn.Module,
    samples: Mapping[str, Tensor],
    templates: Sequence[Quantity],
    *,
    loss: LossHead,
    ood: Collection[str] = (),
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
        ood: groups that findings leave out, since a network is well whatever it makes of samples that it is not for.
        batch_size: samples in a batch.
        progress: told after every batch.

    Returns:
        What was found.

    Raises:
        EngineError: gradients that cannot be computed.
    """
    device = next(iter(model.parameters())).device
    batches = {name: torch.split(images, batch_size) for name, images in samples.items()}
    engine = Engine(dict(model.named_parameters()), warns=False)
    notices: list[str] = []

    def observe_samples(logits: Tensor, quantities: Sequence[Quantity]) -> None:
        gradient, sampled = loss(logits.detach()), _of_samples(quantities)
        with feeding(sampled, engine.parameters, len(logits), scale=gradient.scale) as sink:
            engine.stream(logits, gradient.direction.to(logits.dtype), sink, retain_graph=True)

    with full_precision():
        for first, *_others in batches.values() if _of_samples(templates) else ():
            first = first.to(device)
            few = first[:SHOWN_TO_ENGINE]
            try:
                prepare(engine, model, few, lambda logits: loss(logits).direction)
            except AmplifiedRoundingError as error:
                logits = model(few.clone())
                engine.learn(logits, loss(logits.detach()).direction.to(logits.dtype))
                notices.append(str(error))
            observe_samples(model(first.clone()), templates)
        for quantity in _of_samples(templates):
            quantity.reset()
        groups: dict[str, list[Quantity]] = {}
        counts = {name: len(images) for name, images in samples.items()}
        done = 0
        for name, parts in batches.items():
            groups[name] = copy.deepcopy(list(templates))
            with Inspector(model, groups[name]) as inspector:
                for batch in parts:
                    logits = model(batch.to(device, copy=True))  # it may work in place on what it is given
                    if _of_samples(templates):  # first, since those need no hooks and the rest nothing else
                        with inspector.paused():
                            observe_samples(logits, groups[name])
                    if any(isinstance(each, OutputGradientQuantity | TensorQuantity) for each in templates):
                        gradient = loss(logits.detach())
                        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
                        at_logits = (gradient.direction * gradient.scale.unsqueeze(1)).to(logits.dtype)
                        torch.autograd.grad(logits, wanted, at_logits, retain_graph=True, allow_unused=True)
                    done += len(batch)
                    if progress is not None:
                        progress(name, done, sum(counts.values()))
                inspector.finish_step()
                inspector.observe_modules()
        own = [images.to(device) for name, parts in batches.items() if name not in ood for images in parts]
        found = examine(model, own)
    if any(isinstance(quantity, MeanGSNR) for quantity in templates) and min(counts.values()) < 2:
        notices.append("the gradient signal-to-noise ratio is undefined: it needs at least two samples in a group")
    layers = [*inspector.layers, *inspector.parameters]
    return Inspection(groups, counts, layers, found, [*dict.fromkeys(notices), *engine.notices])


def _of_samples(quantities: Sequence[Quantity]) -> list[SampleGradientQuantity]:
    return [quantity for quantity in quantities if isinstance(quantity, SampleGradientQuantity)]
