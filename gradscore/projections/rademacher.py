"""Projection with a dense matrix of random signs, or with any other that has all its columns."""

from __future__ import annotations

from abc import abstractmethod
from math import prod, sqrt

import torch
from torch import Tensor
from typing_extensions import override

from ..gradients import PerSample, TableRows, sample_slices
from .projection import Projection
from .randomness import key_of, sign_rows, signs_of

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
