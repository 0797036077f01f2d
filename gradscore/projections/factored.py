"""Projection of both sides of the products that the gradients of weights are made of."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from ..gradients import Convolved, Factored, PerSample, TableRows, sample_slices
from .projection import Projection
from .randomness import key_of, place_of, sign_rows
from .sparse import Sparse

WORKED_ON = 1 << 22
"""Elements of projected factors, or of gradients written out, at a time: 16 MiB of float32."""

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class TwoSided(Projection):
    """Gradients of weights, taken as matrices G, become A G B^T, with random matrices A and B for each parameter.

    A has up to the root of `dim` rows, and B as many; a side that is shorter keeps all its entries, with a random sign
    each, and leaves its room to the other. The result is added up for all parameters, from a random place on. Where a
    gradient is a sum of products of two vectors, as in linear layers and convolutions, these are projected and G is
    never formed. Biases and other vectors are projected as by `Sparse`.

    The product of two projections is that of the gradients on average over seeds. Its variance depends on the rank of
    G: with many positions it comes close to that of the others, with one position (rank one) it is that of a projection
    to the root of `dim`.

    Args:
        dim: numbers for each sample.
        seed: of the signs.

    Source: Choe, Ahn, Bae, Zhao, Kang, Chung, Pratapa, Neiswanger, Strubell, Mitamura, Schneider, Hovy, Grosse, Xing
        2024, "What is your data worth to GPT? LLM-scale data valuation with influence functions", section 3.1 (LoGra).
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self._seed = dim, seed
        self._vectors = Sparse(dim, seed)
        self._known: dict[tuple[str, int, int, torch.dtype, torch.device], _Sides] = {}

    @override
    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._vectors.blank(samples, dtype=dtype, device=device)

    @override
    def finished(self, sums: Tensor) -> Tensor:
        return self._vectors.finished(sums)

    @override
    def add_one(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        height, width = gradient.shape[0] if gradient.shape else 1, prod(gradient.shape[1:])
        if height == 1 or width == 1:
            self._vectors.add_one(name, gradient, sums)
            return
        sides = self._sides(name, height, width, sums)
        for rows, block in _projected(gradient, sides):
            size = min(block.shape[1], self.dim - sides.place)
            sums[rows, sides.place : sides.place + size] += block[:, :size]
            sums[rows, : block.shape[1] - size] += block[:, size:]

    def _sides(self, name: str, height: int, width: int, like: Tensor) -> _Sides:
        known = (name, height, width, like.dtype, like.device)
        if known not in self._known:
            tall, wide = allotted(self.dim, height, width)
            self._known[known] = _Sides(
                _side(key_of(self._seed, "factored left", name), tall, height, like),
                _side(key_of(self._seed, "factored right", name), wide, width, like),
                place_of(key_of(self._seed, "factored place", name), self.dim),
            )
        return self._known[known]


@dataclass(frozen=True)
class _Sides:
    """A (k, height) and B (l, width), and where the k * l products begin."""

    left: Tensor
    right: Tensor
    place: int


def allotted(dim: int, height: int, width: int) -> tuple[int, int]:
    """How many of `dim` numbers the two sides of a matrix get: k and l, with k * l at most `dim`.

    Example:
        >>> allotted(4096, 512, 4608), allotted(4096, 10, 512), allotted(4096, 16, 27)
        ((64, 64), (10, 409), (16, 27))
    """
    root = isqrt(dim)
    if height <= root:
        return height, min(width, dim // height)
    if width <= root:
        return min(height, dim // width), width
    return root, min(width, dim // root)


def _side(key: int, rows: int, size: int, like: Tensor) -> Tensor:
    """(rows, size): signs on the diagonal where all entries are kept, else dense ones over the root of `rows`."""
    if rows == size:
        return torch.diag(sign_rows(key, first=0, count=1, dim=size, like=like)[0])
    return sign_rows(key, first=0, count=rows, dim=size, like=like) / sqrt(rows)


def _projected(gradient: PerSample, sides: _Sides) -> list[tuple[slice, Tensor]]:
    """A G B^T of all samples, (n, k * l), a few at a time."""
    if isinstance(gradient, Convolved | Factored) and _fits(gradient, sides) and _is_cheaper(gradient, sides):
        elements = (len(sides.left) + len(sides.right)) * _positions(gradient)
        through = _of_factors
    elif isinstance(gradient, TableRows) and (gradient.height, gradient.values.shape[2]) == _sizes(sides):
        elements = (len(sides.left) + len(sides.right)) * gradient.index.shape[1]
        through = _of_table
    else:
        elements, through = prod(gradient.shape), _of_written_out
    slices = sample_slices(len(gradient), elements, WORKED_ON)
    return [(rows, through(gradient, rows, sides).flatten(1)) for rows in slices]


def _of_written_out(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    matrices = gradient.dense(rows).reshape(-1, *_sizes(sides)).to(sides.left.dtype)
    return sides.left @ matrices @ sides.right.t()


def _of_table(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    assert isinstance(gradient, TableRows)
    left = sides.left.t()[gradient.index[rows]]
    right = gradient.values[rows].to(sides.left.dtype) @ sides.right.t()
    return left.transpose(1, 2) @ right


def _of_factors(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    assert isinstance(gradient, Convolved | Factored)
    one, other = _lefts(gradient, rows), _rights(gradient, rows, sides.right)
    groups, out, positions = one.shape[1:]
    by_group = sides.left.view(-1, groups, out).transpose(0, 1)
    left = (by_group @ one.to(sides.left.dtype)).transpose(1, 2).flatten(2)  # (n, k, groups * positions)
    return left @ other.transpose(2, 3).reshape(len(left), groups * positions, -1)


def _lefts(gradient: Convolved | Factored, rows: slice) -> Tensor:
    """(n, groups, out, positions)."""
    if isinstance(gradient, Factored):
        return gradient.left[rows]
    return gradient.left[rows].movedim(1, 3).flatten(3)


def _rights(gradient: Convolved | Factored, rows: slice, right: Tensor) -> Tensor:
    """B times the other factor, (n, groups, l, positions): a convolution, where that is made of windows."""
    if isinstance(gradient, Factored):
        return right @ gradient.right[rows].to(right.dtype)
    groups, spatial = gradient.left.shape[2], tuple(gradient.left.shape[4:])
    images = gradient.image[rows].to(right.dtype)
    count, repeats, channels = images.shape[:3]
    kernels = right.view(len(right), channels // groups, *gradient.kernel)
    found = CONVOLUTIONS[len(gradient.kernel)](
        images.reshape(count * repeats * groups, channels // groups, *images.shape[3:]),
        kernels,
        stride=gradient.stride,
        padding=gradient.padding,
        dilation=gradient.dilation,
    )
    for axis, size in enumerate(spatial):  # windows beyond the positions, as a transposed convolution may have
        found = found.narrow(axis + 2, 0, size)
    return found.reshape(count, repeats, groups, len(right), *spatial).movedim(1, 3).flatten(3)


def _sizes(sides: _Sides) -> tuple[int, int]:
    return sides.left.shape[1], sides.right.shape[1]


def _positions(gradient: Convolved | Factored) -> int:
    """Outer products that a gradient is the sum of, in all groups."""
    if isinstance(gradient, Factored):
        return gradient.left.shape[1] * gradient.left.shape[3]
    return prod(gradient.left.shape[1:3]) * prod(gradient.left.shape[4:])


def _fits(gradient: Convolved | Factored, sides: _Sides) -> bool:
    """Whether the rows of the matrix are those of the first factor, and its columns those of the second."""
    if isinstance(gradient, Factored):
        groups, out, inner = gradient.left.shape[1], gradient.left.shape[2], gradient.right.shape[2]
    else:
        groups, out = gradient.left.shape[2:4]
        inner = gradient.image.shape[2] // groups * prod(gradient.kernel)
    return (groups * out, inner) == _sizes(sides)


def _is_cheaper(gradient: Convolved | Factored, sides: _Sides) -> bool:
    """Whether projecting the factors takes fewer multiplications than forming the matrix and projecting that."""
    (height, width), positions = _sizes(sides), _positions(gradient)
    tall, wide = len(sides.left), len(sides.right)
    groups = gradient.left.shape[1 if isinstance(gradient, Factored) else 2]
    factors = positions * (tall * height // groups + wide * width + tall * wide)
    return factors <= positions * height // groups * width + tall * width * (height + wide)
