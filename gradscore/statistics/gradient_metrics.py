"""Gradient metrics of every sample of a batch, with the interface of the package gradient_metrics.

A metric is what is kept of the gradient of one sample, pooled over the parameters of some layers: it collects
gradients, is read through `data` and reset between samples. A metric of your own derives from `GradientMetric` and
implements `_collect`, `_get_metric` and `reset`; the built-in ones are computed for a whole batch at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from ..gradients import Engine, PerSample
from .measure import Moments, measure_exactly
from .statistic import Pool, evaluate, needs

Targets = Sequence[nn.Module | Tensor] | nn.Module | Tensor


class GradientMetric:
    """Base class of all gradient metrics.

    Args:
        target_layers: modules (all their parameters), tensors, or a sequence of both. The metric is one pooled value
            over all of them; a parameter that is named twice, or belongs to two of the modules, counts once.
        grad_transform: applied to the gradient of each parameter before it is collected. It gets a tensor of its own,
            which it may change.

    Attributes:
        target_layers: the targets as a tuple.
        target_parameters: their parameters in order, each once.
        grad_transform: the transform or None.
    """

    def __init__(self, target_layers: Targets, grad_transform: Callable[[Tensor], Tensor] | None = None) -> None:
        layers = (target_layers,) if isinstance(target_layers, nn.Module | Tensor) else tuple(target_layers)
        for layer in layers:
            if not isinstance(layer, nn.Module | Tensor):
                raise ValueError(f"target_layers must be modules or tensors, got {type(layer).__name__}")
        self.target_layers: tuple[nn.Module | Tensor, ...] = layers
        tensors = [
            tensor
            for layer in layers
            for tensor in ([layer] if isinstance(layer, Tensor) else list(layer.parameters()))
        ]
        self.target_parameters: list[Tensor] = list({id(tensor): tensor for tensor in tensors}.values())
        self.grad_transform = grad_transform

    def __call__(self, grad: Sequence[Tensor] | Tensor) -> None:
        """Collects a gradient.

        Args:
            grad: the gradient of one parameter, or of several.
        """
        for gradient in [grad] if isinstance(grad, Tensor) else grad:
            detached = gradient.detach()
            self._collect(self.grad_transform(detached.clone()) if self.grad_transform else detached)

    @property
    def data(self) -> Tensor:
        """The value of the metric, (dim,)."""
        return self._get_metric().reshape(-1)

    def _collect(self, grad: Tensor) -> None:
        """Takes in the gradient of one parameter. To be implemented; must not change `grad`."""
        raise NotImplementedError

    def _get_metric(self) -> Tensor:
        """The value for everything collected since the last reset. To be implemented."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forgets everything collected. To be implemented."""
        raise NotImplementedError


class PooledMetric(GradientMetric):
    """A built-in metric: some statistics of all elements together.

    Attributes:
        statistics: names of the statistics that make up the metric; see `gradscore.statistics.find_statistic`.
    """

    statistics: tuple[str, ...] = ()

    def __init__(self, target_layers: Targets, grad_transform: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(target_layers, grad_transform)
        self.reset()

    def reset(self) -> None:
        """Forgets everything collected: -inf for a maximum, inf for a minimum, 0 for a mean or a norm."""
        self._moments: Moments | None = None
        self._dtype = torch.get_default_dtype()

    @property
    def settings(self) -> tuple[object, ...]:
        """Equal for metrics that make the same of the statistics of their elements."""
        return type(self), self.statistics

    def from_statistics(self, columns: Tensor) -> Tensor:
        """The metric (..., dim) from its statistics (..., len(statistics)) float64."""
        return columns

    def _collect(self, grad: Tensor) -> None:
        if grad.numel():
            self._dtype = torch.promote_types(self._dtype, grad.dtype)
            wanted = needs(self.statistics)
            measured = measure_exactly(grad.detach().reshape(1, -1), wanted)
            if self._moments is None:  # the first gradient says where the metric is
                self._moments = Moments.of_zeros(1, 0, wanted, grad.device)
            self._moments.merge(slice(0, 1), measured.to(self._moments.device))

    def _get_metric(self) -> Tensor:
        moments = self._moments or Moments.of_zeros(1, 0, needs(self.statistics), torch.device("cpu"))
        columns = [torch.as_tensor(evaluate(name, moments), device=moments.device) for name in self.statistics]
        return self.from_statistics(torch.stack(columns, 1))[0].to(self._dtype)


class Max(PooledMetric):
    """The largest (signed) element; -inf before anything was collected. See `GradientMetric` for the arguments."""

    statistics = ("max",)


class Min(PooledMetric):
    """The smallest (signed) element; inf before anything was collected. See `GradientMetric` for the arguments."""

    statistics = ("min",)


class Mean(PooledMetric):
    """The mean of all elements; 0 before anything was collected. See `GradientMetric` for the arguments."""

    statistics = ("mean",)


class MeanStd(PooledMetric):
    """Mean and standard deviation of all elements.

    The standard deviation is sqrt(s^2 + eps^2), with s^2 the sum of squared deviations over the number of elements
    less one, so `eps` is its lower bound and its value for a single element.

    Args:
        target_layers: see `GradientMetric`.
        grad_transform: see `GradientMetric`.
        return_mean: whether the mean comes first, or only the standard deviation is returned.
        eps: lower bound of the standard deviation.

    Raises:
        ValueError: eps is not a positive number.

    Source: Chan, Golub, LeVeque 1979 for the merging of parts.
    """

    statistics = ("mean", "std")

    def __init__(
        self,
        target_layers: Targets,
        grad_transform: Callable[[Tensor], Tensor] | None = None,
        return_mean: bool = True,
        eps: float = 1e-16,
    ) -> None:
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        self.return_mean = return_mean
        self.eps = eps
        super().__init__(target_layers, grad_transform)

    @property
    @override
    def settings(self) -> tuple[object, ...]:
        return *super().settings, self.return_mean, self.eps

    @override
    def from_statistics(self, columns: Tensor) -> Tensor:
        mean, std = columns.unbind(-1)
        std = std.hypot(torch.full_like(std, self.eps))
        return torch.stack([mean, std], -1) if self.return_mean else std.unsqueeze(-1)


class PNorm(PooledMetric):
    """The p-norm (sum of |g|^p)^(1/p) of all elements; 0 before anything was collected.

    Args:
        target_layers: see `GradientMetric`.
        grad_transform: see `GradientMetric`.
        p: the order, in (0, inf]; `"inf"` is understood too.

    Raises:
        ValueError: p is not a number in (0, inf].
    """

    def __init__(
        self,
        target_layers: Targets,
        grad_transform: Callable[[Tensor], Tensor] | None = None,
        p: float | str = 1.0,
    ) -> None:
        try:
            self.p = float(p)
        except (TypeError, ValueError) as error:
            raise ValueError(f"p must be a number in (0, inf], got {p!r}") from error
        if math.isnan(self.p) or self.p <= 0:
            raise ValueError(f"p must be in (0, inf], got {p!r}")
        super().__init__(target_layers, grad_transform)

    def reset(self) -> None:
        """Forgets everything collected."""
        self.statistics = (f"l{np.format_float_positional(self.p, trim='-')}",)
        super().reset()

    @override
    def from_statistics(self, columns: Tensor) -> Tensor:
        """The norm of nothing is 0."""
        return columns.clamp(min=0)


BUILT_IN: tuple[type[PooledMetric], ...] = (Max, Min, Mean, MeanStd, PNorm)
"""Metrics of exactly these classes, without a transform, are computed for a whole batch at once."""


class GradientMetricCollector:
    """Computes gradient metrics per sample; of a complex parameter, of its real and imaginary parts as so many numbers.

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
        """Notices on what was computed the slow way or has no gradient, and why."""
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
            CoupledSamplesError: the losses depend on one another, as with batch norm in training mode, or where their
                mean is added to each of them. The mean of a second forward pass that is added to each loss is a part of
                it, whose gradient counts; `gradscore.features` refuses that, too, since it can compute a sample's loss
                alone.
        """
        loss = _of_samples(loss)
        self.reset()
        if loss.device.type == "meta":  # a dry run for the shapes: there is nothing to compare or to compute
            return loss.new_empty(len(loss), self.dim)
        targets = [tuple(self._names[id(tensor)] for tensor in metric.target_parameters) for metric in self.metrics]
        pooled = [place for place, metric in enumerate(self.metrics) if _is_pooled(metric)]
        others = [place for place in range(len(self.metrics)) if place not in pooled]
        kept: dict[str, list[tuple[slice, PerSample]]] = {name: [] for place in others for name in targets[place]}
        groups = {targets[place]: targets[place] for place in pooled}
        wanted = needs([name for place in pooled for name in cast("PooledMetric", self.metrics[place]).statistics])
        pool = Pool(self._engine.parameters, groups, wanted, samples=len(loss), device=loss.device)

        def sink(name: str, rows: slice, gradient: PerSample) -> None:
            if name in kept:
                kept[name].append((rows, gradient))
            pool.take(name, rows, gradient)

        self._engine.stream(loss, torch.ones_like(loss), sink, retain_graph=retain_graph)
        columns = {place: self._one_by_one(self.metrics[place], targets[place], kept, len(loss)) for place in others}
        if pooled:
            columns |= self._at_once(pooled, [list(groups).index(targets[place]) for place in pooled], pool.finished())
        dtype = torch.promote_types(loss.dtype, torch.float32)
        return torch.cat([columns[place].to(loss.device, dtype) for place in range(len(self.metrics))], 1)

    def _at_once(self, places: Sequence[int], groups: Sequence[int], moments: Moments) -> dict[int, Tensor]:
        """The built-in metrics (N, dim) float64 at some places, those that differ in their targets alone together.

        Args:
            places: of the metrics.
            groups: where in the moments are those of its targets, for each of them.
            moments: (G, N) of the groups.
        """
        alike: dict[tuple[object, ...], list[int]] = {}
        metrics = [cast("PooledMetric", self.metrics[place]) for place in places]
        for number, metric in enumerate(metrics):
            alike.setdefault(metric.settings, []).append(number)
        found: dict[int, Tensor] = {}
        for numbers in alike.values():
            metric, rows = metrics[numbers[0]], [groups[number] for number in numbers]
            tables = [
                torch.as_tensor(evaluate(name, moments), device=moments.device)[rows] for name in metric.statistics
            ]
            found.update(
                zip(
                    [places[number] for number in numbers], metric.from_statistics(torch.stack(tables, -1)), strict=True
                )
            )
        return found

    def _one_by_one(
        self,
        metric: GradientMetric,
        target: Sequence[str],
        kept: dict[str, list[tuple[slice, PerSample]]],
        samples: int,
    ) -> Tensor:
        """Feeds a user's metric with the gradients that were kept, of one sample after the other."""
        found = []
        for index in range(samples):
            metric.reset()
            for name in target:
                gradient = torch.zeros_like(self._engine.parameters[name])
                for rows, some in kept[name]:
                    if rows.start <= index < rows.stop:
                        gradient = some.dense(slice(index - rows.start, index - rows.start + 1))[0].clone()
                metric(gradient)
            found.append(metric.data.detach().clone())
        metric.reset()
        return torch.stack(found) if found else torch.empty(0, metric.data.numel())

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
        """Values that the metrics hold at the moment, concatenated, (dim,)."""
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


def _of_samples(loss: Tensor) -> Tensor:
    """The losses of samples (N,), from those or from those of their tokens (N, T)."""
    if not loss.requires_grad:
        raise ValueError("the loss must require a gradient; compute it from the model with gradients enabled")
    if loss.dim() not in (1, 2):
        raise ValueError(f"the loss must have shape (N,) or (N, T), got {tuple(loss.shape)}; use reduction='none'")
    return loss if loss.dim() == 1 else loss.sum(1)


def _is_pooled(metric: GradientMetric) -> TypeGuard[PooledMetric]:
    return type(metric) in BUILT_IN and metric.grad_transform is None
