"""A loss that a program gives for whole batches: whatever it does with any model, the loss of each sample comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import content_hash
from ..errors import CoupledSamplesError, DataError, EngineError, GradscoreError
from ..gradients import Engine, read_graph, refuse_opaque
from .held_tensors import tensors_in, with_tensors

LossOfBatch = Callable[[nn.Module, Any], Tensor]
"""From a model and a batch to the loss of each of N samples (N,), or of each of their T tokens (N, T)."""

LEARNED_FROM = 2
"""Samples that the engine learns the layout of a batch from: the fewest that can be told apart."""

ALONE = 1e-2
"""Largest accepted difference between a sample's loss among few and among all samples, relative to the largest loss.

Batches of other sizes round otherwise; a loss that is divided by the number of samples is off by a factor.
"""


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
        self._seen: set[tuple[int, tuple[torch.Size, ...]]] = set()

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
        few = self._learned(batch, samples, tuple(tensor.shape[1:] for tensor in tensors_in(batch) if tensor.dim()))
        losses = self._losses(batch, samples)
        if few is not None:
            _refuse_coupling(few, losses.detach())
        return losses

    def _learned(self, batch: Any, samples: int, shapes: tuple[torch.Size, ...]) -> Tensor | None:
        """Has the engine learn from a few samples what it would learn from all; their losses, or None if it knows."""
        count = min(LEARNED_FROM, samples - 1)
        if not count or (count, shapes) in self._seen:
            return None
        self._seen.add((count, shapes))
        few = with_tensors(batch, lambda tensor: tensor[:count] if tensor.shape[:1] == (samples,) else tensor)
        losses = self._losses(few, count)
        if count == LEARNED_FROM:  # one sample alone does not say which axis is that of the samples
            self.engine.learn(losses, torch.ones_like(losses))
        return losses.detach()

    def _losses(self, batch: Any, samples: int) -> Tensor:
        try:
            losses = self._loss(self._model, batch)
        except (GradscoreError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the function is anyone's and may raise anything
            name = getattr(self._loss, "__qualname__", type(self._loss).__qualname__)
            raise EngineError(
                f"loss '{name}': cannot take the model and a batch of {samples} samples: {type(error).__name__}: "
                f"{(str(error).splitlines() or [''])[0]}"
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
        self._check_model(losses)
        bad = np.flatnonzero(~losses.detach().isfinite().reshape(samples, -1).all(1).cpu().numpy())
        if len(bad):
            raise EngineError(
                f"the loss of sample {bad[0]} of the batch is not finite ({len(bad)} of {samples}); a mean over no "
                "tokens is not: divide by the number of tokens or 1"
            )
        return losses

    def _check_model(self, losses: Tensor) -> None:
        """Makes sure, once, that losses come from the model: gradients by it were all zero otherwise."""
        if self._depends:
            return
        graph = read_graph(losses, {**dict(self._model.named_parameters()), **self.engine.parameters})
        if not graph.leaves:
            refuse_opaque(graph)
            raise EngineError(
                "the loss does not depend on the parameters of the model; compute it with the model that the function "
                "is called with, not with another one or a copy"
            )
        self._depends = True


def count_samples(batch: Any) -> int:
    """The number of samples of a batch.

    Raises:
        DataError: it has none.
    """
    first = next(tensors_in(batch), None)
    samples = len(first) if first is not None and first.dim() else 0
    if not samples:
        got = type(batch).__name__ if first is None else f"shape {tuple(first.shape)}"
        raise DataError(f"data: wanted batches that are or hold tensors (N, ...) of one sample or more, got {got}")
    return samples


def content_hashes(batch: Any) -> list[str]:
    """Hashes of the samples of a batch: of their rows of all tensors, and of tensors that they share."""
    samples = count_samples(batch)
    arrays = [_array(tensor) for tensor in tensors_in(batch)]
    rows = [array if len(array) == samples else np.broadcast_to(array, (samples, *array.shape)) for array in arrays]
    return [content_hash({str(place): each[sample] for place, each in enumerate(rows)}) for sample in range(samples)]


def each_batch(batches: Iterable[Any]) -> Iterator[Any]:
    """All batches, one at least.

    Raises:
        DataError: there are none, or what was given is one batch.
    """
    if isinstance(batches, Tensor | Mapping | np.ndarray | str) or not isinstance(batches, Iterable):
        raise DataError(
            f"data: wanted batches for the loss to be called with (a DataLoader, a list), got "
            f"{type(batches).__name__}; give [batch] for a single one"
        )
    nothing = True
    for batch in batches:
        nothing = False
        yield batch
    if nothing:
        raise DataError(
            "data: wanted batches, got none (an iterator can be read only once: give a list or a DataLoader)"
        )


def _refuse_coupling(few: Tensor, all_of_them: Tensor) -> None:
    difference = (
        float((few - all_of_them[: len(few)]).abs().max()) if few.shape[1:] == all_of_them.shape[1:] else np.inf
    )
    if difference > ALONE * float(all_of_them.abs().max()):
        raise CoupledSamplesError(
            f"the loss of a sample changes with the other samples of its batch (by {difference:.3g}); per-sample "
            "gradients are not defined for it. Put batch norm and dropout in eval mode, and divide by the number of "
            "tokens of each sample, not of the batch"
        )


def _array(tensor: Tensor) -> NDArray[Any]:
    """At least one-dimensional, of a dtype that NumPy has."""
    here = tensor.detach().cpu()
    known = here.float() if here.dtype == torch.bfloat16 else here
    return np.atleast_1d(known.numpy())
