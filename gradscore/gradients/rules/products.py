"""Matrix products and convolutions."""

from __future__ import annotations

from torch import Tensor

from ..convolved import Convolved
from ..factored import Factored, PerSample
from ..graph import Gradients
from .use import NotCoveredError, Use, output_gradient, scaled, sum_to_shape

BILINEAR = ((1, 3), (0,), (1, 2), (2, 3))
"""The axes that `nn.Bilinear` adds to its first input, weight and second input, and those it sums over."""


def addmm(use: Use, gradients: Gradients) -> PerSample:
    """beta * input + alpha * mat1 @ mat2, the usual linear layer with bias."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(scaled(gradient, use.number("beta", 1)), use.layout, use.shape)
    return product(use, scaled(gradient, use.number("alpha", 1)), ("mat1", "mat2")[2 - use.slot])


def mm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2."""
    return product(use, output_gradient(gradients), ("mat2", "self")[use.slot])


def mv(use: Use, gradients: Gradients) -> PerSample:
    """matrix @ vector, the rows of the matrix being samples: the vector (slot 1)."""
    if use.slot != 1:
        raise NotCoveredError("a matrix that meets one vector per sample")
    rows = use.layout.samples_first(use.saved("self")).transpose(1, 2).unsqueeze(1)
    gradient = use.layout.samples_first(output_gradient(gradients))
    return Factored(gradient.unsqueeze(1).unsqueeze(1), rows, use.shape)


def product(use: Use, gradient: Tensor, other: str) -> Factored:
    """The matrix on the right of a product whose rows are samples, or on the left of one whose columns are."""
    factor = use.saved(other)
    right_side = use.layout.axis == 0
    if right_side != (other in ("mat1", "self")):
        raise NotCoveredError("the matrix has a row or column per sample")
    if right_side:
        left, right = use.layout.samples_first(factor), use.layout.samples_first(gradient)
    else:
        left, right = use.layout.samples_first(gradient), use.layout.samples_first(factor)
    return Factored(left.transpose(1, 2).unsqueeze(1), right.transpose(1, 2).unsqueeze(1), use.shape)


def bmm(use: Use, gradients: Gradients) -> PerSample:
    """self @ mat2 for a batch of matrices that is not the batch of samples."""
    return batched_product(use, output_gradient(gradients), ("self", "mat2"), use.slot)


def baddbmm(use: Use, gradients: Gradients) -> PerSample:
    """beta * input + alpha * batch1 @ batch2 for a batch of matrices that is not the batch of samples."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(scaled(gradient, use.number("beta", 1)), use.layout, use.shape)
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
    left, right = use.layout.samples_first(output_gradient(gradients)), use.layout.samples_first(pairs)
    return Factored(left.transpose(1, 2).unsqueeze(1), right.transpose(1, 2).unsqueeze(1), use.shape)


def convolution(use: Use, gradients: Gradients) -> PerSample:
    """Convolutions of one to three dimensions and their transposes: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, (use.shape[0], *[1] * (gradient.dim() - 2))).reshaped(use.shape)
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
