"""Gradient metrics: what is kept of the gradient of one sample, pooled over the parameters of some layers.

The interface is that of the gradient_metrics package: a metric collects gradients, is read through `data` and reset
between samples. A metric of your own derives from `GradientMetric` and implements `_collect`, `_get_metric` and
`reset`; the built-in ones are computed for a whole batch at once by `GradientMetricCollector`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from .moments import Moments, measure_exactly
from .table import evaluate, needs

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
        """Takes in the gradient of one parameter. To be implemented; must not change `grad`.

        Args:
            grad: the gradient.

        Raises:
            NotImplementedError: not implemented by the subclass.
        """
        raise NotImplementedError

    def _get_metric(self) -> Tensor:
        """The value for everything collected since the last reset. To be implemented.

        Raises:
            NotImplementedError: not implemented by the subclass.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forgets everything collected. To be implemented.

        Raises:
            NotImplementedError: not implemented by the subclass.
        """
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

    def values(self, moments: Moments) -> Tensor:
        """The metric from the statistics of pooled elements.

        Args:
            moments: of N samples.

        Returns:
            (N, dim) float64, where the moments are.
        """
        return self.from_statistics(
            torch.stack([torch.as_tensor(evaluate(name, moments)) for name in self.statistics], 1)
        )

    def from_statistics(self, columns: Tensor) -> Tensor:
        """The metric (..., dim) from its statistics (..., len(statistics)) float64."""
        return columns

    def _collect(self, grad: Tensor) -> None:
        if grad.numel():
            self._dtype = torch.promote_types(self._dtype, grad.dtype)
            wanted = needs(self.statistics)
            measured = measure_exactly(grad.detach().reshape(1, -1), wanted)
            if self._moments is None:  # the first gradient says where the metric is
                self._moments = Moments.empty(1, wanted, grad.device)
            self._moments.merge(slice(0, 1), measured.to(self._moments.device))

    def _get_metric(self) -> Tensor:
        nothing = Moments.empty(1, needs(self.statistics), torch.device("cpu"))
        return self.values(nothing if self._moments is None else self._moments)[0].to(self._dtype)


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
