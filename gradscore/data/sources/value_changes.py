"""Changes of vectors, arrays, tokens and text into out-of-distribution samples.

Every change is a function of a sample, what it needs beside, and a generator of random numbers, and returns a sample
of the same form. It raises `DataError` for samples that it is not for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps

import numpy as np
import pandas as pd
from numpy.random import Generator

from ...errors import DataError
from .raw_samples import Raw, Values, describe_raw

_WORD = re.compile(r"\S+")
_MASK = "mask"

Change = Callable[[Raw, Raw, Generator], Raw]


def shuffled_tokens(sample: Raw, _other: Raw, random: Generator) -> Raw:
    """Tokens of a sample in another order; the first and the last one stay, and so does padding.

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
    return _half_replaced(_floats(sample, "swapped_fields"), _floats(other, "swapped_fields"), random)


def _half_replaced(values: Values, others: Values, random: Generator) -> Values:
    """A random half of the values with others in their places."""
    mixed = values.copy()
    places = random.permutation(mixed.size)[: mixed.size // 2]
    mixed.reshape(-1)[places] = others.reshape(-1)[places]
    return mixed


def _of_each_input(change: Change) -> Change:
    """A change of a vector as one of samples of several inputs too: of each that is of floats and no mask."""

    @wraps(change)
    def changed(sample: Raw, other: Raw, random: Generator) -> Raw:
        if not isinstance(sample, Mapping) or not isinstance(other, Mapping):
            return change(sample, other, random)
        names = [name for name, values in sample.items() if _is_of_floats(values) and _MASK not in name]
        if not names:
            return change(sample, other, random)  # which says what it wants
        ours, theirs = ({name: np.asarray(each[name]) for name in names} for each in (sample, other))
        return {**sample, **{name: np.asarray(change(ours[name], theirs[name], random)) for name in names}}

    return changed


@_of_each_input
def permuted_columns(sample: Raw, _other: Raw, random: Generator) -> Raw:
    """The values of a vector (of an array: all of them) in other places."""
    values = _floats(sample, "permuted_columns")
    return random.permutation(values.reshape(-1)).reshape(values.shape)


@_of_each_input
def feature_mixture(sample: Raw, other: Raw, _random: Generator) -> Raw:
    """The mean of two samples of different classes."""
    return _on_the_line(sample, other, 0.5, "feature_mixture")


@_of_each_input
def feature_extrapolation(sample: Raw, other: Raw, _random: Generator) -> Raw:
    """Point as far beyond a sample as one of another class lies before it: x + (x - other)."""
    return _on_the_line(sample, other, 2.0, "feature_extrapolation")


@_of_each_input
def far_extrapolation(sample: Raw, other: Raw, _random: Generator) -> Raw:
    """Point four times as far beyond a sample as one of another class lies before it: x + 4 (x - other)."""
    return _on_the_line(sample, other, 5.0, "far_extrapolation")


@_of_each_input
def extrapolated_fields(sample: Raw, other: Raw, random: Generator) -> Raw:
    """A random half of the columns of a vector as `feature_extrapolation` has them; the others stay."""
    beyond = _on_the_line(sample, other, 2.0, "extrapolated_fields")
    return _half_replaced(_floats(sample, "extrapolated_fields"), beyond, random)


def _on_the_line(sample: Raw, other: Raw, share: float, kind: str) -> Values:
    """Point on the line through two samples: at 0 the other one, at 1 the first, at 2 as far beyond that.

    A value that the other one lacks (NaN, or it is shorter) stays the first one's, so that no more are missing than are
    of samples.
    """
    values, others = _floats(sample, kind), _floats(other, kind)
    both = tuple(slice(min(lengths)) for lengths in zip(values.shape, others.shape, strict=True))
    known = values.astype(np.float64)
    known[both] = np.where(np.isnan(others[both]), known[both], others[both])
    return np.asarray(share * values.astype(np.float64) + (1 - share) * known, dtype=values.dtype)


def random_tokens(sample: Raw, vocabulary: Raw, random: Generator) -> Raw:
    """Every token drawn from the vocabulary, all as likely, rare ones too; the first and the last one stay.

    Of text it is the words, all of them; the white space stays where it is.

    Args:
        sample: the tokens or text.
        vocabulary: of the same form, with every token once.
        random: draws.
    """
    return _replaced(sample, vocabulary, random, 1, "random_tokens")


def some_random_tokens(sample: Raw, vocabulary: Raw, random: Generator) -> Raw:
    """Half of the tokens others of the vocabulary, as `random_tokens` has them all."""
    return _replaced(sample, vocabulary, random, 2, "some_random_tokens")


def _replaced(sample: Raw, vocabulary: Raw, random: Generator, step: int, kind: str) -> Raw:
    """Sample with one of `step` tokens replaced by another of the vocabulary."""
    if isinstance(sample, str) and isinstance(vocabulary, str):
        words, drawn = list(_WORD.finditer(sample)), _words_of(vocabulary)
        taken = {words[place].start() for place in random.permutation(len(words))[::step]}
        return _WORD.sub(lambda word: drawn[random.integers(len(drawn))] if word.start() in taken else word[0], sample)
    own, known = _tokens(sample, kind), _tokens(vocabulary, kind)
    lengths = [len(next(iter(each.values()))) for each in (own, known)]
    places = random.permutation(_used(own, lengths[0])[1:-1])[::step]
    drawn_places = random.choice(_used(known, lengths[1]), len(places))
    found = {name: values.copy() for name, values in own.items()}
    for name, values in found.items():
        values[places] = known[name][drawn_places]
    return _like(sample, found)


@lru_cache(maxsize=1)
def _words_of(vocabulary: str) -> list[str]:
    return vocabulary.split()


def blended_words(sample: Raw, other: Raw, random: Generator) -> Raw:
    """Words that there are not: the front half of each with the rear half of a random one of another class's sample."""
    if not isinstance(sample, str) or not isinstance(other, str):
        raise DataError(f"synthetic:blended_words is for text; the samples are {describe_raw(sample)}")
    rears = [word[len(word) // 2 :] for word in other.split()] or [""]

    def blended(word: re.Match[str]) -> str:
        front = word[0][: (len(word[0]) + 1) // 2]
        return front + rears[random.integers(len(rears))]

    return _WORD.sub(blended, sample)


def vocabulary_of(samples: Sequence[Raw]) -> Raw:
    """Sample that holds every token of all samples once; of text the words.

    First and last tokens, which often mark the ends, and padding are left out. Of several arrays, values at one
    position stay together.
    """
    if isinstance(samples[0], str):
        return " ".join(sorted({word for text in samples for word in str(text).split()}))
    parts = []
    for sample in samples:
        tokens = _tokens(sample, "random_tokens")
        stacked = np.stack([*tokens.values()])
        parts.append(stacked[:, _used(tokens, stacked.shape[1])[1:-1]])
    names = _tokens(samples[0], "random_tokens")
    rows = pd.DataFrame(np.concatenate(parts, axis=1).T).drop_duplicates()  # `np.unique` along an axis takes longer
    distinct = rows.sort_values([*rows.columns]).to_numpy().T
    return _like(samples[0], {name: row.astype(names[name].dtype) for name, row in zip(names, distinct, strict=True)})


def _is_of_floats(sample: Raw) -> bool:
    arrays = sample.values() if isinstance(sample, Mapping) else [sample]
    return any(isinstance(each, np.ndarray | np.generic) and each.dtype.kind == "f" for each in arrays)


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
    mask = next((values for name, values in tokens.items() if _MASK in name), np.ones(length))
    return np.flatnonzero(mask)


def _like(sample: Raw, arrays: Mapping[str, Values]) -> Raw:
    return dict(arrays) if isinstance(sample, Mapping) else arrays[""]
