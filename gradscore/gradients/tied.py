"""Sums of the contributions to one parameter, and the form for a table that is used as input and as output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from .factored import Block, Dense, Factored, PerSample, TableRows, Total, sample_slices


@dataclass(frozen=True)
class Tied(PerSample):
    """Gradients of a matrix (V, D) from which a network takes rows and with which it multiplies: tied embeddings.

    Attributes:
        product: what the products add, one group: left (N, 1, V, S), right (N, 1, D, S).
        rows: what the uses of rows add, T of each sample.
    """

    product: Factored
    rows: TableRows

    @property
    @override
    def device(self) -> torch.device:
        return self.product.device

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.product.shape

    @override
    def __len__(self) -> int:
        return len(self.product)

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """First the rows that a sample does not use, then the others."""
        for rows, part in self.parts(budget):
            for inner, block in part.blocks(budget):
                yield slice(rows.start + inner.start, rows.start + inner.stop), block

    def parts(self, budget: int) -> Iterator[tuple[slice, PerSample]]:
        """The gradient cut in two: the products alone, where no row was used, and T rows written out.

        So no element is a sum of two that are large and nearly cancel, and what is written out is as large as the uses.

        Args:
            budget: elements of factors that are copied at a time.

        Yields:
            Some samples and one part of their gradients.
        """
        height, positions = self.product.left.shape[2:]
        uses = self.rows.index.shape[1]
        if 2 * uses >= height:
            for rows in sample_slices(len(self), prod(self.shape), budget):
                yield rows, Dense(self.dense(rows))
            return
        for rows in sample_slices(len(self), height * positions, budget):
            left, right = self.product.left[rows, 0], self.product.right[rows, 0]
            order, place = _used_last(self.rows.index[rows], height)
            alone, used = order[:, :-uses], order[:, -uses:]
            yield rows, Factored(_picked(left, alone).unsqueeze(1), right.unsqueeze(1), (height - uses, right.shape[1]))
            written = _picked(left, used) @ right.transpose(1, 2)
            place = (place - (height - uses)).unsqueeze(2).expand(-1, -1, written.shape[2])
            yield rows, Dense(written.scatter_add_(1, place, self.rows.values[rows]))

    @override
    def dense(self, rows: slice) -> Tensor:
        values = self.rows.values[rows]
        table = self.product.dense(rows).reshape(len(values), -1, values.shape[2])
        table.scatter_add_(1, self.rows.index[rows].unsqueeze(2).expand_as(values), values)
        return table.reshape(len(values), *self.shape)

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Tied:
        return Tied(self.product.reshaped(shape), self.rows.reshaped(shape))


def _used_last(index: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """The rows of a table with those that a sample uses at the end, (n, V), and where they put each use, (n, T)."""
    used = torch.zeros(len(index), height, dtype=torch.uint8, device=index.device).scatter_(1, index, 1)
    order = used.sort(dim=1, stable=True).indices
    places = torch.arange(height, device=index.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(1, order, places).gather(1, index)


def _picked(left: Tensor, rows: Tensor) -> Tensor:
    """The rows (n, R) of (n, V, S), laid out as these are."""
    if left.stride(1) != 1:
        return torch.stack([each.index_select(0, chosen) for each, chosen in zip(left, rows, strict=True)])
    lines = [each.index_select(1, chosen) for each, chosen in zip(left.transpose(1, 2), rows, strict=True)]
    return torch.stack(lines).transpose(1, 2)


def add(parts: list[PerSample]) -> PerSample:
    """Adds contributions to one parameter, keeping the cheapest form that holds the sum.

    Args:
        parts: one or more contributions of equal shape.

    Returns:
        One gradient. Products of matrices are joined along their positions and stay products, uses of the rows of one
        table stay uses.
    """
    if len(parts) == 1:
        return parts[0]
    dense = [part.values for part in parts if isinstance(part, Dense)]
    if len(dense) == len(parts):
        return Dense(torch.stack(dense).sum(0))
    product = _joined([part for part in parts if isinstance(part, Factored)])
    rows = _all_rows([part for part in parts if isinstance(part, TableRows)])
    others = [part for part in parts if not isinstance(part, Factored | TableRows)]
    if len(product) == len(rows) == 1 and _is_one_table(product[0], rows[0]):
        return _sum([Tied(product[0], rows[0]), *others])
    return _sum([*product, *rows, *others])


def _sum(parts: list[PerSample]) -> PerSample:
    return parts[0] if len(parts) == 1 else Total(tuple(parts))


def _joined(parts: list[Factored]) -> list[Factored]:
    """The products as one where their sizes allow it."""
    left, right = [part.left for part in parts], [part.right for part in parts]
    if len(parts) < 2 or len({each.shape[:3] for each in left}) > 1 or len({each.shape[:3] for each in right}) > 1:
        return parts
    return [Factored(torch.cat(left, 3), torch.cat(right, 3), parts[0].shape)]


def _all_rows(parts: list[TableRows]) -> list[TableRows]:
    """All uses of rows as those of one table where these have one size."""
    if len(parts) < 2 or len({(part.height, part.values.shape[2]) for part in parts}) > 1:
        return parts
    index, values = torch.cat([part.index for part in parts], 1), torch.cat([part.values for part in parts], 1)
    return [TableRows(index, values, parts[0].height, parts[0].shape)]


def _is_one_table(product: Factored, rows: TableRows) -> bool:
    groups, height = product.left.shape[1:3]
    return groups == 1 and (height, product.right.shape[2]) == (rows.height, rows.values.shape[2])
