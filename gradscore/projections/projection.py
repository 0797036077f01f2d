"""A random projection of gradients: a linear map that takes the gradients of one parameter at a time.

What is random is determined by a seed and a name: word i of a key is the i-th number of the generator SplitMix64 from
the state `key`.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 16 (SplitMix64).
"""

from __future__ import annotations

import hashlib
from math import prod

import torch
from torch import Tensor

from .. import kernels
from ..errors import ConfigError
from ..gradients import PerSample, Sink, TableRows, Total, sample_slices
from ..system import is_whole

SMALLEST, LARGEST = 64, 8192
"""Numbers that a gradient may be projected to."""

IN_CACHE = 1 << 20
"""Elements of gradients that are written out at a time: 4 MiB of float32, which the cache holds."""

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


def _signed(word: int) -> int:
    """The word as int64 has it."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(values: Tensor, by: int | Tensor) -> Tensor:
    """Shifted to the right with zeros coming in, though int64 has a sign."""
    if isinstance(by, int):  # which would be copied to an accelerator as a tensor
        return (values >> by) & ((1 << (64 - by)) - 1)
    mask = torch.where(by == 0, -1, (torch.ones_like(by) << (64 - by)) - 1)
    return (values >> by) & mask


class Projection:
    """A fixed linear map from the gradient of a whole network to `dim` numbers, given parameter by parameter.

    Every element of a gradient is added to one of the numbers, with a random sign. Runs of 64 elements of a parameter
    go to 64 numbers that follow on each other (after the last comes the first), from a random one on, so that elements
    of one run never meet. The product of two projections is that of the gradients g and h on average over seeds, with a
    variance of at most (|g|^2 |h|^2 + (g h)^2) / dim, as with dense signs; only rare deviations are larger. It costs
    one addition for each parameter and sample.

    Args:
        dim: numbers for each sample, from `SMALLEST` to `LARGEST`.
        seed: of the signs and places, 0 or more.

    Raises:
        ConfigError: another dimension or seed.

    Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams", section 3 (the sketch);
        Weinberger, Dasgupta, Langford, Smola, Attenberg 2009, "Feature hashing for large scale multitask learning",
        lemma 2 (products).
    """

    def __init__(self, dim: int, seed: int) -> None:
        if not is_whole(dim) or not SMALLEST <= dim <= LARGEST:
            raise ConfigError(f"dim: wanted a whole number from {SMALLEST} to {LARGEST}, got {dim!r}")
        if not is_whole(seed):
            raise ConfigError(f"seed: wanted a whole number, got {seed!r}")
        if seed < 0:
            raise ConfigError(f"seed: wanted 0 or more, got {seed!r}")
        self.dim, self.seed = int(dim), int(seed)

    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros that the projections of `samples` samples are added up in, one row each."""
        return torch.zeros(samples, self.dim + kernels.RUN, dtype=dtype, device=device)

    def finished(self, sums: Tensor) -> Tensor:
        """The projections (N, dim) of all that was added to what `blank` gave."""
        found = sums[:, : self.dim].clone()
        found[:, : kernels.RUN] += sums[:, self.dim :]
        return found

    def sink(self, sums: Tensor) -> Sink:
        """Sink that adds the gradients of a batch to `sums`; see `Engine.stream`."""

        def take(name: str, rows: slice, gradient: PerSample) -> None:
            self.add(name, gradient, sums[rows])

        return take

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
            return
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
        key = key_of(self.seed, "sparse", name)
        if kernels.add_runs(values.contiguous(), firsts, key=key, dim=self.dim, found=sums):
            return
        for use in range(values.shape[1]):
            elements = firsts[:, use, None] + torch.arange(values.shape[2], device=sums.device)
            signs, places = run_signs_and_places(key, elements, dim=self.dim)
            sums.scatter_add_(1, places, values[:, use] * signs)
