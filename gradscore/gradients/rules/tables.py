"""Tables of which a sample uses a few rows."""

from __future__ import annotations

import torch

from ..factored import PerSample, Rows
from ..graph import Gradients
from .use import NotCovered, Use, output_gradient


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
