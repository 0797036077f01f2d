"""The forms in which a rule returns per-sample gradients, from the cheapest to the most explicit.

All forms answer the same few questions, so that nobody has to know which one is at hand: how many samples, the shape of
one sample's gradient, its blocks (for statistics, where the order of the elements does not matter), and the gradients
of a few samples written out (for everything else). Blocks live in one buffer that is used again: whoever wants to keep
a block copies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from .. import kernels

Block = tuple[slice, Tensor]
"""Samples, and (samples, elements) or (parts, samples, elements) of their gradients."""


class PerSample(ABC):
    """Per-sample gradients of one parameter."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the gradient of one sample."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the gradients are."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @property
    def implicit_zeros(self) -> int:
        """Elements per sample that the blocks leave out because they are zero."""
        return 0

    @abstractmethod
    def blocks(self, budget: int) -> Iterator[Block]:
        """All elements of all samples, a few samples at a time, in blocks of about `budget` elements."""

    @abstractmethod
    def dense(self, rows: slice) -> Tensor:
        """The gradients of some samples written out, (n, *shape)."""

    @abstractmethod
    def reshaped(self, shape: tuple[int, ...]) -> PerSample:
        """The same elements in the same order under another shape."""


def sample_slices(samples: int, elements: int, budget: int) -> Iterator[slice]:
    """Cuts `samples` into slices so that a slice has about `budget` elements, one sample at least."""
    step = max(1, budget // max(1, elements))
    for start in range(0, samples, step):
        yield slice(start, min(start + step, samples))


@dataclass(frozen=True)
class Dense(PerSample):
    """Gradients written out: `values` is (N, *shape)."""

    values: Tensor

    @property
    @override
    def device(self) -> torch.device:
        return self.values.device

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    @override
    def __len__(self) -> int:
        return self.values.shape[0]

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        for rows in sample_slices(len(self), prod(self.shape), budget):
            yield rows, self.values[rows].reshape(rows.stop - rows.start, -1)

    @override
    def dense(self, rows: slice) -> Tensor:
        return self.values[rows]

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Dense:
        return Dense(self.values.reshape(len(self), *shape))


@dataclass(frozen=True)
class Factored(PerSample):
    """Sums over positions of outer products: gradient[g, o, i] = sum over s of left[g, o, s] * right[g, i, s].

    Attributes:
        left: (N, G, O, S).
        right: (N, G, I, S).
        sizes: shape of the gradient of one sample, G * O * I elements in that order.
    """

    left: Tensor
    right: Tensor
    sizes: tuple[int, ...]

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    @override
    def device(self) -> torch.device:
        return self.left.device

    @override
    def __len__(self) -> int:
        return self.left.shape[0]

    @property
    def is_outer_product(self) -> bool:
        """True for one group and one position: a plain outer product, of which statistics have closed forms."""
        return self.left.shape[1] == 1 and self.left.shape[3] == 1

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """Samples that do not fit into the budget are cut into rows."""
        samples, groups, out, positions = self.left.shape
        inner = self.right.shape[2]
        left = self.left.reshape(samples * groups, out, positions)
        right = self.right.reshape(samples * groups, inner, positions).transpose(1, 2)
        height = max(1, min(out, budget // max(1, groups * inner)))
        step = max(1, budget // max(1, groups * height * inner))
        buffer = left.new_empty(min(step, samples) * groups * height * inner)
        for start in range(0, samples, step):
            stop = min(start + step, samples)
            batch = slice(start * groups, stop * groups)
            for top in range(0, out, height):
                rows = left[batch, top : top + height]
                target = buffer[: len(rows) * rows.shape[1] * inner].view(len(rows), rows.shape[1], inner)
                torch.bmm(rows, right[batch], out=target)
                yield slice(start, stop), target.view(stop - start, -1)

    def row_sums(self) -> kernels.Sums | None:
        """Sums over the elements of each sample and group, N * G, without writing these out; None without a kernel."""
        if not self.left.numel() or not self.right.numel():
            return None
        return kernels.product_sums(self.left.flatten(0, 1), self.right.flatten(0, 1))

    def row_moments(self, *, about_mean: bool) -> kernels.RowMoments | None:
        """Moments of the elements of each sample, without writing these out; on an accelerator.

        See `kernels.product_moments`; None where there is no kernel.
        """
        return kernels.product_moments(self.left, self.right, about_mean=about_mean)

    @override
    def dense(self, rows: slice) -> Tensor:
        product = self.left[rows] @ self.right[rows].transpose(2, 3)
        return product.reshape(len(product), *self.shape)

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Factored:
        return replace(self, sizes=shape)

    @property
    def is_matrix(self) -> bool:
        """True if the shape is that of the one matrix which the factors make."""
        return self.shape == (self.left.shape[2], self.right.shape[2]) and self.left.shape[1] == 1

    def transposed(self) -> Factored:
        """The gradient of the transposed matrix; only where `is_matrix` holds."""
        return Factored(self.right, self.left, (self.shape[1], self.shape[0]))


@dataclass(frozen=True)
class TableRows(PerSample):
    """Gradients of a table of which a sample uses a few rows.

    Attributes:
        index: (N, T) int64, the rows a sample uses; a row may be used several times.
        values: (N, T, D), what each use adds to its row.
        height: the number of rows V of the table.
        sizes: shape of the gradient of one sample, V * D elements in that order.
    """

    index: Tensor
    values: Tensor
    height: int
    sizes: tuple[int, ...]

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    @override
    def device(self) -> torch.device:
        return self.values.device

    @property
    @override
    def implicit_zeros(self) -> int:
        return max(0, self.height - self.index.shape[1]) * self.values.shape[2]

    @override
    def __len__(self) -> int:
        return self.index.shape[0]

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """Only rows in use, with the uses of one row added up at the first of them."""
        uses, width = self.values.shape[1:]
        if uses >= self.height:
            for rows in sample_slices(len(self), self.height * width, budget):
                yield rows, self.dense(rows).reshape(rows.stop - rows.start, -1)
            return
        for rows in sample_slices(len(self), uses * max(uses, width), budget):
            index = self.index[rows]
            first = (index.unsqueeze(2) == index.unsqueeze(1)).int().argmax(2)
            merged = torch.zeros_like(self.values[rows])
            merged.scatter_add_(1, first.unsqueeze(2).expand_as(merged), self.values[rows])
            yield rows, merged.flatten(1)

    @override
    def dense(self, rows: slice) -> Tensor:
        values = self.values[rows]
        table = values.new_zeros(len(values), self.height, values.shape[2])
        table.scatter_add_(1, self.index[rows].unsqueeze(2).expand_as(values), values)
        return table.reshape(len(values), *self.shape)

    @override
    def reshaped(self, shape: tuple[int, ...]) -> TableRows:
        return replace(self, sizes=shape)


@dataclass(frozen=True)
class Total(PerSample):
    """The sum of several contributions to one parameter, for example one per time step of a recurrent layer."""

    parts: tuple[PerSample, ...]

    @property
    @override
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @override
    def __len__(self) -> int:
        return len(self.parts[0])

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        for rows in sample_slices(len(self), prod(self.shape), budget):
            yield rows, self.dense(rows).reshape(rows.stop - rows.start, -1)

    @override
    def dense(self, rows: slice) -> Tensor:
        total = self.parts[0].dense(rows).clone()
        for part in self.parts[1:]:
            total += part.dense(rows)
        return total

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Total:
        return Total(tuple(part.reshaped(shape) for part in self.parts))
