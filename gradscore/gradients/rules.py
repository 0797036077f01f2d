"""One rule per kind of autograd node: from output gradient and saved tensors to per-sample gradients of one input.

A rule is a pure function `rule(use, gradients) -> PerSample`. `RULES`, at the end, is the whole list, but for those
that other packages add: a node that is not in it, or an input that its rule does not cover (`NotCoveredError`), is left
to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

import torch
from torch import Tensor

from .. import kernels
from ..system import Registry
from .graph import HALF_PRECISION, Edge, Gradients
from .layout import Layout
from .per_sample import Convolved, Dense, Factored, PerSample, TableRows, sample_slices

NORM_BUDGET = 1 << 17
"""Elements of an activation that are normalised at a time, few enough to stay in the cache: half a mebibyte of
float32. Four times as many or a quarter took as long, within noise."""

SUMS = "sums of the output gradient"
"""Key of `Use.memo`: what the weight's rule leaves for the bias, in one pass, since memory is what both wait for."""

BILINEAR = ((1, 3), (0,), (1, 2), (2, 3))
"""The axes that `nn.Bilinear` adds to its first input, weight and second input, and those it sums over."""

LSTM_MODE = 2
"""Value of `mode` that the node of a recurrent layer saves if it is an LSTM."""


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


def sum_to_shape(use: Use, gradient: Tensor, shape: tuple[int, ...] | None = None) -> Dense:
    """Per-sample gradient of a tensor that was broadcast over the batch.

    Args:
        use: of the tensor.
        gradient: gradient at the broadcast result.
        shape: shape under which the tensor was broadcast, if that is another than its own; sums run over all axes it
            was broadcast along.

    Returns:
        (N, *shape of the tensor).
    """
    layout, shape = use.layout, use.shape if shape is None else shape
    missing = gradient.dim() - len(shape)
    if missing and layout.is_plain and gradient.shape[1:].numel() == prod(shape):
        return Dense(gradient.reshape(layout.samples, *use.shape))  # as for most biases: there is nothing to add up
    full = (1,) * missing + shape
    if full[layout.axis] != 1:
        raise EntryPerSampleError("the tensor has an entry per sample")
    axes = [axis for axis, size in enumerate(full) if size == 1 and axis != layout.axis]
    summed = layout.split(gradient)
    # Axis `layout.axis` holds the samples now and the next one their repeats: later axes move up by one.
    shifted = [layout.axis + 1, *(axis + (axis > layout.axis) for axis in axes)]
    if any(summed.shape[axis] != 1 for axis in shifted):
        summed = summed.sum(shifted, keepdim=True)
    return Dense(summed.movedim(layout.axis, 0).reshape(layout.samples, *use.shape))


def sum_over_positions(use: Use, gradient: Tensor) -> Dense:
    """Per-sample gradient of one number per channel, from that at images (N, C, *size)."""
    return sum_to_shape(use, gradient, (gradient.shape[1], *[1] * (gradient.dim() - 2)))


def addmm(use: Use, gradients: Gradients) -> PerSample:
    """beta * input + alpha * mat1 @ mat2, the usual linear layer with bias."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(use, scaled(gradient, use.number("beta", 1)))
    return product(use, scaled(gradient, use.number("alpha", 1)), ("mat1", "mat2")[2 - use.slot])


def mm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2."""
    return product(use, output_gradient(gradients), ("mat2", "self")[use.slot])


def mv(use: Use, gradients: Gradients) -> PerSample:
    """matrix @ vector, the rows of the matrix being samples: the vector (slot 1)."""
    if use.slot != 1:
        raise NotCoveredError("a matrix that meets one vector per sample")
    return rows_multiplied(use, output_gradient(gradients).unsqueeze(1), use.saved("self"))


def product(use: Use, gradient: Tensor, other: str) -> Factored:
    """The matrix on the right of a product whose rows are samples, or on the left of one whose columns are."""
    factor = use.saved(other)
    right_side = use.layout.axis == 0
    if right_side != (other in ("mat1", "self")):
        raise NotCoveredError("the matrix has a row or column per sample")
    left, right = (factor, gradient) if right_side else (gradient, factor)
    return rows_multiplied(use, left, right)


def rows_multiplied(use: Use, left: Tensor, right: Tensor) -> Factored:
    """Outer products of equal rows of two matrices, added up over those of a sample."""
    one, other = (use.layout.samples_first(each).transpose(1, 2).unsqueeze(1) for each in (left, right))
    return Factored(one, other, use.shape)


def bmm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2 for a batch of matrices that is not the batch of samples."""
    return batched_product(use, output_gradient(gradients), ("self", "mat2"), use.slot)


def baddbmm(use: Use, gradients: Gradients) -> PerSample:
    """beta * input + alpha * batch1 @ batch2 for a batch of matrices that is not the batch of samples."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(use, scaled(gradient, use.number("beta", 1)))
    return batched_product(use, scaled(gradient, use.number("alpha", 1)), ("batch1", "batch2"), use.slot - 1)


def batched_product(use: Use, gradient: Tensor, names: tuple[str, str], side: int) -> Factored:
    """The matrices on the right (side 1) of products whose rows are samples, or on the left of such with columns."""
    if side != use.layout.axis % 2 or use.layout.axis == 0:
        raise NotCoveredError("the matrices have a row, column or matrix per sample")
    # The samples lie on axis 1 of the result (rows, from the left) or on axis 2 (columns, from the right).
    this, that = use.layout.samples_first(use.saved(names[1 - side])), use.layout.samples_first(gradient)
    pair = (this, that) if side == 1 else (that, this)
    left, right = (item.permute(0, 2, 3, 1) for item in pair)
    return Factored(left, right, use.shape)


def bilinear(use: Use, gradients: Gradients) -> PerSample:
    """sum over i, j of first[s, i] * weight[o, i, j] * second[s, j], as `nn.Bilinear` computes it."""
    dims = tuple(use.sizes(name) for name in ("expand1", "expand2", "expand3", "sumdim"))
    if use.slot != 1 or dims != BILINEAR or use.layout.axis != 0:
        raise NotCoveredError("another product of three tensors than that of nn.Bilinear")
    # The inputs are broadcast to (rows, 1, inputs, 1) and (rows, 1, 1, inputs).
    first, second = use.saved("i1"), use.saved("i3")
    pairs = (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1)
    return rows_multiplied(use, output_gradient(gradients), pairs)


def convolution(use: Use, gradients: Gradients) -> PerSample:
    """Convolutions of one to three dimensions and their transposes: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        return sum_over_positions(use, gradient)
    if use.slot != 1 or use.layout.axis != 0:
        raise NotCoveredError("the convolution is over samples")
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
        if SUMS in use.memo:
            return Dense(use.memo[SUMS])
        return sum_over_positions(use, gradient)
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    if use.setting("training"):
        mean, scale = use.saved("result1"), use.saved("result2")
    else:
        eps = use.number("eps", use.number("epsilon", 0.0))
        mean, scale = use.saved("running_mean"), (use.saved("running_var") + eps).rsqrt()
    image = use.saved("input")
    if not use.layout.is_plain:
        normalised = (image - mean.view(channels)).mul_(scale.view(channels))
        return sum_over_positions(use, normalised.mul_(gradient))
    if image.dim() > 2:
        found = kernels.centred_products(image, mean, gradient)
        if found is not None:
            products, use.memo[SUMS] = found.unbind()
            return Dense(products.mul_(scale))
    if image.device.type != "cpu":  # few operations are faster there than little memory
        products = (image - mean.view(channels)).mul_(gradient)
        return Dense((products.flatten(2).sum(2) if image.dim() > 2 else products).mul_(scale))
    found = torch.empty(image.shape[:2], dtype=image.dtype, device=image.device)
    for rows in sample_slices(len(image), image[0].numel(), NORM_BUDGET):
        centred = (image[rows] - mean.view(channels)).mul_(gradient[rows])
        torch.sum(centred.flatten(2), 2, out=found[rows]) if image.dim() > 2 else found[rows].copy_(centred)
    return Dense(found.mul_(scale))


def layer_norm(use: Use, gradients: Gradients) -> PerSample:
    """Layer norm: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        if SUMS in use.memo:
            return Dense(use.memo[SUMS])
        return sum_to_shape(use, gradient)
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    image, mean, scale = use.saved("input"), use.saved("result1"), use.saved("result2")
    if use.layout.axis == 0 and len(use.shape) == 1:
        found = kernels.normed_products(
            use.layout.samples_first(image).flatten(1, -2),
            use.layout.samples_first(mean).flatten(1),
            use.layout.samples_first(scale).flatten(1),
            use.layout.samples_first(gradient).flatten(1, -2),
        )
        if found is not None:
            products, use.memo[SUMS] = found
            return Dense(products)
    normalised = (image - mean).mul_(scale)
    return sum_to_shape(use, normalised.mul_(gradient))


def group_norm(use: Use, gradients: Gradients) -> PerSample:
    """Group norm: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        return sum_over_positions(use, gradient)
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    mean, scale = use.saved("result1"), use.saved("result2")
    grouped = use.saved("input").reshape(len(gradient), mean.shape[1], -1)
    normalised = (grouped - mean.unsqueeze(2)).mul_(scale.unsqueeze(2)).reshape(gradient.shape)
    return sum_over_positions(use, normalised.mul_(gradient))


def rms_norm(use: Use, gradients: Gradients) -> PerSample:
    """RMS norm that runs as one node: weight (slot 1)."""
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    normalised = use.saved("input") * use.saved("result1")
    return sum_to_shape(use, normalised.mul_(output_gradient(gradients)))


def add(use: Use, gradients: Gradients) -> PerSample:
    """self + alpha * other, broadcast."""
    factor = use.number("alpha", 1) if use.slot == 1 else 1
    return sum_to_shape(use, scaled(output_gradient(gradients), factor))


def sub(use: Use, gradients: Gradients) -> PerSample:
    """self - alpha * other, broadcast."""
    factor = -use.number("alpha", 1) if use.slot == 1 else 1
    return sum_to_shape(use, output_gradient(gradients) * factor)


def mul(use: Use, gradients: Gradients) -> PerSample:
    """self * other, broadcast."""
    other = use.saved("other" if use.slot == 0 else "self")
    return sum_to_shape(use, output_gradient(gradients) * other.conj())


def div(use: Use, gradients: Gradients) -> PerSample:
    """self / other, broadcast."""
    gradient, other = output_gradient(gradients), use.saved("other")
    if use.slot == 0:
        return sum_to_shape(use, gradient / other)
    return sum_to_shape(use, -gradient * use.saved("self") / (other * other))


def addcmul(use: Use, gradients: Gradients) -> PerSample:
    """self + value * tensor1 * tensor2, broadcast."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(use, gradient)
    other = use.saved(("tensor1", "tensor2")[2 - use.slot])
    return sum_to_shape(use, gradient * other * use.number("value", 1))


def power(use: Use, gradients: Gradients) -> PerSample:
    """self ** exponent, broadcast, the exponent being a tensor."""
    gradient, base = output_gradient(gradients), use.saved("self")
    if use.slot == 0:
        exponent = use.saved("exponent")
        slope = torch.where(exponent == 0, 0, exponent * base.pow(exponent - 1))
    else:
        # Zero to any power above zero stays zero: its slope is zero, where the logarithm is not.
        slope = torch.where((base == 0) & (use.saved("exponent") >= 0), 0, use.saved("result") * base.log())
    return sum_to_shape(use, gradient * slope)


def lerp(use: Use, gradients: Gradients) -> PerSample:
    """self + weight * (end - self), broadcast."""
    gradient, weight = output_gradient(gradients), use.setting("weight")
    share = weight.detach() if isinstance(weight, Tensor) else use.number("weight", 0.0)
    slope = (1 - share, share)[use.slot] if use.slot < 2 else use.saved("end") - use.saved("self")
    return sum_to_shape(use, gradient * slope)


def larger_or_smaller(use: Use, gradients: Gradients) -> PerSample:
    """The larger, or the smaller, of self and other, broadcast; equal ones get half the gradient each."""
    gradient = output_gradient(gradients)
    is_larger = use.edge.node.name() == "MaximumBackward0"
    mine, other = ("self", "other") if (use.slot == 0) == is_larger else ("other", "self")
    lead = use.saved(mine) - use.saved(other)
    share = torch.heaviside(lead, lead.new_full((), 0.5)).to(gradient.dtype)
    return sum_to_shape(use, gradient * share)


def masked_fill(use: Use, gradients: Gradients) -> PerSample:
    """One number (slot 1) where a mask holds."""
    mask = use.saved("mask")
    chosen = ~mask if use.slot == 0 else mask
    return sum_to_shape(use, output_gradient(gradients) * chosen)


def where(use: Use, gradients: Gradients) -> PerSample:
    """One tensor where a condition holds, another one elsewhere, broadcast."""
    gradient, condition = output_gradient(gradients), use.saved("condition")
    chosen = condition if use.slot == 0 else ~condition
    return sum_to_shape(use, gradient * chosen)


def prelu(use: Use, gradients: Gradients) -> PerSample:
    """max(0, x) + weight * min(0, x)."""
    negative = use.saved("self").clamp(max=0)
    if use.slot != 1:
        raise NotCoveredError("the input of the activation")
    return sum_to_shape(use, negative.mul_(output_gradient(gradients)))


def expand(use: Use, gradients: Gradients) -> PerSample:
    """A tensor repeated along axes of size one."""
    return sum_to_shape(use, output_gradient(gradients))


def repeat(use: Use, gradients: Gradients) -> PerSample:
    """A tensor tiled along its axes, the axis of the samples among them."""
    layout, axis, times = use.layout, use.layout.axis, use.sizes("repeats")
    shape = (1,) * (len(times) - len(use.shape)) + use.shape
    if layout.neighbours % shape[axis]:
        raise NotCoveredError("the tiles are not whole samples")
    tiles = (layout.repeats // layout.neighbours, layout.samples, layout.neighbours // shape[axis])
    sizes = [
        pair if place != axis else (*tiles, shape[axis]) for place, pair in enumerate(zip(times, shape, strict=True))
    ]
    split = output_gradient(gradients).reshape([size for group in sizes for size in group])
    # The samples come first now; of each axis, what counts its tiles is summed over.
    counts = [1 + 2 * place + (place > axis) for place in range(len(times))]
    summed = split.movedim(2 * axis + 1, 0).sum([*counts, 2 + 2 * axis])
    return Dense(summed.reshape(layout.samples, *use.shape))


class BagMode(Enum):
    """How `nn.EmbeddingBag` reduces a bag."""

    SUM = 0
    MEAN = 1
    MAX = 2


def embedding(use: Use, gradients: Gradients) -> PerSample:
    """Rows of a table, picked by index."""
    if use.setting("scale_grad_by_freq"):
        raise NotCoveredError("rows are scaled by their frequency in the batch")
    index = use.saved("indices")
    values = output_gradient(gradients)
    ignored = int(use.number("padding_idx", -1))
    if ignored >= 0:
        values = values.masked_fill((index == ignored).unsqueeze(-1), 0)
    return picked_rows(use, values, index)


def index(use: Use, gradients: Gradients) -> PerSample:
    """table[index], the index being a tensor of positions on the first axis."""
    indices = use.setting("indices")
    if not isinstance(indices, tuple | list) or len(indices) != 1 or not isinstance(indices[0], Tensor):
        raise NotCoveredError("several axes are indexed")
    if indices[0].dtype == torch.bool:
        raise NotCoveredError("the index is a mask")
    return picked_rows(use, output_gradient(gradients), indices[0] % use.shape[0])


def index_select(use: Use, gradients: Gradients) -> PerSample:
    """table.index_select(0, index)."""
    if use.number("dim", 0) not in (0, -len(use.shape) % 2**64):
        raise NotCoveredError("another axis than the first is indexed")
    return picked_rows(use, output_gradient(gradients), use.saved("index"))


def picked_rows(use: Use, values: Tensor, index: Tensor) -> TableRows:
    """The gradient of a table of which each sample picked some rows.

    Args:
        use: of the table, (V, *rest).
        values: gradient at the picked rows, (*shape of the index, *rest).
        index: int64, not negative; its axes are the first ones of the values.
    """
    if use.layout.axis >= index.dim():
        raise NotCoveredError("the samples lie along the features")
    if not values.numel():
        raise NotCoveredError("nothing was looked up")
    picked = values.reshape(*index.shape, -1)
    rows = use.layout.samples_first(index).flatten(1)
    return TableRows(rows, use.layout.samples_first(picked).flatten(1, -2), use.shape[0], use.shape)


def embedding_bag(use: Use, gradients: Gradients) -> PerSample:
    """Sum, mean or maximum of the rows of a table in every bag."""
    gradient, index = output_gradient(gradients), use.saved("indices")
    if use.slot != 0 or use.layout.axis != 0 or use.layout.neighbours != use.layout.repeats:
        raise NotCoveredError("the weights of the rows, or bags in another order")
    if use.setting("scale_grad_by_freq"):
        raise NotCoveredError("rows are scaled by their frequency in the batch")
    # The last of equal offsets holds the rows: bags before it are empty. A further offset may close the last bag.
    places = torch.arange(len(index), device=index.device)
    bag = torch.searchsorted(use.saved("offsets"), places, right=True) - 1
    counted = index != int(use.number("padding_idx", -1))
    values = gradient[bag] * counted.unsqueeze(1)
    mode = BagMode(int(use.number("mode", 0)))
    if mode is BagMode.MEAN:
        sizes = gradient.new_zeros(len(gradient)).index_add_(0, bag, counted.to(gradient.dtype))
        values = values / sizes[bag].clamp(min=1).unsqueeze(1)
    if isinstance(use.setting("per_sample_weights"), Tensor):
        values = values * use.saved("per_sample_weights").unsqueeze(1)
    if mode is BagMode.MAX:
        repeated = (index.unsqueeze(1) == index) & (bag.unsqueeze(1) == bag)
        first = repeated.int().argmax(1) == places
        values = values * ((use.saved("result3")[bag] == index.unsqueeze(1)) & first.unsqueeze(1))
    # Samples pick different numbers of rows: the missing ones add zero to row 0. `bincount` waits for an accelerator.
    sample = bag // use.layout.repeats
    counts = sample.new_zeros(use.layout.samples).index_add_(0, sample, torch.ones_like(sample))
    place = places - (counts.cumsum(0) - counts)[sample]
    shape = (use.layout.samples, max(1, int(counts.max())))
    rows, padded = index.new_zeros(shape), values.new_zeros(*shape, values.shape[1])
    rows[sample, place], padded[sample, place] = index, values
    return TableRows(rows, padded, use.shape[0], use.shape)


def lstm_layer(use: Use, gradients: Gradients) -> PerSample:
    """One direction of one layer of an LSTM (oneDNN): weights (slots 1 and 2) and biases (slots 3 and 4).

    The node keeps its inputs and weights. The states are computed again step by step, which gives the gradient at the
    four gates of every step; weights and biases follow from it as for linear layers.
    """
    if use.setting("mode") != LSTM_MODE or not 1 <= use.slot <= 4:
        raise NotCoveredError("not a weight of an LSTM")
    steps = use.saved("input")
    if use.layout.samples != steps.shape[1] or use.layout.repeats != 1:
        raise NotCoveredError("the samples are not the batch of the layer")
    steps = steps.flip(0) if use.setting("reverse") else steps
    states, gates = lstm_gates(use, steps, gradients)
    if use.slot > 2:
        return Dense(gates.sum(0))
    factor = steps if use.slot == 1 else states
    left, right = (item.permute(1, 2, 0).unsqueeze(1) for item in (gates, factor))
    return Factored(left, right, use.shape)


def lstm_gates(use: Use, steps: Tensor, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Hidden states before every step (T, N, H) and gradients at its gates before their activation (T, N, 4 H).

    Source: the equations in the documentation of `torch.nn.LSTM`; gates in the order input, forget, cell, output.
    """
    weights = use.saved("weight0"), use.saved("weight1")
    biases = use.saved("weight2") + use.saved("weight3") if use.setting("has_biases") else weights[0].new_zeros(())
    hidden, cell = use.saved("hx_"), use.saved("cx_")
    before, gates, after = [], [], []
    with torch.enable_grad():
        # Nothing but this leaf needs a gradient, so the little graph ends at the gates.
        start = torch.zeros((), dtype=steps.dtype, device=steps.device, requires_grad=True)
        for step in steps:
            before.append(hidden.detach())
            gates.append(torch.addmm(biases, step, weights[0].t()) + hidden @ weights[1].t() + start)
            hidden, cell = _lstm_step(gates[-1], cell)
            after.append(hidden)
        at_steps, at_hidden, at_cell = (*gradients, None, None)[:3]
        if at_steps is not None and use.setting("reverse"):
            at_steps = at_steps.flip(0)
        ends = [
            (tensor, gradient.reshape(tensor.shape))
            for tensor, gradient in ((torch.stack(after), at_steps), (hidden, at_hidden), (cell, at_cell))
            if gradient is not None
        ]
    found = torch.autograd.grad([tensor for tensor, _ in ends], gates, [gradient for _, gradient in ends])
    return torch.stack(before), torch.stack(found)


def lstm_cell(use: Use, gradients: Gradients) -> PerSample:
    """One step of an LSTM on an accelerator: biases (slots 3 and 4) have the gradient at the sum of the gates."""
    gates = [use.saved("input_gates") + use.saved("hidden_gates")]
    gates += [use.saved(f"{name}_bias") for name in ("input", "hidden")]
    with torch.enable_grad():
        total = sum(gates[1:], gates[0]).requires_grad_()
        states = _lstm_step(total, use.saved("cx"))
    return _of_biases(use, total, states, gradients)


def gru_cell(use: Use, gradients: Gradients) -> PerSample:
    """One step of a GRU on an accelerator: a bias (slots 3 and 4) has the gradient at the gates that it is added to.

    Source: the equations in the documentation of `torch.nn.GRU`; gates in the order reset, update, new.
    """
    entry, hidden = (use.saved(f"{name}_gates") + use.saved(f"{name}_bias") for name in ("input", "hidden"))
    with torch.enable_grad():
        entry.requires_grad_()
        hidden.requires_grad_()
        ones, others = entry.chunk(3, 1), hidden.chunk(3, 1)
        reset, update = (ones[0] + others[0]).sigmoid(), (ones[1] + others[1]).sigmoid()
        state = torch.lerp((ones[2] + reset * others[2]).tanh(), use.saved("hx"), update)
    return _of_biases(use, entry if use.slot == 3 else hidden, [state], gradients)


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell after a step, from the gates (N, 4 H) before their activation and the cell before it."""
    entry, forget, candidate, exit_ = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
    return exit_.sigmoid() * cell.tanh(), cell


def _of_biases(use: Use, gates: Tensor, states: Sequence[Tensor], gradients: Gradients) -> PerSample:
    """The gradients (N, gates) at the gates of a step, from those at the states after it."""
    if use.slot not in (3, 4):
        raise NotCoveredError("not a bias of a recurrent cell")
    if use.layout.axis != 0 or use.layout.samples != len(gates) or use.layout.repeats != 1:
        raise NotCoveredError("the samples are not the batch of the cell")
    ends = [
        (state, found.to(state.dtype)) for state, found in zip(states, gradients, strict=False) if found is not None
    ]
    (found,) = torch.autograd.grad([state for state, _ in ends], gates, [gradient for _, gradient in ends])
    return Dense(found)


Rule = Callable[[Use, Gradients], PerSample]

RULES: Registry[Rule] = Registry(
    "rule",
    {
        "AddBackward0": add,
        "AddcmulBackward0": addcmul,
        "AddmmBackward0": addmm,
        "BaddbmmBackward0": baddbmm,
        "BmmBackward0": bmm,
        "ConvolutionBackward0": convolution,
        "CudnnBatchNormBackward0": batch_norm,
        "DivBackward0": div,
        "EmbeddingBackward0": embedding,
        "EmbeddingBagBackward0": embedding_bag,
        "ExpandBackward0": expand,
        "FusedRmsNormBackward0": rms_norm,
        "IndexBackward0": index,
        "IndexSelectBackward0": index_select,
        "LerpBackward0": lerp,
        "LerpBackward1": lerp,
        "MaskedFillBackward1": masked_fill,
        "MaximumBackward0": larger_or_smaller,
        "MinimumBackward0": larger_or_smaller,
        "MkldnnRnnLayerBackward0": lstm_layer,
        "MmBackward0": mm,
        "MulBackward0": mul,
        "MvBackward0": mv,
        "NativeBatchNormBackward0": batch_norm,
        "NativeGroupNormBackward0": group_norm,
        "NativeLayerNormBackward0": layer_norm,
        "PowBackward1": power,
        "PreluKernelBackward0": prelu,
        "RepeatBackward0": repeat,
        "SubBackward0": sub,
        "ThnnFusedGruCellBackward0": gru_cell,
        "ThnnFusedLstmCellBackward0": lstm_cell,
        "TrilinearBackward0": bilinear,
        "WhereBackward0": where,
    },
)
"""Node name -> rule."""
