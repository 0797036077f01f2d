"""What a rule is given, and what most of them do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from torch import Tensor

from ..factored import Dense, PerSample
from ..graph import HALF_PRECISION, Edge, Gradients
from ..layout import Layout


class NotCoveredError(Exception):
    """A rule does not cover this use of its node."""


class EntryPerSampleError(NotCoveredError):
    """The tensor holds entries of its own for every sample, so it belongs to the batch."""


@dataclass(frozen=True)
class Use:
    """One use of a tensor that is not part of the batch: where, and how the samples lie in the node's output.

    Attributes:
        edge: the input of the node that is wanted.
        layout: sample layout of the node's first output.
        memo: what rules leave for the node's later inputs, in this pass.
    """

    edge: Edge
    layout: Layout
    memo: dict[str, Tensor] = field(default_factory=dict, compare=False)

    @property
    def slot(self) -> int:
        """The number of the input."""
        return self.edge.slot

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the wanted input."""
        return tuple(self.edge.shape)

    def saved(self, name: str) -> Tensor:
        """A saved tensor of the node."""
        value = getattr(self.edge.node, f"_saved_{name}", None)
        if not isinstance(value, Tensor):
            raise NotCoveredError(f"{self.edge.node.name()} did not save {name}")
        return widened(value.detach())

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """What a `torch.autograd.Function` gave to `ctx.save_for_backward`, in order; its context is `edge.node`."""
        values = getattr(self.edge.node, "saved_tensors", None)
        if values is None:
            raise NotCoveredError(f"{self.edge.node.name()} is no torch.autograd.Function")
        return tuple(widened(value.detach()) for value in values)

    def setting(self, name: str) -> object:
        """A saved setting of the node."""
        return getattr(self.edge.node, f"_saved_{name}", None)

    def number(self, name: str, default: float) -> float:
        """A saved scalar of the node."""
        value = self.setting(name)
        return value if isinstance(value, int | float) else default

    def sizes(self, name: str) -> tuple[int, ...]:
        """A saved list of integers of the node."""
        value = self.setting(name)
        if not isinstance(value, tuple | list):
            raise NotCoveredError(f"{self.edge.node.name()} did not save {name}")
        return tuple(int(item) for item in value)


def widened(tensor: Tensor) -> Tensor:
    """The tensor in float32 where it has half precision: products and sums over positions want more digits.

    What complex numbers leave in it, a sign that is not yet in memory, is carried out: kernels read memory.
    """
    return (tensor.float() if tensor.dtype in HALF_PRECISION else tensor).resolve_neg()


def output_gradient(gradients: Gradients) -> Tensor:
    """The gradient at the first output, in float32 at least."""
    if gradients[0] is None:
        raise NotCoveredError("no gradient reaches the first output")
    return widened(gradients[0])


def scaled(gradient: Tensor, factor: float) -> Tensor:
    """The gradient times a setting of the node that is nearly always one, and then no copy."""
    return gradient if factor == 1 else gradient * factor


def sum_to_shape(gradient: Tensor, layout: Layout, shape: tuple[int, ...]) -> Dense:
    """Per-sample gradient of a tensor that was broadcast over the batch.

    Args:
        gradient: gradient at the broadcast result.
        layout: where the samples lie in it.
        shape: shape of the tensor before it was broadcast; sums run over all axes it was broadcast along.

    Returns:
        (N, *shape).
    """
    missing = gradient.dim() - len(shape)
    if missing and layout.axis == 0 and layout.repeats == 1 and gradient.shape[1:].numel() == prod(shape):
        return Dense(gradient.reshape(layout.samples, *shape))  # as for most biases: there is nothing to add up
    full = (1,) * missing + shape
    if full[layout.axis] != 1:
        raise EntryPerSampleError("the tensor has an entry per sample")
    axes = [axis for axis, size in enumerate(full) if size == 1 and axis != layout.axis]
    summed = layout.split(gradient)
    # Axis `layout.axis` holds the samples now and the next one their repeats: later axes move up by one.
    shifted = [layout.axis + 1, *(axis + (axis > layout.axis) for axis in axes)]
    if any(summed.shape[axis] != 1 for axis in shifted):
        summed = summed.sum(shifted, keepdim=True)
    return Dense(summed.movedim(layout.axis, 0).reshape(layout.samples, *shape))


Rule = Callable[[Use, Gradients], PerSample]
