"""Products of float32 matrices on a CUDA device, reduced before they are written; importing this module needs Triton.

One program makes a tile of the product of one sample and leaves a few numbers of it behind. Those of all tiles are put
together in an order that does not change. Nothing is copied to the host, and nothing waits for the device.
"""

# Triton reads the annotations of a kernel itself: `from __future__ import annotations` would hand it names.

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, INNER = 64, 64, 32
"""Rows and columns of a tile, and positions that are multiplied at a time: what the registers of a program hold."""

OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}
"""Of the compiler. Groups of 32 threads that share a tile: with 4 the registers of a thread do not hold its part. And
whether squares are added before they are rounded: left to Triton, last digits would depend on its version."""

KEPT = 6
"""Numbers that a tile leaves behind: its largest and smallest element, sum, sum of squares, sum of magnitudes, and
number of elements."""


@triton.jit(do_not_specialize=["rows", "columns", "inner", "groups", "down", "across"])
def reduce_tiles(
    left,
    right,
    found,
    rows,
    columns,
    inner,
    groups,
    down,
    across,
    left_sample,
    left_group,
    left_row,
    left_inner,
    right_sample,
    right_group,
    right_column,
    right_inner,
    ABOUT_MEAN: tl.constexpr,  # noqa: N803 - Triton's way to write what is known when it compiles
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    NUMBERS: tl.constexpr,  # noqa: N803
):
    """Reduces one tile of one product; squares are those of deviations from the mean of the tile, or from zero."""
    program = tl.program_id(0).to(tl.int64)
    tile = program % (groups * down * across)
    sample, group = program // (groups * down * across), tile // (down * across)
    top, first = (tile // across) % down * HEIGHT, tile % across * WIDTH
    row, column = top + tl.arange(0, HEIGHT), first + tl.arange(0, WIDTH)
    lefts = left + sample * left_sample + group * left_group + row[:, None] * left_row
    rights = right + sample * right_sample + group * right_group + column[None, :] * right_column
    products = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
    for start in range(0, inner, DEPTH):
        place = start + tl.arange(0, DEPTH).to(tl.int64)
        one_mask = (row[:, None] < rows) & (place[None, :] < inner)
        other_mask = (place[:, None] < inner) & (column[None, :] < columns)
        one = tl.load(lefts + place[None, :] * left_inner, mask=one_mask, other=0.0)
        other = tl.load(rights + place[:, None] * right_inner, mask=other_mask, other=0.0)
        # The usual precision of a device is that of its tensor cores, which keep ten bits of a number.
        products = tl.dot(one, other, products, input_precision="ieee")
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    # Squares of float32 stay in the range of float64. Beyond the edges infinity times zero would be NaN.
    values = tl.where(inside, products.to(tl.float64), 0.0)
    total = tl.sum(tl.sum(values, axis=1), axis=0)
    count = (tl.minimum(rows - top, HEIGHT) * tl.minimum(columns - first, WIDTH)).to(tl.float64)
    apart = values
    if ABOUT_MEAN:
        apart = tl.where(inside, values - total / count, 0.0)
    into = found + program * NUMBERS
    tl.store(into, tl.max(tl.max(tl.where(inside, values, float("-inf")), axis=1), axis=0))
    tl.store(into + 1, tl.min(tl.min(tl.where(inside, values, float("inf")), axis=1), axis=0))
    tl.store(into + 2, total)
    tl.store(into + 3, tl.sum(tl.sum(apart * apart, axis=1), axis=0))
    tl.store(into + 4, tl.sum(tl.sum(tl.abs(values), axis=1), axis=0))
    tl.store(into + 5, count)


def product_moments(left: Tensor, right: Tensor, *, about_mean: bool) -> Tensor:
    """See `kernels.product_moments`; what is given can be computed here."""
    samples, groups, rows, inner = left.shape
    columns = right.shape[2]
    down, across = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    tiles = groups * down * across
    found = torch.empty(samples, tiles, KEPT, dtype=torch.float64, device=left.device)
    sizes, strides = (rows, columns, inner, groups, down, across), (*left.stride(), *right.stride())
    settings = {"ABOUT_MEAN": about_mean, "HEIGHT": ROWS, "WIDTH": COLUMNS, "DEPTH": INNER, "NUMBERS": KEPT}
    with torch.cuda.device_of(left):
        reduce_tiles[(samples * tiles,)](left, right, found, *sizes, *strides, **settings, **OPTIONS)
    return _joined(found, groups * rows * columns, about_mean=about_mean)


def _joined(found: Tensor, elements: int, *, about_mean: bool) -> Tensor:
    """The moments (n, 5) of samples from what the tiles of each left behind, (n, tiles, KEPT).

    Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    largest, smallest, totals, squares, magnitudes, counts = found.unbind(2)
    mean, magnitude, deviations = totals.sum(1) / elements, magnitudes.sum(1), squares.sum(1)
    if about_mean:
        deviations = deviations + (counts * (totals / counts - mean.unsqueeze(1)).square()).sum(1)
    # Devices do not hand NaN on from comparisons; from a sum of magnitudes they do.
    ends = [torch.where(magnitude.isnan(), torch.nan, each) for each in (largest.amax(1), smallest.amin(1))]
    return torch.stack([*ends, mean, deviations.sqrt(), magnitude], 1)
