"""Features of any loss: gradients of what a function of the user's says of each sample, or of each token of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ..config import FeaturesConfig
from ..errors import CoupledSamplesError, DataError, EngineError
from ..gradients import Engine
from ..models import group_parameters
from ..statistics import reduce_gradients
from ..system import full_precision
from .held_tensors import tensors_in, with_tensors
from .live_model import check_mode
from .progress import Progress
from .run_plan import check_names

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


def features_of_losses(
    model: nn.Module,
    batches: Iterable[Any],
    loss: LossOfBatch,
    features: FeaturesConfig,
    *,
    tokens: Tokens = "sum",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Statistics of the gradient of every sample's loss, or every token's.

    Args:
        model: in eval mode, on the device that computes.
        batches: each a tensor, or a mapping, list, tuple or dataclass that holds some, samples along the first axis of
            each.
        loss: called with the model and a batch whose tensors are on the model's device, in containers of the same
            types.
        features: statistics, parameters and granularity.
        tokens: what becomes of losses (N, T). For "each", a backward pass through the whole batch for every token: a
            token's loss depends on those before it as well, so that no single pass has the gradients of all.
        progress: told how many samples there were.

    Returns:
        One row for each sample, or for each token of each: `sample_id` (its position), `token` (for "each"), `loss`,
        then `loss/<parameter>/<statistic>`.

    Raises:
        ConfigError: an unknown statistic or parameter pattern.
        DataError: no batches, or a batch without tensors.
        ModelError: the model is in training mode, or has no parameters.
        EngineError: the losses have another shape, are not finite, or gradients cannot be computed.
        CoupledSamplesError: the loss of a sample depends on the other samples of its batch.
    """
    check_names(features)
    check_mode(model)
    batch_losses = _BatchLosses(model, loss, features, each_token=tokens == "each")
    frames: list[pd.DataFrame] = []
    done = 0
    with full_precision():
        for batch in _each(batches):
            frames.append(batch_losses.frame(batch, first=done))
            done += frames[-1]["sample_id"].nunique()
            if progress is not None:
                progress("features", done, 0)
    if not frames:
        raise DataError(
            "data: wanted batches, got none (an iterator can be read only once: give a list or a DataLoader)"
        )
    table = pd.concat(frames, ignore_index=True)
    table["sample_id"] = table["sample_id"].astype(str)  # as in all other tables
    return table


class _BatchLosses:
    """A model, its loss, and what is known of the batches that were seen."""

    def __init__(self, model: nn.Module, loss: LossOfBatch, features: FeaturesConfig, *, each_token: bool) -> None:
        parameters = dict(model.named_parameters())
        self._groups = group_parameters(model, features.parameters, granularity=features.granularity)
        wanted = {name for names in self._groups.values() for name in names}
        self._engine = Engine({name: parameter for name, parameter in parameters.items() if name in wanted})
        self._model, self._loss, self._statistics = model, loss, features.statistics
        self._device = next(iter(parameters.values())).device
        self._each_token = each_token
        self._seen: set[tuple[int, tuple[torch.Size, ...]]] = set()

    def frame(self, batch: Any, *, first: int) -> pd.DataFrame:
        """The rows of a batch whose first sample has number `first`."""
        tensors = list(tensors_in(batch))
        samples = len(tensors[0]) if tensors and tensors[0].dim() else 0
        if not samples:
            raise DataError(
                "data: wanted batches that are or hold tensors (N, ...) of one sample or more, got "
                f"{f'shape {tuple(tensors[0].shape)}' if tensors else type(batch).__name__}"
            )
        batch = with_tensors(batch, lambda tensor: tensor.to(self._device))
        few = self._learned(batch, samples, tuple(tensor.shape[1:] for tensor in tensors if tensor.dim()))
        losses = self._losses(batch, samples)
        if few is not None:
            _refuse_coupling(few, losses.detach())
        if not self._each_token:
            columns = self._columns(losses, torch.ones_like(losses), keep=False)
            whole = losses.detach().double().reshape(samples, -1).sum(1).cpu().numpy()
            return pd.DataFrame({"sample_id": np.arange(first, first + samples), "loss": whole, **columns})
        return self._of_tokens(losses, first=first)

    def _of_tokens(self, losses: Tensor, *, first: int) -> pd.DataFrame:
        samples, length = losses.shape
        self._engine.learn(losses, torch.ones_like(losses))  # of one token alone most is zero, which says little
        found = []
        for token in range(length):
            chosen = torch.zeros_like(losses)
            chosen[:, token] = 1
            found.append(pd.DataFrame(self._columns(losses, chosen, keep=token + 1 < length)))
        table = pd.concat(found, ignore_index=True)
        table.insert(0, "loss", losses.detach().double().t().flatten().cpu().numpy())
        table.insert(0, "token", np.repeat(np.arange(length), samples))
        table.insert(0, "sample_id", np.tile(np.arange(first, first + samples), length))
        return table.sort_values(["sample_id", "token"], ignore_index=True)

    def _columns(self, losses: Tensor, chosen: Tensor, *, keep: bool) -> dict[str, Any]:
        columns = reduce_gradients(
            self._engine, losses, chosen, statistics=self._statistics, groups=self._groups, retain_graph=keep
        )
        return {f"loss/{name}": values.cpu().numpy() for name, values in columns.items()}

    def _learned(self, batch: Any, samples: int, shapes: tuple[torch.Size, ...]) -> Tensor | None:
        """Has the engine learn from a few samples what it would learn from all; their losses, or None if it knows."""
        count = min(LEARNED_FROM, samples - 1)
        if not count or (count, shapes) in self._seen:
            return None
        self._seen.add((count, shapes))
        few = with_tensors(batch, lambda tensor: tensor[:count] if tensor.shape[:1] == (samples,) else tensor)
        losses = self._losses(few, count)
        if count == LEARNED_FROM:  # one sample alone does not say which axis is that of the samples
            self._engine.learn(losses, torch.ones_like(losses))
        return losses.detach()

    def _losses(self, batch: Any, samples: int) -> Tensor:
        losses = self._loss(self._model, batch)
        wanted = f"({samples}, tokens)" if self._each_token else f"({samples},), or ({samples}, tokens)"
        if not isinstance(losses, Tensor):
            raise EngineError(f"the loss must return a tensor of shape {wanted}, got {type(losses).__name__}")
        dimensions = (2,) if self._each_token else (1, 2)
        if losses.dim() not in dimensions or len(losses) != samples or not losses.numel():
            raise EngineError(
                f"the loss must return one value for each sample, of shape {wanted}, got {tuple(losses.shape)}; use "
                "reduction='none', and average over tokens yourself"
            )
        if not losses.requires_grad:
            raise EngineError(
                "the loss does not depend on the parameters of the model; compute it with gradients enabled"
            )
        bad = (~losses.detach().isfinite().reshape(samples, -1).all(1)).nonzero().flatten().tolist()
        if bad:
            raise EngineError(
                f"the loss of sample {bad[0]} of the batch is not finite ({len(bad)} of {samples}); a mean over no "
                "tokens is not: divide by the number of tokens or 1"
            )
        return losses


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


def _each(batches: Iterable[Any]) -> Iterator[Any]:
    if isinstance(batches, Tensor | Mapping | np.ndarray | str) or not isinstance(batches, Iterable):
        raise DataError(
            f"data: wanted batches for the loss to be called with (a DataLoader, a list), got "
            f"{type(batches).__name__}; give [batch] for a single one"
        )
    yield from batches
