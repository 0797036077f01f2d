"""Normalisation layers."""

from __future__ import annotations

import torch

from ... import kernels
from ..factored import Dense, PerSample, sample_slices
from ..graph import Gradients
from ..layout import Layout
from .use import NotCoveredError, Use, output_gradient, sum_to_shape

NORM_BUDGET = 1 << 17
"""Elements of an activation that are normalised at a time, few enough to stay in the cache: half a mebibyte of
float32. Four times as many or a quarter took as long, within noise."""

SUMS = "sums of the output gradient"
"""Key of `Use.memo`: what the weight's rule leaves for the bias, in one pass, since memory is what both wait for."""


def batch_norm(use: Use, gradients: Gradients) -> PerSample:
    """Batch norm with running statistics, or with the statistics of each sample alone (instance norm)."""
    gradient = output_gradient(gradients)
    channels = (1, gradient.shape[1], *[1] * (gradient.dim() - 2))
    if use.slot == 2:
        if SUMS in use.memo:
            return Dense(use.memo[SUMS])
        return sum_to_shape(gradient, use.layout, channels).reshaped(use.shape)
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    if use.setting("training"):
        mean, scale = use.saved("result1"), use.saved("result2")
    else:
        eps = use.number("eps", use.number("epsilon", 0.0))
        mean, scale = use.saved("running_mean"), (use.saved("running_var") + eps).rsqrt()
    image = use.saved("input")
    if use.layout != Layout(0, True, len(image), 1):
        normalised = (image - mean.view(channels)).mul_(scale.view(channels))
        return sum_to_shape(normalised.mul_(gradient), use.layout, channels).reshaped(use.shape)
    if image.dim() > 2:
        found = kernels.centred_products(image, mean, gradient)
        if found is not None:
            products, use.memo[SUMS] = found.unbind()
            return Dense(products.mul_(scale))
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
        return sum_to_shape(gradient, use.layout, use.shape)
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
    return sum_to_shape(normalised.mul_(gradient), use.layout, use.shape)


def group_norm(use: Use, gradients: Gradients) -> PerSample:
    """Group norm: weight (slot 1) and bias (slot 2)."""
    gradient = output_gradient(gradients)
    channels = (1, gradient.shape[1], *[1] * (gradient.dim() - 2))
    if use.slot == 2:
        return sum_to_shape(gradient, use.layout, channels).reshaped(use.shape)
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    mean, scale = use.saved("result1"), use.saved("result2")
    grouped = use.saved("input").reshape(len(gradient), mean.shape[1], -1)
    normalised = (grouped - mean.unsqueeze(2)).mul_(scale.unsqueeze(2)).reshape(gradient.shape)
    return sum_to_shape(normalised.mul_(gradient), use.layout, channels).reshaped(use.shape)


def rms_norm(use: Use, gradients: Gradients) -> PerSample:
    """RMS norm that runs as one node: weight (slot 1)."""
    if use.slot != 1:
        raise NotCoveredError("the normalised tensor itself")
    normalised = use.saved("input") * use.saved("result1")
    return sum_to_shape(normalised.mul_(output_gradient(gradients)), use.layout, use.shape)
