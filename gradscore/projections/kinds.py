"""Random projections of gradients, by kind: linear maps that take the gradients of one parameter at a time.

What is random is determined by a seed and a name: word i of a key is the i-th number of the generator SplitMix64 from
the state `key`.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 16 (SplitMix64).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from .. import kernels
from ..errors import ConfigError
from ..gradients import Convolved, Factored, PerSample, Sink, TableRows, Total, sample_slices
from ..system import closest, is_whole

WORD = 64
"""Bits of a word."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(seed: int, *names: str) -> int:
    """The key of a stream of random words, below 2**64, from a seed and what the words are for.

    Example:
        >>> key_of(0, "sparse", "conv.weight") == key_of(0, "sparse", "conv.weight")
        True
    """
    text = "\n".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def words(key: int, places: Tensor) -> Tensor:
    """Random words of 64 bits.

    Args:
        key: of the stream.
        places: int64, which words.

    Returns:
        int64 of the same shape and device; its bits are the word.

    Example:
        >>> words(1234567, torch.arange(2)).tolist()
        [6457827717110365317, 3203168211198807973]
    """
    mixed = (places + 1) * _signed(_GOLDEN) + _signed(key)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(_FIRST)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(_SECOND)
    return mixed ^ _shifted(mixed, 31)


def sign_rows(key: int, *, first: int, count: int, dim: int, like: Tensor) -> Tensor:
    """Random signs, `dim` for each element.

    Args:
        key: of the stream.
        first: the first element.
        count: how many elements.
        dim: signs of an element; they are the bits of words of its own.
        like: gives device and dtype.

    Returns:
        (count, dim), -1 where a bit is set and 1 elsewhere, lowest bit first.
    """
    found = kernels.sign_rows(key, first=first, count=count, dim=dim) if like.device.type == "cpu" else None
    if found is None:
        return signs_of(key, torch.arange(first, first + count, device=like.device), dim=dim, like=like)
    return found.to(like.dtype)


def signs_of(key: int, elements: Tensor, *, dim: int, like: Tensor) -> Tensor:
    """As `sign_rows`, of any elements.

    Args:
        key: of the stream.
        elements: int64, numbers of elements.
        dim: signs of an element.
        like: gives the dtype.

    Returns:
        (*shape of the elements, dim), on their device.
    """
    each = -(-dim // WORD)
    places = elements.unsqueeze(-1) * each + torch.arange(each, device=elements.device)
    bits = _shifted(words(key, places).unsqueeze(-1), torch.arange(WORD, device=elements.device)) & 1
    return (1 - 2 * bits.flatten(-2)[..., :dim]).to(like.dtype)


def run_signs_and_places(key: int, elements: Tensor, *, dim: int) -> tuple[Tensor, Tensor]:
    """Signs of elements, and the places from 0 to `dim` + 63 they go to; see `kernels.add_runs`.

    Args:
        key: of the stream.
        elements: int64, numbers of elements.
        dim: places that a run of elements may begin at.

    Returns:
        int64 of the shape of `elements` each.
    """
    runs, inside = elements.div(kernels.RUN, rounding_mode="floor"), elements % kernels.RUN
    signs = 1 - 2 * (_shifted(words(key, 2 * runs), inside) & 1)
    starts = _shifted(_shifted(words(key, 2 * runs + 1), 32) * dim, 32)
    return signs, starts + inside


def place_of(key: int, dim: int) -> int:
    """One random place from 0 to `dim` - 1: the first word of a stream."""
    return int(_shifted(_shifted(words(key, torch.zeros(1, dtype=torch.int64)), 32) * dim, 32))


def _signed(word: int) -> int:
    """The word as int64 has it."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(values: Tensor, by: int | Tensor) -> Tensor:
    """Shifted to the right with zeros coming in, though int64 has a sign."""
    if isinstance(by, int):  # which would be copied to an accelerator as a tensor
        return (values >> by) & ((1 << (64 - by)) - 1)
    mask = torch.where(by == 0, -1, (torch.ones_like(by) << (64 - by)) - 1)
    return (values >> by) & mask


class Projection(ABC):
    """A fixed linear map from the gradient of a whole network to `dim` numbers, given parameter by parameter.

    The map is a matrix P = [P_1 P_2 ...] with a block of columns for each parameter, and P g = P_1 g_1 + P_2 g_2 + ...:
    what is added up never needs more than the gradients of one parameter.

    Attributes:
        dim: the number of rows of P.
    """

    dim: int

    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the projections of `samples` samples are added up in, one row each."""
        return torch.zeros(samples, self.dim, dtype=dtype, device=device)

    def finished(self, sums: Tensor) -> Tensor:
        """The projections (N, dim) of all that was added to what `blank` gave."""
        return sums

    def add(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        """Adds the projections of the gradients of one parameter.

        Args:
            name: of the parameter.
            gradient: of n samples.
            sums: their n rows of what `blank` gave.
        """
        if isinstance(gradient, Total):
            for part in gradient.parts:
                self.add(name, part, sums)
        else:
            self.add_one(name, gradient, sums)

    def sink(self, sums: Tensor) -> Sink:
        """What adds the gradients of a batch to `sums`; see `Engine.stream`."""

        def take(name: str, rows: slice, gradient: PerSample) -> None:
            self.add(name, gradient, sums[rows])

        return take

    @abstractmethod
    def add_one(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        """As `add`, of gradients that are no sum of several."""


WRITTEN_OUT = 1 << 25
"""Elements of gradients that are written out at a time, 128 MiB of float32: the more samples meet the same columns of
the matrix, the less their making counts."""

COLUMNS = 1 << 20
"""Entries of the matrix at a time, 4 MiB of float32. Signs are made at 5 a nanosecond by one thread; a product with 64
samples takes 1.6 ns for each."""


class DenseProjection(Projection):
    """A projection with a matrix that is there, or made, a few columns at a time."""

    @abstractmethod
    def columns(self, name: str, elements: slice, *, like: Tensor) -> Tensor:
        """The columns of some elements of a parameter, (elements, dim), of the dtype and on the device of `like`."""

    @abstractmethod
    def columns_of(self, name: str, elements: Tensor, *, like: Tensor) -> Tensor:
        """As `columns`, of any elements: int64 on the device of `like`, and (*their shape, dim)."""

    @override
    def add_one(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        if isinstance(gradient, TableRows):
            self._add_table(name, gradient, sums)
            return
        elements = prod(gradient.shape)
        for rows in sample_slices(len(gradient), elements, WRITTEN_OUT):
            values = gradient.dense(rows).reshape(rows.stop - rows.start, elements).to(sums.dtype)
            self._add_elements(name, 0, values, sums[rows])

    def _add_elements(self, name: str, first: int, values: Tensor, sums: Tensor) -> None:
        """Adds the projections of elements `first` and following, `values` (n, p)."""
        step = max(1, COLUMNS // self.dim)
        for start in range(0, values.shape[1], step):
            part = values[:, start : start + step]
            sums.addmm_(part, self.columns(name, slice(first + start, first + start + part.shape[1]), like=sums))

    def _add_table(self, name: str, gradient: TableRows, sums: Tensor) -> None:
        """Only the rows of the table that a sample uses."""
        if gradient.device.type != "cpu":
            self._add_uses(name, gradient, sums)
            return
        width = gradient.values.shape[2]
        for row in sorted(set(gradient.index.flatten().tolist())):
            uses = (gradient.index == row).to(sums.dtype)
            values = torch.bmm(uses.unsqueeze(1), gradient.values.to(sums.dtype)).squeeze(1)
            self._add_elements(name, row * width, values, sums)

    def _add_uses(self, name: str, gradient: TableRows, sums: Tensor) -> None:
        """As `_add_table`, use by use, for which nobody on the host has to know the rows."""
        uses, width = gradient.values.shape[1:]
        inside = torch.arange(width, device=gradient.device)
        for rows in sample_slices(len(gradient), width * self.dim, COLUMNS):
            for use in range(uses):
                elements = gradient.index[rows, use, None] * width + inside
                values = gradient.values[rows, use].to(sums.dtype).unsqueeze(1)
                sums[rows] += (values @ self.columns_of(name, elements, like=sums)).squeeze(1)


class Rademacher(DenseProjection):
    """P has entries 1 and -1, each with probability 1/2, over the root of `dim`.

    The product of two projections is that of the gradients g and h on average over seeds, with a variance of at most
    (|g|^2 |h|^2 + (g h)^2) / dim. It costs `dim` products for each parameter and sample.

    Args:
        dim: numbers for each sample.
        seed: of the signs.

    Source: Achlioptas 2003, "Database-friendly random projections: Johnson-Lindenstrauss with binary coins", theorem 2.
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self._seed = dim, seed

    @override
    def columns(self, name: str, elements: slice, *, like: Tensor) -> Tensor:
        key = key_of(self._seed, "rademacher", name)
        return sign_rows(key, first=elements.start, count=elements.stop - elements.start, dim=self.dim, like=like)

    @override
    def columns_of(self, name: str, elements: Tensor, *, like: Tensor) -> Tensor:
        return signs_of(key_of(self._seed, "rademacher", name), elements, dim=self.dim, like=like)

    @override
    def finished(self, sums: Tensor) -> Tensor:
        return sums / sqrt(self.dim)


IN_CACHE = 1 << 20
"""Elements of gradients that are written out at a time: 4 MiB of float32, which the cache holds."""


class Sparse(Projection):
    """Every element of a gradient is added to one of `dim` numbers, with a random sign.

    Runs of 64 elements of a parameter go to 64 numbers that follow on each other (after the last comes the first), from
    a random one on, so that elements of one run never meet. The product of two projections is that of the gradients g
    and h on average over seeds, with a variance of at most (|g|^2 |h|^2 + (g h)^2) / dim, as with dense signs; only
    rare deviations are larger. It costs one addition for each parameter and sample.

    Args:
        dim: numbers for each sample, 64 at least.
        seed: of the signs and places.

    Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams", section 3 (the sketch);
        Weinberger, Dasgupta, Langford, Smola, Attenberg 2009, "Feature hashing for large scale multitask learning",
        lemma 2 (products).
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self._seed = dim, seed

    @override
    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(samples, self.dim + kernels.RUN, dtype=dtype, device=device)

    @override
    def finished(self, sums: Tensor) -> Tensor:
        found = sums[:, : self.dim].clone()
        found[:, : kernels.RUN] += sums[:, self.dim :]
        return found

    @override
    def add_one(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        if isinstance(gradient, TableRows):
            self._add(name, gradient.values.to(sums.dtype), gradient.index * gradient.values.shape[2], sums)
            return
        elements = prod(gradient.shape)
        firsts = torch.zeros(len(gradient), 1, dtype=torch.int64, device=sums.device)
        for rows in sample_slices(len(gradient), elements, IN_CACHE):
            values = gradient.dense(rows).reshape(rows.stop - rows.start, 1, elements).to(sums.dtype)
            self._add(name, values, firsts[rows], sums[rows])

    def _add(self, name: str, values: Tensor, firsts: Tensor, sums: Tensor) -> None:
        """Adds parts (n, t, p) of gradients that begin with the elements `firsts` (n, t)."""
        key = key_of(self._seed, "sparse", name)
        if kernels.add_runs(values.contiguous(), firsts, key=key, dim=self.dim, found=sums):
            return
        for use in range(values.shape[1]):
            elements = firsts[:, use, None] + torch.arange(values.shape[2], device=sums.device)
            signs, places = run_signs_and_places(key, elements, dim=self.dim)
            sums.scatter_add_(1, places, values[:, use] * signs)


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
    height, width = sides.left.shape[1], sides.right.shape[1]
    projected_sizes = len(sides.left) + len(sides.right)
    positions = _positions(gradient, sides) if isinstance(gradient, Convolved | Factored) else None
    if positions is not None:
        elements, through = projected_sizes * positions, _of_factors
    elif isinstance(gradient, TableRows) and (gradient.height, gradient.values.shape[2]) == (height, width):
        elements, through = projected_sizes * gradient.index.shape[1], _of_table
    else:
        elements, through = height * width, _of_written_out
    slices = sample_slices(len(gradient), elements, WORKED_ON)
    return [(rows, through(gradient, rows, sides).flatten(1)) for rows in slices]


def _positions(gradient: Convolved | Factored, sides: _Sides) -> int | None:
    """Outer products that a gradient is the sum of, in all groups, where it is best projected by its factors.

    The rows of the matrix are then those of the first factor, and its columns those of the second; and projecting these
    takes fewer multiplications than forming the matrix and projecting that. None elsewhere.
    """
    if isinstance(gradient, Factored):
        groups, out, inner = gradient.left.shape[1], gradient.left.shape[2], gradient.right.shape[2]
        positions = groups * gradient.left.shape[3]
    else:
        groups, out = gradient.left.shape[2:4]
        inner = gradient.image.shape[2] // groups * prod(gradient.kernel)
        positions = prod(gradient.left.shape[1:3]) * prod(gradient.left.shape[4:])
    (tall, height), (wide, width) = sides.left.shape, sides.right.shape
    if (groups * out, inner) != (height, width):
        return None
    factors = positions * (tall * height // groups + wide * width + tall * wide)
    return positions if factors <= positions * height // groups * width + tall * width * (height + wide) else None


def _of_written_out(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    matrices = gradient.dense(rows).reshape(-1, sides.left.shape[1], sides.right.shape[1]).to(sides.left.dtype)
    return sides.left @ matrices @ sides.right.t()


def _of_table(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    assert isinstance(gradient, TableRows)
    left = sides.left.t()[gradient.index[rows]]
    right = gradient.values[rows].to(sides.left.dtype) @ sides.right.t()
    return left.transpose(1, 2) @ right


def _of_factors(gradient: PerSample, rows: slice, sides: _Sides) -> Tensor:
    assert isinstance(gradient, Convolved | Factored)
    one = gradient.left[rows]
    one = one if isinstance(gradient, Factored) else one.movedim(1, 3).flatten(3)  # (n, groups, out, positions)
    other = _rights(gradient, rows, sides.right)
    groups, out, positions = one.shape[1:]
    by_group = sides.left.view(-1, groups, out).transpose(0, 1)
    left = (by_group @ one.to(sides.left.dtype)).transpose(1, 2).flatten(2)  # (n, k, groups * positions)
    return left @ other.transpose(2, 3).reshape(len(left), groups * positions, -1)


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


SMALLEST, LARGEST = 64, 8192
"""Numbers that a gradient may be projected to."""

KINDS: dict[str, Callable[[int, int], Projection]] = {
    "rademacher": Rademacher,
    "sparse": Sparse,
    "factored": TwoSided,
}
"""From a dimension and a seed to a projection, by the name of its kind."""


def make_projection(kind: str, dim: int, seed: int) -> Projection:
    """The projection of a kind.

    Args:
        kind: a name in `KINDS`.
        dim: of the projection, from `SMALLEST` to `LARGEST`.
        seed: of what is random.

    Raises:
        ConfigError: no such kind, or another dimension or seed.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: unknown kind of projection '{kind}'; {closest(kind, list(KINDS))}")
    if not is_whole(dim) or not SMALLEST <= dim <= LARGEST:
        raise ConfigError(f"dim: wanted a whole number from {SMALLEST} to {LARGEST}, got {dim!r}")
    if not is_whole(seed):
        raise ConfigError(f"seed: wanted a whole number, got {seed!r}")
    return KINDS[kind](int(dim), int(seed))
