"""Random words and signs that a seed and a name determine, any of which can be had without the others.

Word i of a key is the i-th number of the generator SplitMix64 from the state `key`.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 16 (SplitMix64).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from .. import kernels

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
