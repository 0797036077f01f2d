"""Sums, products and repetitions of a parameter that is broadcast over the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..factored import Dense, PerSample
from ..graph import Gradients
from .use import NotCoveredError, Use, output_gradient, sum_to_shape


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


def addcmul(use: Use, gradients: Gradients) -> PerSample:
    """self + value * tensor1 * tensor2, broadcast."""
    gradient = output_gradient(gradients)
    if use.slot == 0:
        return sum_to_shape(gradient, use.layout, use.shape)
    other = use.saved(("tensor1", "tensor2")[2 - use.slot])
    return sum_to_shape(gradient * other * use.number("value", 1), use.layout, use.shape)


def power(use: Use, gradients: Gradients) -> PerSample:
    """self ** exponent, broadcast, the exponent being a tensor."""
    gradient, base = output_gradient(gradients), use.saved("self")
    if use.slot == 0:
        exponent = use.saved("exponent")
        slope = torch.where(exponent == 0, 0, exponent * base.pow(exponent - 1))
    else:
        # Zero to any power above zero stays zero: its slope is zero, where the logarithm is not.
        slope = torch.where((base == 0) & (use.saved("exponent") >= 0), 0, use.saved("result") * base.log())
    return sum_to_shape(gradient * slope, use.layout, use.shape)


def lerp(use: Use, gradients: Gradients) -> PerSample:
    """self + weight * (end - self), broadcast."""
    gradient, weight = output_gradient(gradients), use.setting("weight")
    share = weight.detach() if isinstance(weight, Tensor) else use.number("weight", 0.0)
    slope = (1 - share, share)[use.slot] if use.slot < 2 else use.saved("end") - use.saved("self")
    return sum_to_shape(gradient * slope, use.layout, use.shape)


def maximum(use: Use, gradients: Gradients) -> PerSample:
    """The larger of self and other, broadcast; equal ones get half the gradient each."""
    return _larger(use, gradients, sign=1)


def minimum(use: Use, gradients: Gradients) -> PerSample:
    """The smaller of self and other, broadcast; equal ones get half the gradient each."""
    return _larger(use, gradients, sign=-1)


def _larger(use: Use, gradients: Gradients, *, sign: int) -> PerSample:
    lead = sign * (use.saved("self") - use.saved("other")) * (1 if use.slot == 0 else -1)
    gradient = output_gradient(gradients)
    share = torch.heaviside(lead, lead.new_full((), 0.5)).to(gradient.dtype)
    return sum_to_shape(gradient * share, use.layout, use.shape)


def masked_fill(use: Use, gradients: Gradients) -> PerSample:
    """One number (slot 1) where a mask holds."""
    mask = use.saved("mask")
    chosen = ~mask if use.slot == 0 else mask
    return sum_to_shape(output_gradient(gradients) * chosen, use.layout, use.shape)


def where(use: Use, gradients: Gradients) -> PerSample:
    """One tensor where a condition holds, another one elsewhere, broadcast."""
    gradient, condition = output_gradient(gradients), use.saved("condition")
    chosen = condition if use.slot == 0 else ~condition
    return sum_to_shape(gradient * chosen, use.layout, use.shape)


def prelu(use: Use, gradients: Gradients) -> PerSample:
    """max(0, x) + weight * min(0, x)."""
    negative = use.saved("self").clamp(max=0)
    if use.slot != 1:
        raise NotCoveredError("the input of the activation")
    return sum_to_shape(negative.mul_(output_gradient(gradients)), use.layout, use.shape)


def expand(use: Use, gradients: Gradients) -> PerSample:
    """A tensor repeated along axes of size one."""
    return sum_to_shape(output_gradient(gradients), use.layout, use.shape)


def repeat(use: Use, gradients: Gradients) -> PerSample:
    """A tensor tiled along its axes, the axis of the samples among them."""
    gradient, axis = output_gradient(gradients), use.layout.axis
    times = use.sizes("repeats")
    shape = (1,) * (len(times) - len(use.shape)) + use.shape
    if use.layout.neighbours > 1 or times[axis] % use.layout.samples or not (use.layout.major or shape[axis] == 1):
        raise NotCoveredError("the tiles are not whole samples")
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
