"""Gradient metrics of every sample in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, cast

import torch
from torch import Tensor

from ..gradients import Engine, PerSample
from .metrics import BUILT_IN, GradientMetric, PooledMetric
from .moments import Moments
from .pool import Pool
from .table import evaluate, needs


class GradientMetricCollector:
    """Computes gradient metrics per sample.

    Args:
        metrics: one metric or a sequence of them.

    Raises:
        ValueError: no metric, something else than a metric, or metrics without any parameter.

    Examples:
        >>> from torch import nn
        >>> from gradscore import GradientMetricCollector
        >>> from gradscore.metrics import Max, PNorm
        >>> model = nn.Linear(3, 2)
        >>> collect = GradientMetricCollector([Max(model), PNorm(model.weight, p=2)])
        >>> loss = nn.functional.cross_entropy(model(torch.ones(5, 3)), torch.zeros(5).long(), reduction="none")
        >>> collect(loss).shape
        torch.Size([5, 2])
    """

    def __init__(self, metrics: Sequence[GradientMetric] | GradientMetric) -> None:
        if isinstance(metrics, GradientMetric):
            metrics = [metrics]
        if not isinstance(metrics, Sequence):
            raise ValueError(f"metrics must be a metric or a sequence of metrics, got {type(metrics).__name__}")
        if not metrics:
            raise ValueError("metrics is empty; give at least one GradientMetric")
        for metric in metrics:
            if not isinstance(metric, GradientMetric):
                raise ValueError(f"metrics must be GradientMetric instances, got {type(metric).__name__}")
        self.metrics: list[GradientMetric] = list(metrics)
        tensors = {id(tensor): tensor for metric in metrics for tensor in metric.target_parameters}
        if not tensors:
            raise ValueError("none of the metrics' target layers has a parameter")
        self._names = {key: f"parameter {index}" for index, key in enumerate(tensors)}
        self._engine = Engine({self._names[key]: tensor for key, tensor in tensors.items()})
        self.reset()

    @property
    def notices(self) -> list[str]:
        """What was computed the slow way or has no gradient, and why."""
        return self._engine.notices

    def __call__(self, loss: Tensor, retain_graph: bool = False) -> Tensor:
        """Computes the metrics of every sample's gradient.

        The `.grad` attributes of the parameters are not touched. A parameter that is frozen, or that the loss does not
        depend on, has gradient zero.

        Args:
            loss: (N,) the losses of the samples, or (N, T) those of their tokens, which are summed.
            retain_graph: keep the graph of the loss for further backward passes.

        Returns:
            (N, dim) on the loss's device, in its precision (float32 at least).

        Raises:
            ValueError: the loss requires no gradient or is not of shape (N,) or (N, T).
            CoupledSamplesError: the losses depend on one another, as with batch norm in training mode.
        """
        loss = _of_samples(loss)
        self.reset()
        if loss.device.type == "meta":  # a dry run for the shapes: there is nothing to compare or to compute
            return loss.new_empty(len(loss), self.dim)
        batch = _Batch(self.metrics, self._names, self._engine, loss)
        self._engine.stream(loss, torch.ones_like(loss), batch.take, retain_graph=retain_graph)
        return batch.values()

    def learn(self, loss: Tensor) -> None:
        """Learns from a few samples what it would otherwise learn from the first batch, in several passes through it.

        Two samples of the shape of the later ones are enough.

        Args:
            loss: as for a call; its graph is kept.

        Raises:
            ValueError: as a call.
            CoupledSamplesError: as a call.
        """
        loss = _of_samples(loss)
        self._engine.learn(loss, torch.ones_like(loss))

    @property
    def data(self) -> Tensor:
        """What the metrics hold at the moment, concatenated, (dim,)."""
        parts = [metric.data for metric in self.metrics]
        return torch.cat([part.to(parts[0].device) for part in parts])

    @property
    def dim(self) -> int:
        """The number of metric values per sample."""
        return sum(metric.data.numel() for metric in self.metrics)

    def reset(self) -> None:
        """Resets all metrics."""
        for metric in self.metrics:
            metric.reset()


class _Batch:
    """Gathers the per-sample gradients of one batch for all metrics."""

    def __init__(self, metrics: list[GradientMetric], names: dict[int, str], engine: Engine, loss: Tensor) -> None:
        self._metrics, self._engine, self._loss = metrics, engine, loss
        self._targets = [tuple(names[id(tensor)] for tensor in metric.target_parameters) for metric in metrics]
        pairs = list(zip(metrics, self._targets, strict=True))
        pooled = {target: target for metric, target in pairs if _is_pooled(metric)}
        statistics = list(dict.fromkeys(name for metric in metrics if _is_pooled(metric) for name in metric.statistics))
        self._pool = Pool(engine.parameters, pooled, needs(statistics), samples=len(loss), device=loss.device)
        self._kept: dict[str, list[tuple[slice, PerSample]]] = {
            name: [] for metric, target in pairs if not _is_pooled(metric) for name in target
        }

    def take(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes in the gradients of some samples of one parameter."""
        if name in self._kept:
            self._kept[name].append((rows, gradient))
        self._pool.take(name, rows, gradient)

    def values(self) -> Tensor:
        """The metrics of all samples, (N, dim)."""
        dtype = torch.promote_types(self._loss.dtype, torch.float32)
        columns = self._at_once()
        for place, metric in enumerate(self._metrics):
            if place not in columns:
                columns[place] = self._one_by_one(metric, self._targets[place])
        return torch.cat([columns[place].to(self._loss.device, dtype) for place in sorted(columns)], 1)

    def _at_once(self) -> dict[int, Tensor]:
        """The built-in metrics (N, dim) float64 by their places, those that differ in their targets alone together."""
        pooled = self._pool.finished()
        if not pooled:
            return {}
        groups = {target: place for place, target in enumerate(pooled)}
        whole = Moments.stacked(list(pooled.values()))
        alike: dict[tuple[object, ...], list[int]] = {}
        for place, metric in enumerate(self._metrics):
            if _is_pooled(metric):
                alike.setdefault(metric.settings, []).append(place)
        found: dict[int, Tensor] = {}
        for places in alike.values():
            metric = cast("PooledMetric", self._metrics[places[0]])
            rows = [groups[self._targets[place]] for place in places]
            tables = [torch.as_tensor(evaluate(name, whole))[rows] for name in metric.statistics]
            found.update(zip(places, metric.from_statistics(torch.stack(tables, -1)), strict=True))
        return found

    def _one_by_one(self, metric: GradientMetric, target: Sequence[str]) -> Tensor:
        """Feeds a user's metric with the gradients of one sample after the other."""
        rows = []
        for index in range(len(self._loss)):
            metric.reset()
            for name in target:
                metric(self._gradient(name, index))
            rows.append(metric.data.detach().clone())
        metric.reset()
        return torch.stack(rows) if rows else torch.empty(0, metric.data.numel())

    def _gradient(self, name: str, index: int) -> Tensor:
        for rows, gradient in self._kept[name]:
            if rows.start <= index < rows.stop:
                return gradient.dense(slice(index - rows.start, index - rows.start + 1))[0].clone()
        return torch.zeros_like(self._engine.parameters[name])


def _of_samples(loss: Tensor) -> Tensor:
    """The losses of samples (N,), from those or from those of their tokens (N, T)."""
    if not loss.requires_grad:
        raise ValueError("the loss must require a gradient; compute it from the model with gradients enabled")
    if loss.dim() not in (1, 2):
        raise ValueError(f"the loss must have shape (N,) or (N, T), got {tuple(loss.shape)}; use reduction='none'")
    return loss if loss.dim() == 1 else loss.sum(1)


def _is_pooled(metric: GradientMetric) -> TypeGuard[PooledMetric]:
    return type(metric) in BUILT_IN and metric.grad_transform is None
