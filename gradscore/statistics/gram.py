"""Euclidean norms of sums of outer products from the scalar products of their factors, without the products."""

from __future__ import annotations

import torch
from torch import Tensor

from ..gradients import Factored, sample_slices
from ..system import SQUARABLE
from .moments import Array, native

TILE = 128
"""Positions whose scalar products with others are taken at a time: what is symmetric is computed once.

8 gradients of 3072 x 768 with 256 positions took 36 ms; 48 ms with tiles of 256, 46 ms with tiles of 32.
"""

GRAM_ELEMENTS = 1 << 22
"""Scalar products held at a time, 16 MiB of float32."""

TRUSTED = 1e-2
"""A squared norm at least this large beside the sum of those of the single outer products has all its digits.

The rounding of scalar products is of the size of that sum: float32 rounds by 6e-8, so the norm is good to about 3e-6.
"""


def is_cheaper(gradient: Factored) -> bool:
    """Whether scalar products of the factors take fewer multiplications than the products.

    Of S positions all pairs are wanted once, S (S + 1) / 2 of them: in tiles, of which those on the diagonal are
    computed as a whole, (S + min(S, `TILE`)) (O + I) has to be below 2 O I.
    """
    height, positions = gradient.left.shape[2:]
    width = gradient.right.shape[2]
    return (positions + min(positions, TILE)) * (height + width) < 2 * height * width


def norms(gradient: Factored) -> tuple[Array, Array]:
    """The Euclidean norm of every sample, |sum over s of l_s r_s'|^2 = sum over s and t of (l_s'l_t) (r_s'r_t).

    Args:
        gradient: on the CPU, with one position or more.

    Returns:
        (N,) float64, and for which samples (N,) digits are lost: the outer products cancel, or squares leave the range.

    Source: Goodfellow 2015, "Efficient per-example gradient computations", for one position; Li, Tramer, Liang,
        Hashimoto 2022, "Large language models can be strong differentially private learners", section 4, for several.
    """
    samples, groups, _, positions = gradient.left.shape
    left, right = (each.transpose(2, 3).flatten(0, 1) for each in (gradient.left, gradient.right))
    squares, alone, largest = (left.new_zeros(len(left), dtype=torch.float64) for _ in range(3))
    for rows in sample_slices(len(left), TILE * positions, GRAM_ELEMENTS):
        for tops, bottoms, weight in _tiles(positions):
            one, other = _products(left[rows], tops, bottoms), _products(right[rows], tops, bottoms)
            if weight == 1:
                diagonals = [each.diagonal(dim1=1, dim2=2).double() for each in (one, other)]
                alone[rows] += (diagonals[0] * diagonals[1]).sum(1)
                largest[rows] = torch.maximum(largest[rows], torch.stack(diagonals).amax((0, 2)))
            squares[rows] += weight * (one.double() * other.double()).flatten(1).sum(1)
    squares, alone = squares.view(samples, groups).sum(1), alone.view(samples, groups).sum(1)
    # Scalar products below the range are lost: harmless beside a square as large as the largest of them times the
    # smallest number that keeps its digits.
    floor = SQUARABLE[left.dtype][0] ** 2 * largest.view(samples, groups).amax(1)
    trusted = squares.isfinite() & (squares > floor) & (squares >= TRUSTED * alone)
    return native(squares.clamp(min=0).sqrt()), native(~trusted)


def _tiles(positions: int) -> list[tuple[slice, slice, int]]:
    """Tiles on and below the diagonal, and how often each counts."""
    cuts = [slice(start, min(start + TILE, positions)) for start in range(0, positions, TILE)]
    return [(top, bottom, 1 if top == bottom else 2) for top in cuts for bottom in cuts if bottom.start <= top.start]


def _products(factor: Tensor, tops: slice, bottoms: slice) -> Tensor:
    """Scalar products of positions of a factor (n, S, ...)."""
    return torch.bmm(factor[:, tops], factor[:, bottoms].transpose(1, 2))
