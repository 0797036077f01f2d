"""Features of any loss: gradients of what a function of the user's says of each sample, or of each token of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ..config import FeaturesConfig
from ..models import group_parameters
from ..statistics import reduce_gradients
from ..system import full_precision
from .batch_losses import BatchLosses, LossOfBatch, each_batch
from .live_model import check_mode
from .progress import Progress
from .run_plan import check_names

Tokens = Literal["sum", "each"]
"""What becomes of losses (N, T): one sum for each sample, or one row of features for each token."""


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
    tables = _Tables(model, loss, features, each_token=tokens == "each")
    frames: list[pd.DataFrame] = []
    done = 0
    with full_precision():
        for batch in each_batch(batches):
            frames.append(tables.of(batch, first=done))
            done += frames[-1]["sample_id"].nunique()
            if progress is not None:
                progress("features", done, 0)
    table = pd.concat(frames, ignore_index=True)
    table["sample_id"] = table["sample_id"].astype(str)  # as in all other tables
    return table


class _Tables:
    """Tables of batches."""

    def __init__(self, model: nn.Module, loss: LossOfBatch, features: FeaturesConfig, *, each_token: bool) -> None:
        parameters = dict(model.named_parameters())
        self._groups = group_parameters(model, features.parameters, granularity=features.granularity)
        wanted = {name for names in self._groups.values() for name in names}
        chosen = {name: parameter for name, parameter in parameters.items() if name in wanted}
        self._losses = BatchLosses(model, loss, chosen, each_token=each_token)
        self._statistics, self._each_token = features.statistics, each_token

    def of(self, batch: Any, *, first: int) -> pd.DataFrame:
        """The rows of a batch whose first sample has number `first`."""
        losses = self._losses.of(batch)
        if self._each_token:
            return self._of_tokens(losses, first=first)
        samples = len(losses)
        columns = self._columns(losses, torch.ones_like(losses), keep=False)
        whole = losses.detach().double().reshape(samples, -1).sum(1).cpu().numpy()
        return pd.DataFrame({"sample_id": np.arange(first, first + samples), "loss": whole, **columns})

    def _of_tokens(self, losses: Tensor, *, first: int) -> pd.DataFrame:
        samples, length = losses.shape
        self._losses.engine.learn(losses, torch.ones_like(losses))  # of one token alone most is zero, which says little
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
            self._losses.engine, losses, chosen, statistics=self._statistics, groups=self._groups, retain_graph=keep
        )
        found = torch.stack(list(columns.values())).cpu().numpy()  # one copy from an accelerator
        return {f"loss/{name}": values for name, values in zip(columns, found, strict=True)}
