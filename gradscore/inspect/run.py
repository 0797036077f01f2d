"""Inspecting a saved model with its own data: the same quantities for every group of samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from ..config import Config
from ..errors import AmplifiedRoundingError, ConfigError, EngineError
from ..features import model_on, open_datasets
from ..gradients import Engine, GradientWarning, prepare
from ..losses import LOSSES, LossHead, first_without_labels
from ..models import USERS_OWN, RunCode
from ..system import full_precision, resolve_device
from .catalogue import QUANTITIES, make_quantities
from .examination import examine
from .finding import Finding
from .findings import LOOKED_FOR
from .inspector import Inspector
from .quantities.mean_gsnr import MeanGSNR
from .quantities.quantity import OutputGradientQuantity, Quantity, SampleGradientQuantity, TensorQuantity
from .rows import model_order, ordered_rows
from .sample_groups import Group, Grouping, choose, grouped
from .samples import observe_samples

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
        place = model_order(self.layers)
        rows = [
            (group, quantity.name, row.measure, row.layer, row.statistic, row.value)
            for group, quantities in self.groups.items()
            for quantity in quantities
            for row in ordered_rows(quantity.summary(), place)
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
    code: RunCode = USERS_OWN,
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
        code: what the run folder that the configuration is from says of that code.
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
    templates = make_quantities(quantities)
    device = resolve_device(config.extract.device)
    origin: list[str] = []
    model = model_on(device, config, trust_code=trust_code, code=code, notices=origin)
    _refuse_complex(model, templates, quantities or list(QUANTITIES))
    datasets = open_datasets(config, trust_code=trust_code, named=code.data)
    chosen, notices = choose(config, model, datasets, samples=samples, batch_size=batch_size)
    notices += origin
    found = inspect_groups(model, grouped(chosen, by), templates, loss=head, batch_size=batch_size, progress=progress)
    return Inspection(found.groups, found.samples, found.layers, found.findings, [*notices, *found.notices])


def _refuse_complex(model: nn.Module, templates: Sequence[Quantity], names: Sequence[str]) -> None:
    """Makes sure that quantities which look at single samples find real parameters; says which others there are."""
    hard = next((name for name, each in model.named_parameters() if each.is_complex()), None)
    if hard is None or not any(map(_is_of_samples, templates)):
        return
    fitting = [name for name in QUANTITIES if not _is_of_samples(QUANTITIES[name]())]
    chosen = [name for name in names if name in fitting] or fitting
    raise EngineError(
        f"{hard} is complex, and gradients of single samples are those of real parameters; leave out histograms "
        f"and the signal-to-noise ratio: --quantities {','.join(chosen)}"
    )


def _is_of_samples(quantity: Quantity) -> bool:
    return isinstance(quantity, SampleGradientQuantity)


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
    engine = Engine(dict(model.named_parameters()))
    task = _Task(model, engine, loss)
    sampled = [quantity for quantity in templates if isinstance(quantity, SampleGradientQuantity)]
    notices: list[str] = []
    with full_precision(), warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
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
        direction = gradient.direction.to(logits.dtype)
        observe_samples(self.engine, logits, direction, quantities, scale=gradient.scale, retain_graph=True)
