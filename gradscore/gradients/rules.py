"""One rule per kind of autograd node: from output gradient and saved tensors to per-sample gradients of one input.

A rule is a pure function `rule(use, gradients) -> PerSample`. `RULES` is the whole list: a node that is not in it, or
an input that its rule does not cover (`NotCovered`), is left to the exact twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .factored import Convolved, Dense, Factored, PerSample, Rows, sample_slices
from .graph import Edge, Gradients
from .layout import Layout

NORM_BUDGET = 1 << 17
"""Elements of an activation that are normalised at a time, few enough to stay in the cache."""


class NotCovered(Exception):  # noqa: N818 - a way out, not an error: the exact twin takes over
    """A rule does not cover this use of its node."""


class EntryPerSample(NotCovered):
    """The tensor holds entries of its own for every sample, so it belongs to the batch."""


@dataclass(frozen=True)
class Use:
    """One use of a tensor that is not part of the batch: where, and how the samples lie in the node's output.

    Attributes:
        edge: the input of the node that is wanted.
        layout: sample layout of the node's first output.
    """

    edge: Edge
    layout: Layout

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
        value = getattr(self.edge.node, f"_saved_{name}")
        if not isinstance(value, Tensor):
            raise NotCovered(f"{self.edge.node.name()} did not save {name}")
        return value.detach()

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
            raise NotCovered(f"{self.edge.node.name()} did not save {name}")
        return tuple(int(item) for item in value)


def output_gradient(gradients: Gradients) -> Tensor:
    """The gradient at the first output."""
    if gradients[0] is None:
        raise NotCovered("no gradient reaches the first output")
    return gradients[0]


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
    full = (1,) * missing + shape
    if full[layout.axis] != 1:
        raise EntryPerSample("the tensor has an entry per sample")
    axes = [axis for axis, size in enumerate(full) if size == 1 and axis != layout.axis]
    summed = layout.split(gradient)
    # Axis `layout.axis` holds the samples now and the next one their repeats: later axes move up by one.
    shifted = [layout.axis + 1, *(axis + (axis > layout.axis) for axis in axes)]
    summed = summed.sum(shifted, keepdim=True).movedim(layout.axis, 0)
    return Dense(summed.reshape(layout.samples, *shape))


def addmm(use: Use, gradients: Gradients) -> PerSample:
    """beta * input + alpha * mat1 @ mat2, the usual linear layer with bias."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(gradient * use.number("beta", 1), use.layout, use.shape)
    return product(use, gradient * use.number("alpha", 1), ("mat1", "mat2")[2 - use.slot])


def mm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2."""
    return product(use, output_gradient(gradients), ("mat2", "self")[use.slot])


def product(use: Use, gradient: Tensor, other: str) -> Factored:
    """The matrix on the right of a product whose rows are samples, or on the left of one whose columns are."""
    factor = use.saved(other)
    right_side = use.layout.axis == 0
    if right_side != (other in ("mat1", "self")):
        raise NotCovered("the matrix has a row or column per sample")
    if right_side:
        left, right = use.layout.samples_first(factor), use.layout.samples_first(gradient)
    else:
        left, right = use.layout.samples_first(gradient), use.layout.samples_first(factor)
    return Factored(left.transpose(1, 2).unsqueeze(1), right.transpose(1, 2).unsqueeze(1), use.shape)


def bmm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2 for a batch of matrices that is not the batch of samples."""
    gradient = output_gradient(gradients)
    if use.slot != use.layout.axis % 2 or use.layout.axis == 0:
        raise NotCovered("the matrices have a row, column or matrix per sample")
    factor = use.saved("self" if use.slot == 1 else "mat2")
    # The samples lie on axis 1 of the result (rows, from self) or on axis 2 (columns, from mat2).
    this, that = use.layout.samples_first(factor), use.layout.samples_first(gradient)
    pair = (this, that) if use.slot == 1 else (that, this)
    left, right = (item.permute(0, 2, 3, 1) for item in pair)
    return Factored(left, right, use.shape)


def convolution(use: Use, gradients: Gradients) -> PerSample:
    """Convolutions of one to three dimensions and their transposes: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, (use.shape[0], *[1] * (gradient.dim() - 2))).reshaped(use.shape)
    if use.slot != 1 or use.layout.axis != 0:
        raise NotCovered("the convolution is over samples")
    groups = int(use.number("groups", 1))
    positions, image = use.layout.samples_first(gradient), use.layout.samples_first(use.saved("input"))
    if use.setting("transposed"):
        positions, image = image, positions
    return Convolved(
        positions.reshape(*positions.shape[:2], groups, -1, *positions.shape[3:]),
        image,
        tuple(use.shape[2:]),
        use.sizes("stride"),
        use.sizes("dilation"),
        use.sizes("padding"),
        use.shape,
    )


def batch_norm(use: Use, gradients: Gradients) -> PerSample:
    """Batch norm with running statistics, or with the statistics of each sample alone (instance norm)."""
    gradient = output_gradient(gradients)
    channels = (1, gradient.shape[1], *[1] * (gradient.dim() - 2))
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, channels).reshaped(use.shape)
    if use.slot != 1:
        raise NotCovered("the normalised tensor itself")
    if use.setting("training"):
        mean, scale = use.saved("result1"), use.saved("result2")
    else:
        eps = use.number("eps", use.number("epsilon", 0.0))
        mean, scale = use.saved("running_mean"), (use.saved("running_var") + eps).rsqrt()
    image = use.saved("input")
    if use.layout != Layout(0, True, len(image), 1):
        normalised = (image - mean.view(channels)).mul_(scale.view(channels))
        return sum_to_shape(normalised.mul_(gradient), use.layout, channels).reshaped(use.shape)
    found = torch.empty(image.shape[:2], dtype=image.dtype, device=image.device)
    for rows in sample_slices(len(image), image[0].numel(), NORM_BUDGET):
        centred = (image[rows] - mean.view(channels)).mul_(gradient[rows])
        torch.sum(centred.flatten(2), 2, out=found[rows]) if image.dim() > 2 else found[rows].copy_(centred)
    return Dense(found.mul_(scale))


def layer_norm(use: Use, gradients: Gradients) -> PerSample:
    """Layer norm: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, use.shape)
    if use.slot != 1:
        raise NotCovered("the normalised tensor itself")
    normalised = (use.saved("input") - use.saved("result1")).mul_(use.saved("result2"))
    return sum_to_shape(normalised.mul_(gradient), use.layout, use.shape)


def group_norm(use: Use, gradients: Gradients) -> PerSample:
    """Group norm: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    channels = (1, gradient.shape[1], *[1] * (gradient.dim() - 2))
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, channels).reshaped(use.shape)
    if use.slot != 1:
        raise NotCovered("the normalised tensor itself")
    mean, scale = use.saved("result1"), use.saved("result2")
    grouped = use.saved("input").reshape(len(gradient), mean.shape[1], -1)
    normalised = (grouped - mean.unsqueeze(2)).mul_(scale.unsqueeze(2)).reshape(gradient.shape)
    return sum_to_shape(normalised.mul_(gradient), use.layout, channels).reshaped(use.shape)


def embedding(use: Use, gradients: Gradients) -> PerSample:
    """Rows of a table, picked by index."""
    index = use.saved("indices")
    gradient = output_gradient(gradients)
    if use.layout.axis >= index.dim():
        raise NotCovered("the samples lie along the features")
    values = use.layout.samples_first(gradient).flatten(1, -2)
    if not values.numel():
        raise NotCovered("nothing was looked up")
    rows = use.layout.samples_first(index).flatten(1)
    ignored = int(use.number("padding_idx", -1))
    if ignored >= 0:
        values = values.masked_fill((rows == ignored).unsqueeze(2), 0)
    if use.setting("scale_grad_by_freq"):
        values = values / torch.bincount(index.flatten(), minlength=use.shape[0])[rows].unsqueeze(2)
    return Rows(rows, values, use.shape[0], use.shape)


def add(use: Use, gradients: Gradients) -> PerSample:
    """self + alpha * other, broadcast."""
    gradient = output_gradient(gradients)
    factor = use.number("alpha", 1) if use.slot == 1 else 1
    return sum_to_shape(gradient if factor == 1 else gradient * factor, use.layout, use.shape)


def sub(use: Use, gradients: Gradients) -> PerSample:
    """self - alpha * other, broadcast."""
    factor = -use.number("alpha", 1) if use.slot == 1 else 1
    return sum_to_shape(output_gradient(gradients) * factor, use.layout, use.shape)


def mul(use: Use, gradients: Gradients) -> PerSample:
    """self * other, broadcast."""
    other = use.saved("other" if use.slot == 0 else "self")
    return sum_to_shape(output_gradient(gradients) * other, use.layout, use.shape)


def div(use: Use, gradients: Gradients) -> PerSample:
    """self / other, broadcast."""
    gradient, other = output_gradient(gradients), use.saved("other")
    if use.slot == 0:
        return sum_to_shape(gradient / other, use.layout, use.shape)
    return sum_to_shape(-gradient * use.saved("self") / (other * other), use.layout, use.shape)


def prelu(use: Use, gradients: Gradients) -> PerSample:
    """max(0, x) + weight * min(0, x)."""
    negative = use.saved("self").clamp(max=0)
    if use.slot != 1:
        raise NotCovered("the input of the activation")
    return sum_to_shape(negative.mul_(output_gradient(gradients)), use.layout, use.shape)


def expand(use: Use, gradients: Gradients) -> PerSample:
    """A tensor repeated along axes of size one."""
    return sum_to_shape(output_gradient(gradients), use.layout, use.shape)


def repeat(use: Use, gradients: Gradients) -> PerSample:
    """A tensor tiled along its axes, the axis of the samples among them."""
    gradient, axis = output_gradient(gradients), use.layout.axis
    times = use.sizes("repeats")
    shape = (1,) * (len(times) - len(use.shape)) + use.shape
    if times[axis] % use.layout.samples or not (use.layout.major or shape[axis] == 1):
        raise NotCovered("the tiles are not whole samples")
    samples = use.layout.samples
    tiles = [samples, times[axis] // samples, shape[axis]]
    split = gradient.reshape(
        *(size for item in zip(times[:axis], shape[:axis], strict=True) for size in item),
        *(tiles if use.layout.major else [tiles[1], samples, 1]),
        *(size for item in zip(times[axis + 1 :], shape[axis + 1 :], strict=True) for size in item),
    )
    where = 2 * axis + (0 if use.layout.major else 1)
    split = split.movedim(where, 0)
    summed = split.sum([1 + 2 * number for number in range(len(times))])
    return Dense(summed.reshape(samples, *use.shape))


Rule = Callable[[Use, Gradients], PerSample]

RULES: dict[str, Rule] = {
    "AddBackward0": add,
    "AddmmBackward0": addmm,
    "BmmBackward0": bmm,
    "ConvolutionBackward0": convolution,
    "CudnnBatchNormBackward0": batch_norm,
    "DivBackward0": div,
    "EmbeddingBackward0": embedding,
    "ExpandBackward0": expand,
    "MmBackward0": mm,
    "MulBackward0": mul,
    "NativeBatchNormBackward0": batch_norm,
    "NativeGroupNormBackward0": group_norm,
    "NativeLayerNormBackward0": layer_norm,
    "PreluKernelBackward0": prelu,
    "RepeatBackward0": repeat,
    "SubBackward0": sub,
}
