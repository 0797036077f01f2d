"""Tables of which a sample uses a few rows."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from ..factored import PerSample, TableRows
from ..graph import Gradients
from .use import NotCoveredError, Use, output_gradient


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
    if use.slot != 0 or use.layout.axis != 0 or not use.layout.major:
        raise NotCoveredError("the weights of the rows, or bags in another order")
    if use.setting("scale_grad_by_freq"):
        raise NotCoveredError("rows are scaled by their frequency in the batch")
    bags = len(gradient)
    # The last of equal offsets holds the rows: bags before it are empty. A further offset may close the last bag.
    places = torch.arange(len(index), device=index.device)
    bag = torch.searchsorted(use.saved("offsets"), places, right=True) - 1
    counted = index != int(use.number("padding_idx", -1))
    values = gradient[bag] * counted.unsqueeze(1)
    mode = BagMode(int(use.number("mode", 0)))
    if mode is BagMode.MEAN:
        sizes = gradient.new_zeros(bags).index_add_(0, bag, counted.to(gradient.dtype))
        values = values / sizes[bag].clamp(min=1).unsqueeze(1)
    if isinstance(use.setting("per_sample_weights"), Tensor):
        values = values * use.saved("per_sample_weights").unsqueeze(1)
    if mode is BagMode.MAX:
        repeated = (index.unsqueeze(1) == index) & (bag.unsqueeze(1) == bag)
        first = repeated.int().argmax(1) == places
        values = values * ((use.saved("result3")[bag] == index.unsqueeze(1)) & first.unsqueeze(1))
    return ragged_rows(use, values, index, bag // use.layout.repeats)


def counted_up(places: Tensor, size: int) -> Tensor:
    """How often each of the places 0 to `size` - 1 is named, (size,) int64; `bincount` waits for an accelerator."""
    return places.new_zeros(size).index_add_(0, places, torch.ones_like(places))


def ragged_rows(use: Use, values: Tensor, index: Tensor, sample: Tensor) -> TableRows:
    """As `picked_rows` for samples that pick different numbers of rows: the missing ones add zero to row 0.

    Args:
        use: of the table, (V, D).
        values: (T, D), gradient at every picked row.
        index: (T,), the rows.
        sample: (T,), the sample that picked a row, in rising order.
    """
    counts = counted_up(sample, use.layout.samples)
    place = torch.arange(len(index), device=index.device) - (counts.cumsum(0) - counts)[sample]
    shape = (use.layout.samples, max(1, int(counts.max())))
    rows, padded = index.new_zeros(shape), values.new_zeros(*shape, values.shape[1])
    rows[sample, place], padded[sample, place] = index, values
    return TableRows(rows, padded, use.shape[0], use.shape)
