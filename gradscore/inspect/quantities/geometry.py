"""Norms of outputs, gradients and parameters, and how gradients and parameters turn from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from ...errors import ConfigError
from ...system import SQUARABLE, squared_norms
from .activation import is_activation
from .quantity import MODEL, ModuleQuantity, OutputGradientQuantity, OutputQuantity, Quantity, TensorQuantity

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


class Geometry:
    """Remembers the last tensor of every name.

    Args:
        correlation: record the cosine of the angle between successive tensors.
        normalize: divide norms by the root of the number of elements, which gives the root mean square.
        copies: remember copies. Otherwise the tensors themselves are kept: where one was changed in place before the
            next came, there is no correlation, and copies are remembered from then on.

    Attributes:
        last_norm: of the tensor that came last, not normalised.
    """

    def __init__(self, *, correlation: bool, normalize: bool, copies: bool = True) -> None:
        self.correlation, self.normalize, self.copies = correlation, normalize, copies
        self.last_norm = torch.zeros((), dtype=torch.float64)
        self._last: dict[str, tuple[Tensor, float, int]] = {}
        self._change: set[str] = set()

    def record(self, quantity: Quantity, name: str, tensor: Tensor) -> None:
        """Records the next tensor of a name: its norm, and its correlation with the one before.

        There is a correlation if there was a tensor of the same shape, and neither is zero or not finite: the angle is
        undefined otherwise, and nothing takes its place.

        Args:
            quantity: gets the values.
            name: of a layer or parameter.
            tensor: of any shape.
        """
        tensor = tensor.detach()
        norm = self.last_norm = precise_norm(tensor)
        quantity.record(NORM, name, norm / sqrt(max(1, tensor.numel())) if self.normalize else norm)
        if self.correlation:
            size = float(norm)
            last, last_size, version = self._last.get(name, (tensor, 0.0, tensor._version))
            if last._version != version:
                self._change.add(name)
            elif last.shape == tensor.shape and 0 < size < torch.inf and 0 < last_size < torch.inf:
                quantity.record(CORRELATION, name, cosine(last, tensor, last_size, size))
            kept = tensor.clone() if self.copies or name in self._change else tensor
            self._last[name] = (kept, size, kept._version)

    def restart(self) -> None:
        """Forgets the last tensors."""
        self._last = {}


class WholeModel:
    """Adds up the norms of all parameters to that of the model, in float64.

    Args:
        normalize: see `Geometry`.

    Attributes:
        size: elements since the last `take`.
    """

    def __init__(self, *, normalize: bool) -> None:
        self.normalize, self.size = normalize, 0
        self._squares: Tensor | None = None

    def add(self, norm: Tensor, size: int) -> None:
        """Takes the norm of a parameter, and its number of elements."""
        squares = norm.square()
        self._squares = squares if self._squares is None else self._squares + squares.to(self._squares.device)
        self.size += size

    def take(self) -> Tensor:
        """The norm of everything since the last call, which begins anew; zero for nothing."""
        squares = torch.zeros((), dtype=torch.float64) if self._squares is None else self._squares
        norm = (squares / max(1, self.size)).sqrt() if self.normalize else squares.sqrt()
        self._squares, self.size = None, 0
        return norm


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


class GradientGeometry(_Norms, TensorQuantity):
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
        "norm": "Root mean square of the gradient of each parameter, one value a batch.",
        "correlation": "Whether batches pull a parameter in the same direction (1) or not (0).",
    }

    def __init__(self, *, correlation: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._geometry = Geometry(correlation=correlation, normalize=self.normalize)
        self._model = WholeModel(normalize=self.normalize)

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        self._geometry.record(self, name, tensor)
        self._model.add(self._geometry.last_norm, tensor.numel())

    @override
    def finish(self) -> None:
        if self._model.size:
            self.record(NORM, MODEL, self._model.take())

    def reset(self) -> None:
        """The next batch has no batch before it."""
        super().reset()
        self._geometry.restart()
        self._model.take()


PER_SAMPLE = "norm per sample"


class OutputGradientGeometry(OutputGradientQuantity):
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
        "norm": "Size of the loss's gradient with respect to what a layer returns, one value a batch.",
        PER_SAMPLE: "The same for every sample alone: where samples differ in size, their scores differ.",
        "correlation": "Cosine of the angle between the gradients of two batches in a row: 1 is the same direction, "
        "0 no relation.",
    }

    def __init__(
        self,
        *,
        normalize: bool = False,
        correlation: bool = True,
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
        self.normalize, self.skip_activation = normalize, skip_activation
        self.per_sample, self.reduction = per_sample, reduction
        self._geometry = Geometry(correlation=correlation, normalize=normalize, copies=False)

    @override
    def wants(self, module: nn.Module) -> bool:
        return not (self.skip_activation and is_activation(module))

    @override
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        del module
        self._geometry.record(self, layer, gradient)
        if self.per_sample and gradient.dim():
            norms = precise_norm(gradient.detach().reshape(len(gradient), -1), dim=1)
            size = sqrt(max(1, prod(gradient.shape[1:]))) if self.normalize else 1.0
            self.record(PER_SAMPLE, layer, norms * ((len(gradient) if self.reduction == "mean" else 1) / size))

    def reset(self) -> None:
        """The next batch has no batch before it."""
        super().reset()
        self._geometry.restart()


RELATIVE = "size relative to the weights"


class ParameterDifferenceGeometry(_Norms, TensorQuantity):
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

    def __init__(self, *, correlation: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._geometry = Geometry(correlation=correlation, normalize=self.normalize)
        self._last: dict[str, Tensor] = {}
        self._steps, self._weights = (WholeModel(normalize=self.normalize) for _ in range(2))
        self._versions: dict[str, int] = {}

    @override
    def is_news(self, tensors: Mapping[str, Tensor]) -> bool:
        return not all(self._is_as_before(name, tensor) for name, tensor in tensors.items())

    def _is_as_before(self, name: str, tensor: Tensor) -> bool:
        # Some optimizers write past the counter of changes in place, so that values have the last word.
        known = self._last.get(name)
        return known is not None and tensor._version == self._versions.get(name) and torch.equal(known, tensor.detach())

    @override
    def observe(self, name: str, tensor: Tensor) -> None:
        self._versions[name] = tensor._version
        tensor = tensor.detach()
        if name in self._last:
            self._geometry.record(self, name, tensor - self._last[name])
            self._steps.add(self._geometry.last_norm, tensor.numel())
            self._weights.add(precise_norm(self._last[name]), tensor.numel())
        self._last[name] = tensor.clone()

    @override
    def finish(self) -> None:
        if self._steps.size:
            step, weights = self._steps.take(), self._weights.take()
            self.record(NORM, MODEL, step)
            self.record(RELATIVE, MODEL, step / weights)

    def reset(self) -> None:
        """The next value begins a new history."""
        super().reset()
        self._geometry.restart()
        self._last = {}


class ParameterNorm(_Norms, ModuleQuantity):
    """Euclidean norm of the parameters of each module that are its own, by name.

    Args:
        attrs: names of attributes that are tensors, or one name, to look at instead; a module without one, or where it
            is None, is left out.
        normalize: divide norms by the root of the number of elements: root mean square.
        options: see `Quantity`.
    """

    name = "parameter"
    title = "Parameters"
    captions: ClassVar[Mapping[str, str]] = {
        "weight norm": "Root mean square of the weights.",
        "bias norm": "Root mean square of the biases.",
    }

    def __init__(self, *, attrs: str | Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.attrs = (attrs,) if isinstance(attrs, str) else attrs

    @override
    def observe(self, layer: str, module: nn.Module) -> None:
        own = [name for name, _ in module.named_parameters(recurse=False)]
        for name in own if self.attrs is None else self.attrs:
            tensor = getattr(module, name, None)
            if isinstance(tensor, Tensor) and tensor.numel():
                norm = precise_norm(tensor.detach())
                self.record(f"{name} norm", layer, norm / sqrt(tensor.numel()) if self.normalize else norm)


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
        "norm": "Root mean square of what a layer returns, mean over the batch.",
    }

    @override
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        if not output.dim() or not output.numel() or not (self.record_eval or self.is_training(module)):
            return
        flat = output.detach().reshape(len(output), -1)
        norm = precise_norm(flat, dim=1).mean()
        self.record("norm", layer, norm / sqrt(flat.shape[1]) if self.normalize else norm)
