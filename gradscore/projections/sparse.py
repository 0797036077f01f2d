"""Projection with a matrix that has one entry in each column."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from .. import kernels
from ..gradients import PerSample, TableRows, sample_slices
from .projection import Projection
from .randomness import key_of, run_signs_and_places

WRITTEN_OUT = 1 << 20
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
        for rows in sample_slices(len(gradient), elements, WRITTEN_OUT):
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
