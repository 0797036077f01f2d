"""Losses that a program gives for whole batches, with any model: the gradient of each sample's, or of each token's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..config import FeaturesConfig
from ..data import Batch, count_samples, holds_others, tensors_in, with_tensors
from ..errors import CoupledSamplesError, EngineError, GradscoreError
from ..gradients import Engine, coupled_share, is_looked_at, read_graph
from ..losses import OF_BATCHES
from ..models import group_parameters
from ..statistics import reduce_gradients
from ..system import FloatArray, full_precision

LossOfBatch = Callable[[nn.Module, Any], Tensor]
"""From a model and a batch to the loss of each of N samples (N,), or of each of their T tokens (N, T)."""

Tokens = Literal["sum", "each"]
"""What becomes of losses (N, T): one sum for each sample, or one row of features for each token."""

LEARNED_FROM = 2
"""Samples that the engine learns the layout of a batch from: the fewest that can be told apart."""

ALONE = 1e-2
"""Largest accepted difference between a sample's loss among few and among all samples, relative to the largest loss.

Batches of other sizes round otherwise; a loss that is divided by the number of samples is off by a factor.
"""


def _has_uneven_rows(tensor: Tensor) -> bool:
    """Whether samples differ in how often they have the smallest whole number: what pads, or masks, a token."""
    if tensor.dim() < 2 or not tensor.numel() or tensor.is_floating_point() or tensor.is_complex():
        return False
    counts = (tensor == tensor.min()).flatten(1).sum(1)
    return bool((counts != counts[0]).any())


def _rows(batch: Any, rows: Tensor, samples: int) -> Any:
    """Some samples of a batch; what has another length stays."""
    return with_tensors(batch, lambda tensor: tensor[rows] if tensor.shape[:1] == (samples,) else tensor)


class BatchLosses:
    """A model, a loss of its batches, and what is known of the batches that were seen.

    Args:
        model: in evaluation mode, on the device that computes.
        loss: of a batch.
        parameters: those whose gradients are wanted, by name; at least one.
        each_token: losses must be (N, T).

    Attributes:
        engine: knows the parameters.
        device: where they are.
    """

    def __init__(
        self, model: nn.Module, loss: LossOfBatch, parameters: Mapping[str, Tensor], *, each_token: bool = False
    ) -> None:
        self.engine = Engine(parameters)
        self.device = next(iter(parameters.values())).device
        self._model, self._loss, self._each_token = model, loss, each_token
        self._depends = False
        self._seen: set[tuple[int, tuple[torch.Size, ...], tuple[bool, ...]]] = set()

    def of(self, batch: Any) -> Tensor:
        """The losses of a batch, (N,) or (N, T), with their graph; the engine has learned from batches like it.

        Args:
            batch: a tensor, or a mapping, list, tuple or dataclass that holds some, samples along the first axis of
                the first.

        Raises:
            DataError: a batch without tensors or samples.
            EngineError: the loss raises something, does not depend on the model, has another shape, or is not finite.
            CoupledSamplesError: the loss of a sample depends on the other samples of its batch.
        """
        samples = count_samples(batch)
        batch = with_tensors(batch, lambda tensor: tensor.to(self.device))
        losses = self._losses(batch, samples)
        self._learn(batch, losses, tuple(tensor.shape[1:] for tensor in tensors_in(batch) if tensor.dim()))
        return losses

    def _learn(self, batch: Any, losses: Tensor, shapes: tuple[torch.Size, ...]) -> None:
        """Has the engine learn from a few samples what it would learn from all, unless it knows.

        Raises:
            CoupledSamplesError: see `_compare`.
        """
        samples = len(losses)
        count = min(LEARNED_FROM, samples - 1)
        if not count:
            return
        # Where none has padding, a loss over the tokens of the batch is that over a sample's own.
        like_it = count, shapes, tuple(map(_has_uneven_rows, tensors_in(batch)))
        if like_it in self._seen:
            return
        self._seen.add(like_it)
        # Gradients, which take several passes through the batch, are compared for the first, fourth ... kind of batch.
        with_gradients = is_looked_at(len(self._seen), sparser=4)
        ordered = losses.detach().abs().reshape(samples, -1).sum(1).argsort(descending=True, stable=True)
        # The largest, since weights by rank or place show best there, and one of the middle, of whose gradient a term
        # of the batch has more. What belongs to other samples stays beside the first ones.
        largest, mixed = ordered[:count], ordered[[0, samples // 2]][:count]
        first = torch.arange(count, device=self.device)
        for rows in [first] if holds_others(batch, samples) else [largest, mixed][: 1 + with_gradients]:
            few = rows.sort(descending=rows is not first).values
            alone = self._compare(batch, losses, few, with_gradients=with_gradients)
        if count == LEARNED_FROM:  # one sample alone does not say which axis is that of the samples
            self.engine.learn(alone, torch.ones_like(alone))

    def _compare(self, batch: Any, losses: Tensor, rows: Tensor, *, with_gradients: bool) -> Tensor:
        """The losses of a few samples of a batch by themselves, compared with those among all.

        Raises:
            CoupledSamplesError: they, or their gradients, are others than among all samples, or of another shape.
        """
        samples, count, those = len(losses), len(rows), losses.detach()
        few = _rows(batch, rows, samples)
        alone = self._losses(few, count)
        if alone.shape[1:] != those.shape[1:]:
            raise CoupledSamplesError(
                f"the loss has shape {tuple(alone.shape)} for {count} samples and {tuple(those.shape)} for {samples}; "
                "wanted as many columns for few samples as for all. Where each sample got a column, outputs (N, 1) "
                "and labels (N,) were broadcast: give both one shape; do not shorten tokens to the longest of a batch"
            )
        difference = float((alone.detach() - those[rows]).abs().max())
        if difference > ALONE * float(those.abs().max()):
            raise CoupledSamplesError(
                f"the loss of a sample changes with the other samples of its batch (by {difference:.3g}); per-sample "
                "gradients are not defined for it. Put batch norm and dropout in eval mode, divide by the number of "
                "tokens of each sample, not of the batch, and weight no sample by its rank or place; what belongs to "
                "a sample goes into the batch"
            )
        together, apart = (each.reshape(len(each), -1).sum(1) for each in (losses, alone))
        worst = coupled_share(self.engine.parameters, together[rows], apart) if with_gradients else None
        if worst is not None and self._differs_among_copies(batch, together, rows):
            raise CoupledSamplesError(
                f"the gradient of a sample's loss changes with the other samples of its batch (by {worst:.0%} of its "
                "norm); per-sample gradients are not defined for it. Take out what is of the whole batch, such as a "
                "term that balances experts, and hooks or functions whose backward pass runs across the batch"
            )
        return alone

    def _differs_among_copies(self, batch: Any, together: Tensor, rows: Tensor) -> bool:
        """Whether the gradients of a few samples differ among as many copies of each, too, which rounds alike."""
        samples = len(together)
        for row in rows:
            copies = _rows(batch, row.expand(samples), samples)
            found = self._losses(copies, samples)[row].sum()
            if coupled_share(self.engine.parameters, together[row][None], found[None]) is not None:
                return True
        return False

    def _losses(self, batch: Any, samples: int) -> Tensor:
        try:
            losses = self._loss(self._model, batch)
        except (GradscoreError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the function is anyone's and may raise anything
            name = getattr(self._loss, "__qualname__", type(self._loss).__qualname__)
            raise EngineError(
                f"loss '{name}': cannot take the model and a batch of {samples} samples: {type(error).__name__}: "
                f"{(str(error).splitlines() or [''])[0]}; wanted {OF_BATCHES}"
            ) from error
        wanted = f"({samples}, tokens)" if self._each_token else f"({samples},), or ({samples}, tokens)"
        if not isinstance(losses, Tensor):
            raise EngineError(f"the loss must return a tensor of shape {wanted}, got {type(losses).__name__}")
        dimensions = (2,) if self._each_token else (1, 2)
        if losses.dim() not in dimensions or len(losses) != samples or not losses.numel():
            raise EngineError(
                f"the loss must return one value for each sample, of shape {wanted}, got {tuple(losses.shape)}; use "
                "reduction='none', and average over tokens yourself (the loss that models of transformers return "
                "is a mean over the batch: compute it from its logits)"
            )
        if not losses.requires_grad:
            raise EngineError(
                "the loss does not depend on the parameters of the model; compute it with gradients enabled"
            )
        if not self._depends:  # looked at once: gradients by another model would all be zero
            graph = read_graph(losses, {**dict(self._model.named_parameters()), **self.engine.parameters})
            if not graph.leaves:
                raise EngineError(
                    "the loss does not depend on the parameters of the model; compute it with the model that the "
                    "function is called with, not with another one or a copy"
                )
            self._depends = True
        bad = np.flatnonzero(~losses.detach().isfinite().reshape(samples, -1).all(1).cpu().numpy())
        if len(bad):
            raise EngineError(
                f"the loss of sample {bad[0]} of the batch is not finite ({len(bad)} of {samples}); a mean over no "
                "tokens is not: divide by the number of tokens or 1"
            )
        return losses


class LossExtractor:
    """Turns batches into statistics of the gradients of losses that call the model themselves.

    Args:
        model: in evaluation mode, on the device that computes.
        loss: called with the model and a batch whose tensors are on the model's device, in containers of the same
            types.
        features: statistics, parameters and granularity.
        tokens: what becomes of losses (N, T). For "each", a backward pass through the whole batch for every token: a
            token's loss depends on those before it as well, so that no single pass has the gradients of all.

    Raises:
        ConfigError: an unknown parameter pattern.
        ModelError: the model has no parameters.
    """

    def __init__(self, model: nn.Module, loss: LossOfBatch, features: FeaturesConfig, *, tokens: Tokens) -> None:
        """Sets up the engine for the chosen parameters."""
        parameters = dict(model.named_parameters())
        self._groups = group_parameters(model, features.parameters, granularity=features.granularity)
        wanted = {name for names in self._groups.values() for name in names}
        chosen = {name: parameter for name, parameter in parameters.items() if name in wanted}
        self._losses = BatchLosses(model, loss, chosen, each_token=tokens == "each")
        self._statistics, self._tokens = features.statistics, tokens

    def values(self, batch: Batch) -> dict[str, Sequence[str] | FloatArray]:
        """Columns by name: `sample_id`, `token` (for "each"), `loss`, and `loss/<parameter>/<statistic>`.

        Args:
            batch: whose `inputs` are what the losses are called with.

        Raises:
            DataError: a batch without tensors.
            EngineError: the losses have another shape, are not finite, or gradients cannot be computed.
            CoupledSamplesError: the loss of a sample depends on the other samples of its batch.
        """
        with full_precision():
            losses = self._losses.of(batch.inputs)
            if self._tokens == "sum":
                whole = losses.detach().double().reshape(len(losses), -1).sum(1).cpu().numpy()
                columns = self._columns(losses, torch.ones_like(losses), keep=False)
                return {"sample_id": batch.ids, "loss": whole, **columns}
            # Of one token alone most of the gradient is zero, which says little of where samples lie.
            self._losses.engine.learn(losses, torch.ones_like(losses))
            length = losses.shape[1]
            found = []
            for token in range(length):
                chosen = torch.zeros_like(losses)
                chosen[:, token] = 1
                found.append(self._columns(losses, chosen, keep=token + 1 < length))
        return {
            "sample_id": [name for name in batch.ids for _ in range(length)],
            "token": np.tile(np.arange(length), len(losses)),
            "loss": losses.detach().double().flatten().cpu().numpy(),
            **{name: np.stack([each[name] for each in found], axis=1).ravel() for name in found[0]},
        }

    def _columns(self, losses: Tensor, chosen: Tensor, *, keep: bool) -> dict[str, FloatArray]:
        columns = reduce_gradients(
            self._losses.engine, losses, chosen, statistics=self._statistics, groups=self._groups, retain_graph=keep
        )
        found = torch.stack(list(columns.values())).cpu().numpy()  # one copy from an accelerator
        return {f"loss/{name}": values for name, values in zip(columns, found, strict=True)}
