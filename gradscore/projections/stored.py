"""Exact products with the gradients of a few samples, which are kept whole."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from ..data import Batch
from ..errors import ConfigError, EvaluationError
from ..extractor import LossOfBatch
from ..gradients import PerSample
from ..models import weights_sha256
from ..pipeline import ListSink, Progress
from ..system import FloatArray
from .gradient_stream import GradientStream, LossFunction, gradients_of
from .kinds import DenseProjection
from .projecting import Projected, projected

MEMORY_LIMIT = 1 << 31
"""Bytes that stored gradients may take: a quarter of the memory of a small machine."""

ONE_PIECE = 1 << 62
"""Samples in a shard: nothing is written."""


@dataclass(frozen=True, kw_only=True)
class StoredGradients:
    """The whole gradients of M samples: `values * scale`.

    Attributes:
        values: (M, P) by the name of the parameter, float64 where the model is, else float32.
        scale: (M,) float64, powers of two.
        shapes: those of the parameters, by name.
        weights_sha256: hash of all parameters and buffers of the model.
    """

    values: Mapping[str, Tensor]
    scale: FloatArray
    shapes: Mapping[str, tuple[int, ...]]
    weights_sha256: str

    def __repr__(self) -> str:
        """How many of what, in one line."""
        elements = sum(each[0].numel() for each in self.values.values()) if len(self) else 0
        return f"StoredGradients(M={len(self)}, parameters={len(self.values)}, elements={elements})"

    def __len__(self) -> int:
        """M."""
        return len(self.scale)

    def dot(self, other: StoredGradients | None = None) -> FloatArray:
        """Products of gradients.

        Args:
            other: N gradients; these themselves by default.

        Returns:
            (M, N) float64.

        Raises:
            EvaluationError: the two are of other parameters, or of other weights.
        """
        that = self if other is None else other
        if dict(self.shapes) != dict(that.shapes):
            raise EvaluationError("the gradients are of other parameters, so they have no products")
        if self.weights_sha256 != that.weights_sha256:
            raise EvaluationError("the gradients are of other weights, so their products mean nothing")
        device = next((values.device for values in self.values.values()), None)
        found = torch.zeros(len(self), len(that), dtype=torch.float64, device=device)
        for name, values in self.values.items():
            found += (values.double() @ that.values[name].double().t()).to(found.device)
        return np.asarray(found.cpu().numpy() * self.scale[:, None] * that.scale)


def store_gradients(
    model: nn.Module,
    data: Any,
    *,
    loss: str | LossFunction | None = None,
    losses: LossOfBatch | None = None,
    parameters: str | Sequence[str] = "*",
    preprocessing: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    output: str | int | None = None,
    one_logit: bool = False,
) -> StoredGradients:
    """The whole gradients of a few samples, to take products with.

    Args:
        model: as for `project`.
        data: as for `project`; how many samples is limited by memory (`MEMORY_LIMIT`).
        loss: as for `project`.
        losses: as for `project`.
        parameters: as for `project`.
        preprocessing: as for `project`.
        batch_size: as for `project`.
        output: as for `project`.
        one_logit: as for `project`.

    Raises:
        ConfigError: an unknown loss or setting, or more gradients than memory.
        DataError: as `project`.
        ModelError: as `project`.
        EngineError: as `project`.
    """
    options: Any = {"preprocessing": preprocessing, "batch_size": batch_size, "output": output, "one_logit": one_logit}
    with gradients_of(model, data, parameters, loss=loss, losses=losses, **options) as stream:
        kept, of_parameters = ListSink[tuple[dict[str, Tensor], FloatArray]](), stream.engine.parameters

        def whole(batch: Batch) -> tuple[dict[str, Tensor], FloatArray]:
            count = len(batch.ids)
            _check_memory(sum(len(scale) for _, scale in kept.found) + count, stream)
            rows = {
                name: torch.zeros(count, each.numel(), dtype=stream.dtype, device=stream.device)
                for name, each in of_parameters.items()
            }

            def keep(name: str, part: slice, gradient: PerSample) -> None:
                values = gradient.dense(slice(None)).reshape(len(gradient), prod(gradient.shape))
                rows[name][part] = values.to(stream.dtype)

            scale, _ = stream.backward(batch, keep)
            return rows, scale.cpu().numpy()

        stream.run(whole, kept, shard_size=ONE_PIECE)
        return StoredGradients(
            values={name: torch.cat([rows[name] for rows, _ in kept.found]) for name in of_parameters},
            scale=np.concatenate([scale for _, scale in kept.found]),
            shapes={name: tuple(each.shape) for name, each in of_parameters.items()},
            weights_sha256=weights_sha256(stream.model),
        )


def dot_products(
    model: nn.Module,
    data: Any,
    stored: StoredGradients,
    *,
    loss: str | LossFunction | None = None,
    losses: LossOfBatch | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    output: str | int | None = None,
    one_logit: bool = False,
    progress: Progress | None = None,
) -> FloatArray:
    """Exact products of the gradients of all samples with stored ones.

    Args:
        model: as for `project`.
        data: as for `project`: N samples.
        stored: M gradients of parameters of this model.
        loss: as for `project`.
        losses: as for `project`.
        preprocessing: as for `project`.
        batch_size: as for `project`.
        output: as for `project`.
        one_logit: as for `project`.
        progress: told how far it is.

    Returns:
        (N, M) float64.

    Raises:
        ConfigError: an unknown loss or setting, or gradients of parameters or weights that the model does not have.
        DataError: as `project`.
        ModelError: as `project`.
        EngineError: as `project`.
    """
    _check_model(model, stored)
    parameters = [glob.escape(name) for name in stored.values]
    options: Any = {"preprocessing": preprocessing, "batch_size": batch_size, "output": output, "one_logit": one_logit}
    with gradients_of(model, data, parameters, loss=loss, losses=losses, **options) as stream:
        products, kept = _AgainstStored(stored), ListSink[Projected]()
        stream.run(lambda batch: projected(stream, products, batch), kept, shard_size=ONE_PIECE, progress=progress)
        return np.concatenate([each.values * each.scale[:, None] for each in kept.found]) * stored.scale


def _check_model(model: nn.Module, stored: StoredGradients) -> None:
    parameters = dict(model.named_parameters())
    for name, shape in stored.shapes.items():
        got = tuple(parameters[name].shape) if name in parameters else None
        if shape != got:
            there = "the model has no such parameter" if got is None else f"that of the model {got}"
            raise ConfigError(f"stored: {name} has shape {shape}, and {there}; store gradients of this model")
    if stored.weights_sha256 != weights_sha256(model):
        raise ConfigError(
            "stored: gradients of other weights than those of the model; store gradients of this model as it is"
        )


def _check_memory(samples: int, stream: GradientStream) -> None:
    elements = sum(each.numel() for each in stream.engine.parameters.values())
    needed = samples * elements * stream.dtype.itemsize
    if needed > MEMORY_LIMIT:
        raise ConfigError(
            f"data: {samples} gradients of {elements} entries take {needed / 1e9:.3g} GB, more than "
            f"{MEMORY_LIMIT / 1e9:.3g} GB; store fewer, choose fewer parameters, or project them"
        )


class _AgainstStored(DenseProjection):
    """Products with stored gradients: their matrix, in place of a random one, and added up in float64."""

    def __init__(self, stored: StoredGradients) -> None:
        self.dim, self._stored = len(stored), stored

    @override
    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return super().blank(samples, dtype=torch.float64, device=device)

    @override
    def columns(self, name: str, elements: slice, *, like: Tensor) -> Tensor:
        return self._stored.values[name][:, elements].t().to(like.dtype).to(like.device)

    @override
    def columns_of(self, name: str, elements: Tensor, *, like: Tensor) -> Tensor:
        return self._stored.values[name].to(like.device)[:, elements].movedim(0, -1).to(like.dtype)
