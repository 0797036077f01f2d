"""Quantities of whole batches: norms and turns, what is zero, and losses.

In come outputs of layers, gradients and parameters, from hooks; the gradients of single samples have files of their own
(`histograms`, `sample_gradients`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan, prod, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from typing_extensions import override

from ..errors import ConfigError
from ..system import SQUARABLE, squared_norms
from .quantity import (
    MODEL,
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    Row,
    TensorQuantity,
    merge_found,
)

ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn.modules.activation, name)
    for name in nn.modules.activation.__all__
    if name != "MultiheadAttention" and isinstance(getattr(nn.modules.activation, name), type)
)
"""All activation functions of PyTorch. Attention is not one, though it lives beside them."""

NORM, CORRELATION = "norm", "correlation"


def precise_norm(tensor: Tensor, *, dim: int | None = None) -> Tensor:
    """The Euclidean norm in float64, or of every row; squares neither under- nor overflow.

    Args:
        tensor: of any shape, complex numbers among them; (n, p) with `dim` 1.
        dim: the axis that is summed over; all by default.
    """
    tensor = tensor.abs() if tensor.is_complex() else tensor
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        fast = squared_norms(tensor.reshape(1, -1) if dim is None else tensor).sqrt()
        fast = fast.squeeze(0) if dim is None else fast
        if fast.numel() and _is_squarable(float(fast.min()), float(fast.max())):
            return fast
    exact: Tensor = torch.linalg.vector_norm(tensor, dim=dim, dtype=torch.float64)
    return exact


def _is_squarable(smallest: float, largest: float) -> bool:
    low, high = SQUARABLE[torch.float32]
    return low < smallest and largest < high


def cosine(one: Tensor, other: Tensor, one_norm: float, other_norm: float) -> Tensor:
    """The cosine of the angle between two tensors of known norms, between -1 and 1, in float64.

    A complex number counts as a vector of two.
    """
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dtype == torch.float32 and _is_squarable(min(one_norm, other_norm), max(one_norm, other_norm)):
        product = torch.dot(one.flatten(), other.flatten()).double()
        return (product / (one_norm * other_norm)).clamp(-1, 1)
    product = torch.dot(one.flatten().double() / one_norm, other.flatten().double() / other_norm)
    return product.clamp(-1, 1)


class _Norms(Quantity):
    """Records norms, or root mean squares.

    Args:
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    def __init__(self, *, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.normalize = normalize

    @override
    def caption(self, measure: str) -> str:
        caption = super().caption(measure)
        return caption if self.normalize else caption.replace("Root mean square", "Euclidean norm")

    def sized(self, norm: Tensor, elements: int) -> Tensor:
        """The norm, or root mean square, of so many elements."""
        return norm / sqrt(max(1, elements)) if self.normalize else norm

    def norm_of_all(self, norms: Sequence[tuple[Tensor, int]]) -> Tensor:
        """The norm of several tensors in one vector, from the norm and the number of elements of each."""
        squares = torch.zeros((), dtype=torch.float64, device=norms[0][0].device)
        for norm, _ in norms:
            squares = squares + norm.square().to(squares.device)
        return (squares / max(1, sum(size for _, size in norms))).sqrt() if self.normalize else squares.sqrt()


class _Geometry(_Norms):
    """Records norms of successive tensors of every name, and the cosines of the angles between them.

    Args:
        correlation: also record correlations; keeps the last tensor of every name.
        options: see `_Norms`.

    """

    def __init__(self, *, correlation: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.correlation = correlation
        self._before: dict[str, tuple[Tensor, float]] = {}

    def record_tensor(self, name: str, tensor: Tensor) -> Tensor:
        """Records the next tensor of a name: its norm, and its correlation with the one before.

        There is a correlation if there was a tensor of the same shape, and neither is zero or not finite: the angle is
        undefined otherwise, and nothing takes its place.

        Returns:
            The norm, float64, not normalised.
        """
        tensor = tensor.detach()
        norm = precise_norm(tensor)
        self.record(NORM, name, self.sized(norm, tensor.numel()))
        if self.correlation:
            size = float(norm)
            last, last_size = self._before.get(name, (tensor, 0.0))
            if last.shape == tensor.shape and 0 < size < torch.inf and 0 < last_size < torch.inf:
                self.record(CORRELATION, name, cosine(last, tensor, last_size, size))
            self._before[name] = tensor.clone(), size
        return norm

    def reset(self) -> None:
        """The next tensor has none before it."""
        super().reset()
        self._before = {}


class GradientGeometry(_Geometry, TensorQuantity):
    """Norm of the gradient of each parameter, and its correlation with that of the batch before.

    The norm of the gradient of the whole model, all parameters in one vector, stands beside them as `(model)`.

    See `OutputGradientGeometry` for both measures and for where no value is recorded.

    Args:
        correlation: also record correlations; keeps a copy of the last gradient of every parameter.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter gradient"
    title = "Gradients of parameters"
    captions: ClassVar[Mapping[str, str]] = {
        NORM: "Root mean square of the gradient of each parameter, one value a batch. "
        "A layer far below its neighbours hardly learns; where all grow, lower the learning rate or clip gradients.",
        CORRELATION: "Whether batches pull a parameter in the same direction (1) or not (0). "
        "Near 0 everywhere, take larger batches or a lower learning rate.",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._norms: list[tuple[Tensor, int]] = []

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        self._norms.append((self.record_tensor(name, tensor), tensor.numel()))

    @override
    def finish(self) -> None:
        if self._norms:
            self.record(NORM, MODEL, self.norm_of_all(self._norms))
        self._norms = []

    @override
    def reset(self) -> None:
        super().reset()
        self._norms = []


PER_SAMPLE = "norm per sample"


class OutputGradientGeometry(_Geometry, OutputGradientQuantity):
    """Norm of the gradient with respect to a layer's output, and its correlation with that of the batch before.

    As in monitorch the whole batch is one vector: "norm", and "correlation", the cosine of the angle between two
    batches in a row. Where the angle is undefined (the first batch after a reset, a batch of another size, a gradient
    of zero), no value is recorded. With `per_sample` there is also "norm per sample", one value for every sample.

    Args:
        normalize: divide norms by the root of the number of elements: root mean square.
        correlation: also record correlations; keeps the last gradient of every layer.
        skip_activation: leave activation functions out, those derived from PyTorch's too.
        per_sample: also record the norm of every sample's gradient, for outputs whose first axis is the samples.
        reduction: how the loss joins the samples. With "mean", the gradients of single samples are multiplied by the
            batch size, so that they are those of the sample's own loss.
        options: see `Quantity`.

    Raises:
        ConfigError: another reduction.
    """

    name = "output gradient"
    title = "Gradients at layer outputs"
    captions: ClassVar[Mapping[str, str]] = {
        NORM: "Size of the loss's gradient with respect to what a layer returns, one value a batch. "
        "Where it shrinks from layer to layer towards the input, look at activations and normalisation there.",
        PER_SAMPLE: "The same for every sample alone: where samples differ in size, their scores differ. "
        "Look at the samples far above the others: wrong labels or broken inputs are often among them.",
        CORRELATION: "Cosine of the angle between the gradients of two batches in a row: 1 is the same direction, "
        "0 no relation. "
        "Below 0 again and again, steps overshoot: lower the learning rate.",
    }

    def __init__(
        self,
        *,
        skip_activation: bool = True,
        per_sample: bool = False,
        reduction: Literal["mean", "sum"] = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if reduction not in ("mean", "sum"):
            raise ConfigError(
                f"{self.name}: the loss joins samples by reduction 'mean' or 'sum', got {reduction!r}; with "
                "reduction='none', name the one with which your loop joins them"
            )
        self.skip_activation, self.per_sample, self.reduction = skip_activation, per_sample, reduction

    @override
    def wants(self, module: nn.Module) -> bool:
        return not (self.skip_activation and isinstance(module, ACTIVATIONS))

    @override
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        del module
        self.record_tensor(layer, gradient)
        if self.per_sample and gradient.dim():
            norms = precise_norm(gradient.detach().reshape(len(gradient), -1), dim=1)
            size = sqrt(max(1, prod(gradient.shape[1:]))) if self.normalize else 1.0
            self.record(PER_SAMPLE, layer, norms * ((len(gradient) if self.reduction == "mean" else 1) / size))


RELATIVE = "size relative to the weights"


class ParameterDifferenceGeometry(_Geometry, TensorQuantity):
    """Norm of the difference between successive values of each parameter, and correlation of successive differences.

    The first value only begins the history. Parameters that nothing wrote to since the last look made no step: with
    gradient accumulation, batches after which the optimizer waits do not count. A difference never spans a reset: an
    inspector looks at the parameters before every training step and once more at the end of an epoch, so that no step
    is lost.

    The step of the whole model, all parameters in one vector, stands beside them as `(model)`, with its size relative
    to the weights it began at.

    Args:
        correlation: also record correlations.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter step"
    source = "parameter"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}
        self._norms: list[tuple[Tensor, int]] = []
        self._weights: list[tuple[Tensor, int]] = []

    @override
    def is_news(self, tensors: Mapping[str, Tensor]) -> bool:
        # Some optimizers write past the counter of changes in place, so that values have the last word.
        return not all(
            name in self._last
            and tensor._version == self._versions[name]
            and torch.equal(self._last[name], tensor.detach())
            for name, tensor in tensors.items()
        )

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        self._versions[name] = tensor._version
        tensor = tensor.detach()
        if name in self._last:
            last = self._last[name]
            self._norms.append((self.record_tensor(name, tensor - last), tensor.numel()))
            self._weights.append((precise_norm(last), tensor.numel()))
        self._last[name] = tensor.clone()

    @override
    def finish(self) -> None:
        if self._norms:
            step, weights = self.norm_of_all(self._norms), self.norm_of_all(self._weights)
            self.record(NORM, MODEL, step)
            self.record(RELATIVE, MODEL, step / weights)
        self._norms, self._weights = [], []

    @override
    def reset(self) -> None:
        super().reset()
        self._last, self._norms, self._weights = {}, [], []


class ParameterNorm(_Norms, ModuleQuantity):
    """Euclidean norm of the parameters of each module that are its own, by name.

    Args:
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter"
    title = "Parameters"
    captions: ClassVar[Mapping[str, str]] = {
        "weight norm": "Root mean square of the weights. "
        "Where it grows without end, add weight decay or lower the learning rate.",
        "bias norm": "Root mean square of the biases. Where it grows without end, lower the learning rate.",
    }

    @override
    def observe(self, layer: str, module: nn.Module) -> None:
        for name, tensor in module.named_parameters(recurse=False):
            if tensor.numel():
                self.record(f"{name} norm", layer, self.sized(precise_norm(tensor.detach()), tensor.numel()))


class OutputNorm(_Norms, OutputQuantity):
    """Mean over a batch of the Euclidean norm of each sample's output, all axes but the first flattened.

    The order of the axes does not matter, so there is no setting for it. Outputs of one axis are samples of one number.

    Args:
        normalize: divide norms by the root of the number of elements of a sample: root mean square.
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "output"
    title = "Outputs"
    captions: ClassVar[Mapping[str, str]] = {
        NORM: "Root mean square of what a layer returns, mean over the batch. "
        "Where it grows or shrinks from layer to layer, look at normalisation and initial weights.",
    }

    @override
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        if not output.dim() or not output.numel() or not (self.record_eval or torch.is_grad_enabled()):
            return
        flat = output.detach().reshape(len(output), -1)
        self.record(NORM, layer, self.sized(precise_norm(flat, dim=1).mean(), flat.shape[1]))


ACTIVATION, DEATH = "activation rate", "death rate"


def unit_rates(values: Tensor, *, unit_axis: int, eps: float) -> Tensor:
    """For every unit the share of its values whose magnitude exceeds `eps`.

    Args:
        values: of any shape.
        unit_axis: the axis of the units: 0, 1 or -1.
        eps: magnitudes up to this count as zero.

    Returns:
        (units,) float64; NaN for all if a value is not finite.
    """
    sizes = values.detach().abs()
    sizes = sizes if sizes.dtype in (torch.float32, torch.float64) else sizes.float()
    largest = sizes.amax()
    active = sizes.gt_(eps)
    # Ones and zeros in floating point: PyTorch sums those several times as fast as booleans.
    if unit_axis == -1:
        counts = active.flatten(0, -2).sum(0, dtype=torch.float64)
    elif unit_axis == 1:
        counts = active.reshape(*active.shape[:2], -1).sum(2).double().sum(0)
    else:
        counts = active.reshape(len(active), -1).sum(1).double()
    rates = counts / (active.numel() / len(counts))
    if largest.device.type == "cpu":
        return rates if isfinite(float(largest)) else torch.full_like(rates, nan)
    return rates + 0 * largest.double()  # which does not wait for the device


class UnitActivation(Quantity):
    """Records how much of the units of a layer is active, and remembers those that never were.

    Args:
        eps: magnitudes up to this count as zero.
        options: see `Quantity`.

    Raises:
        ConfigError: a negative eps.
    """

    _mergeable = (*Quantity._mergeable, "_active")

    def __init__(self, *, eps: float = 1e-8, **options: Any) -> None:
        super().__init__(**options)
        if not eps >= 0:
            raise ConfigError(f"{self.name}: eps is a magnitude, 0 or more, got {eps}")
        self.eps = eps
        self._active: dict[str, dict[int, Tensor]] = {}

    def record_units(self, layer: str, values: Tensor, *, unit_axis: int) -> None:
        """Takes the values of one batch; see `unit_rates`."""
        rates = unit_rates(values, unit_axis=unit_axis, eps=self.eps)
        rate = rates.mean()
        self.record(ACTIVATION, layer, rate)
        self.record(DEATH, layer, (rates == 0).double().mean() + 0 * rate)
        merge_found(self._active, {layer: {len(rates): (rates != 0).cpu()}})

    def never_active(self) -> dict[str, tuple[int, int]]:
        """By layer or parameter: units that were zero in every batch since the last reset, and all units.

        Where a layer had several widths, each is told apart: `relu (8 wide)`.
        """
        return {
            layer if len(widths) == 1 else f"{layer} ({width} wide)": (int((~active).sum()), width)
            for layer, widths in self._active.items()
            for width, active in widths.items()
        }

    @override
    def summary(self) -> Iterator[Row]:
        yield from super().summary()
        for name, (dead, units) in self.never_active().items():
            yield Row("never active", name, "units", dead)
            yield Row("never active", name, "share", dead / units)

    @override
    def reset(self) -> None:
        super().reset()
        self._active = {}


class GradientActivation(UnitActivation, TensorQuantity):
    """Share of a parameter's gradient that is not zero, and of its units whose gradient is zero throughout.

    A unit is a row of the first axis: an output feature or channel. "activation rate" is the mean over units of the
    share of their elements that are not zero, "death rate" the share of units without any, both per batch. A unit may
    be dead for a batch only; `never_active` counts those that were dead in every batch.

    The gradient is that of the whole batch, so samples can cancel each other; with magnitudes this is rare.

    Args:
        eps: magnitudes up to this count as zero.
        options: see `Quantity`.
    """

    name = "gradient activation"
    title = "What gradients reach"
    captions: ClassVar[Mapping[str, str]] = {
        ACTIVATION: "Share of the elements of a gradient that are not zero. "
        "Near 0, the layer learns from few samples: look at the activation after it.",
        DEATH: "Share of the units of a layer that no gradient of the batch reaches. "
        "Where it stays high, lower the learning rate, or take an activation that is never flat.",
    }

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        if tensor.numel():
            self.record_units(name, tensor if tensor.dim() else tensor.reshape(-1), unit_axis=0)


class OutputActivation(UnitActivation, OutputQuantity):
    """Share of a layer's outputs that are not zero, and of its units that are zero throughout a batch.

    A unit is a feature or channel. "activation rate" is the mean over units of the share of samples and positions at
    which they are not zero, "death rate" the share of units that are zero everywhere, both per batch. `never_active`
    counts the units that were dead in every batch. A layer whose outputs have one axis has no units and is left out.

    Args:
        eps: magnitudes up to this count as zero.
        channel_last: units lie on the last axis (transformers), not on the second.
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "output activation"
    title = "Active units"
    captions: ClassVar[Mapping[str, str]] = {
        ACTIVATION: "Share of samples and positions at which a unit is not zero. "
        "At 0 or 1, the activation does nothing: look at the inputs and biases of the layer.",
        DEATH: "Share of the units that are zero for the whole batch. "
        "Where it stays high, they are dead: lower the learning rate, or take an activation that is never flat.",
    }

    def __init__(self, *, channel_last: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.channel_last = channel_last

    @override
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        if output.dim() >= 2 and output.numel() and (self.record_eval or torch.is_grad_enabled()):
            self.record_units(layer, output, unit_axis=-1 if self.channel_last else 1)


TRAINING_LOSS, VALIDATION_LOSS = "training loss", "validation loss"


class ExplicitCall(Quantity):
    """Figures by name that a training loop hands in itself: `push("accuracy", 0.9)`."""

    name = "explicit"

    def push(self, name: str, value: Tensor | float) -> None:
        """Adds a figure.

        Args:
            name: what it is called.
            value: one number.

        Raises:
            ConfigError: it is something else.
        """
        try:
            number = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, RuntimeError):
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ConfigError(f"{name!r}: wanted one number, got {got}") from None
        self.record(name, MODEL, number)


class LossModule(OutputQuantity):
    """Losses of training and of other passes, from the outputs of a loss module.

    Attach an inspector to the loss module with this quantity, or to a model that contains one.

    Args:
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "loss"

    def __init__(self, **options: Any) -> None:
        super().__init__(record_eval=True, **options)

    @override
    def wants(self, module: nn.Module) -> bool:
        return isinstance(module, _Loss)

    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        """See `OutputQuantity`.

        Raises:
            ConfigError: the output is not a single number.
        """
        del layer
        if output.numel() != 1:
            raise ConfigError(
                f"{type(module).__name__} returned a tensor of shape {tuple(output.shape)}, wanted a single loss; "
                "use reduction='mean' or 'sum', or leave this quantity out: "
                "Inspector.backward records the mean of such losses"
            )
        self.record(TRAINING_LOSS if torch.is_grad_enabled() else VALIDATION_LOSS, MODEL, output)
