"""Out-of-distribution samples made of in-distribution ones that are no images: vectors, arrays, tokens and text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from .base import Raw, Values, describe_raw

_WORD = re.compile(r"\S+")

Change = Callable[[Raw, Raw, Generator], Raw]


def shuffled_tokens(sample: Raw, _other: Raw, random: Generator) -> Raw:
    """The same tokens in another order; the first and the last one stay, and so does padding.

    Of text it is the words, all of them; the white space between them stays where it is.
    """
    if isinstance(sample, str):
        words, gaps = _WORD.findall(sample), _WORD.split(sample)
        mixed = [words[place] for place in random.permutation(len(words))]
        return "".join([gaps[0], *(part for pair in zip(mixed, gaps[1:], strict=True) for part in pair)])
    tokens = _tokens(sample, "shuffled_tokens")
    length = len(next(iter(tokens.values())))
    order = np.arange(length)
    inner = _used(tokens, length)[1:-1]
    order[inner] = random.permutation(inner)
    return _like(sample, {name: values[order] for name, values in tokens.items()})


def swapped_fields(sample: Raw, other: Raw, random: Generator) -> Raw:
    """Half of the columns of a vector, or of the named inputs, of a sample of another class; of tokens the rear half.

    Of text it is the rear half of the words.
    """
    if isinstance(sample, str) and isinstance(other, str):
        words, others = list(_WORD.finditer(sample)), list(_WORD.finditer(other))
        half = (len(words) + 1) // 2
        front = sample[: words[half - 1].end()] if half else ""
        rear = other[others[len(others) // 2].start() :] if others else ""
        gap = sample[words[half - 1].end() : words[half].start()] if half < len(words) else " "
        return f"{front}{gap}{rear}" if front and rear else front + rear
    if not _is_of_floats(sample):
        own, foreign = _tokens(sample, "swapped_fields"), _tokens(other, "swapped_fields")
        length = len(next(iter(own.values())))
        half = max(1, len(_used(own, length)) // 2)
        return _like(sample, {name: np.r_[own[name][:half], foreign[name][half:]] for name in own})
    if isinstance(sample, Mapping) and isinstance(other, Mapping):
        names = list(sample)
        taken = {names[place] for place in random.permutation(len(names))[: len(names) // 2]}
        return {name: (other if name in taken else sample)[name] for name in names}
    mixed, foreign_values = _floats(sample, "swapped_fields").copy(), _floats(other, "swapped_fields")
    places = random.permutation(mixed.size)[: mixed.size // 2]
    mixed.reshape(-1)[places] = foreign_values.reshape(-1)[places]
    return mixed


def permuted_columns(sample: Raw, _other: Raw, random: Generator) -> Raw:
    """The values of a vector (of an array: all of them) in other places."""
    values = _floats(sample, "permuted_columns")
    return random.permutation(values.reshape(-1)).reshape(values.shape)


def feature_mixture(sample: Raw, other: Raw, _random: Generator) -> Raw:
    """The mean of two samples of different classes."""
    values, others = _floats(sample, "feature_mixture"), _floats(other, "feature_mixture")
    if values.shape != others.shape:
        raise DataError(f"synthetic:feature_mixture needs samples of one shape, got {values.shape} and {others.shape}")
    return ((values.astype(np.float64) + others) / 2).astype(values.dtype)


VALUE_KINDS: dict[str, Change] = {
    "shuffled_tokens": shuffled_tokens,
    "swapped_fields": swapped_fields,
    "permuted_columns": permuted_columns,
    "feature_mixture": feature_mixture,
}
"""New kinds go to the end: the place of a kind is part of its random seed."""

VALUES_OF_TWO_CLASSES = ("swapped_fields", "feature_mixture")


def _is_of_floats(sample: Raw) -> bool:
    arrays = sample.values() if isinstance(sample, Mapping) else [sample]
    return any(isinstance(each, np.ndarray) and each.dtype.kind == "f" for each in arrays)


def _floats(sample: Raw, kind: str) -> Values:
    if not isinstance(sample, np.ndarray) or sample.dtype.kind != "f":
        raise DataError(f"synthetic:{kind} is for vectors and arrays of floats; the samples are {describe_raw(sample)}")
    return sample


def _tokens(sample: Raw, kind: str) -> Mapping[str, Values]:
    """The arrays of tokens of a sample, whole numbers of one length."""
    found = sample if isinstance(sample, Mapping) else {"": sample}
    if isinstance(sample, str) or not all(
        isinstance(each, np.ndarray) and each.ndim == 1 and each.dtype.kind in "iub" for each in found.values()
    ):
        raise DataError(f"synthetic:{kind} is for text and for tokens; the samples are {describe_raw(sample)}")
    if len({len(each) for each in found.values() if isinstance(each, np.ndarray)}) != 1:
        raise DataError(f"synthetic:{kind} needs arrays of one length, got {describe_raw(sample)}")
    return {name: np.asarray(each) for name, each in found.items()}


def _used(tokens: Mapping[str, Values], length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The positions that hold tokens, not padding, where a mask says so."""
    mask = next((values for name, values in tokens.items() if "mask" in name), np.ones(length))
    return np.flatnonzero(mask)


def _like(sample: Raw, arrays: Mapping[str, Values]) -> Raw:
    return dict(arrays) if isinstance(sample, Mapping) else arrays[""]
