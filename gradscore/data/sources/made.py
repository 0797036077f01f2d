"""Sources made of the samples of another: out-of-distribution ones, and images under covariate shift."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...errors import DataError
from .image_changes import CORRUPTIONS, MOST_SEVERE, SHIFTS, SYNTHETIC
from .raw_samples import (
    ImageSource,
    Pixels,
    Raw,
    Request,
    UnreadableImageError,
    Values,
    class_names_of,
    describe_raw,
    is_image,
    wanted_image,
)

_WORD = re.compile(r"\S+")
_MASK = "mask"

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
    """What lies as far beyond a sample as one of another class lies before it: x + (x - other)."""
    return _on_the_line(sample, other, 2.0, "feature_extrapolation")


@_of_each_input
def far_extrapolation(sample: Raw, other: Raw, _random: Generator) -> Raw:
    """What lies four times as far beyond a sample as one of another class lies before it: x + 4 (x - other)."""
    return _on_the_line(sample, other, 5.0, "far_extrapolation")


@_of_each_input
def extrapolated_fields(sample: Raw, other: Raw, random: Generator) -> Raw:
    """A random half of the columns of a vector as `feature_extrapolation` has them; the others stay."""
    beyond = _on_the_line(sample, other, 2.0, "extrapolated_fields")
    return _half_replaced(_floats(sample, "extrapolated_fields"), beyond, random)


def _on_the_line(sample: Raw, other: Raw, share: float, kind: str) -> Values:
    """What lies on the line through two samples: at 0 the other one, at 1 the first, at 2 as far beyond that.

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
    """One of `step` tokens another of the vocabulary."""
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


VALUE_KINDS: dict[str, Change] = {
    "shuffled_tokens": shuffled_tokens,
    "swapped_fields": swapped_fields,
    "permuted_columns": permuted_columns,
    "feature_mixture": feature_mixture,
    "feature_extrapolation": feature_extrapolation,
    "far_extrapolation": far_extrapolation,
    "extrapolated_fields": extrapolated_fields,
    "random_tokens": random_tokens,
    "some_random_tokens": some_random_tokens,
    "blended_words": blended_words,
}
"""New kinds go to the end: the place of a kind is part of its random seed."""


IMAGE_SETS = ("rotate90", "mixup", "cutmix", "jigsaw", "permuted_pixels")
"""What is made of images unless other sets are asked for."""

FEWEST_VALUES = 4
"""Values of a vector from which on some can be put in other places."""


def kinds_for(sample: Raw) -> tuple[str, ...]:
    """The sets that are made of samples like this one unless others are asked for.

    Only square images are turned. Of vectors, arrays, tokens and texts it is every kind that can be made of them.
    """
    if is_image(sample):
        square = sample.shape[0] == sample.shape[1]
        return tuple(kind for kind in IMAGE_SETS if square or kind != "rotate90")
    if isinstance(sample, np.ndarray) and sample.size < FEWEST_VALUES:
        return ()
    found = []
    for kind, change in VALUE_KINDS.items():
        with suppress(DataError):
            change(sample, sample, np.random.default_rng(0))
            found.append(kind)
    return tuple(found)


def vocabulary_of(samples: Sequence[Raw]) -> Raw:
    """What looks like a sample and holds every token of all of them once; of text the words.

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
    distinct = np.unique(np.concatenate(parts, axis=1), axis=1)
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


OF_TWO_CLASSES = (
    "cutmix", "mixup", "swapped_fields", "feature_mixture", "blended_words",
    "feature_extrapolation", "far_extrapolation", "extrapolated_fields",
)  # fmt: skip
OF_VOCABULARY = ("random_tokens", "some_random_tokens")
MOST_READ = 1000
"""Samples whose tokens are a vocabulary: of more, so many drawn at random."""

_VOCABULARIES: dict[tuple[int, int], Raw] = {}
"""By the identity of the samples and the seed."""


@dataclass(frozen=True)
class SyntheticSource:
    """Samples of no class made of those of another source, one for each.

    Attributes:
        kind: a name of `SYNTHETIC` or `VALUE_KINDS`.
        base: in-distribution samples of the fit split.
        seed: of the random choices, together with the position.
    """

    kind: str
    base: ImageSource
    seed: int

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        return [f"{self.kind}-{name}" for name in self.base.ids]

    @property
    def labels(self) -> None:
        """See `ImageSource`: there are none."""
        return None

    def sample(self, index: int) -> Raw:
        """See `ImageSource`."""
        # Seeds are of the place of a kind, from 1000 on where it is not for images.
        place = [*SYNTHETIC].index(self.kind) if self.kind in SYNTHETIC else 1000 + [*VALUE_KINDS].index(self.kind)
        random = np.random.default_rng([self.seed, index, place])
        sample = other = self.base.sample(index)
        if self.kind in OF_TWO_CLASSES:
            labels = np.asarray(self.base.labels)
            other = self.base.sample(int(random.choice(np.flatnonzero(labels != labels[index]))))
        if self.kind in OF_VOCABULARY:
            other = self._vocabulary
        if self.kind in VALUE_KINDS:
            return VALUE_KINDS[self.kind](sample, other, random)
        image, second = (wanted_image(each, where=f"synthetic:{self.kind}") for each in (sample, other))
        if second.shape != image.shape:
            raise DataError(f"synthetic:{self.kind} needs images of one size, got {image.shape} and {second.shape}")
        return SYNTHETIC[self.kind](image, second, random)

    def content(self) -> str:
        """See `ImageSource`."""
        return f"{self.kind} {self.seed} {self.base.content()}"

    @cached_property
    def _vocabulary(self) -> Raw:
        """Kept as long as the samples, so that it is read once for all sets that are made of them."""
        key = id(self.base), self.seed
        if key not in _VOCABULARIES:
            found = self._read_vocabulary()
            try:
                weakref.finalize(self.base, _VOCABULARIES.pop, key, None)
            except TypeError:  # nothing tells how long they are there
                return found
            _VOCABULARIES[key] = found
        return _VOCABULARIES[key]

    def _read_vocabulary(self) -> Raw:
        count = len(self.base.ids)
        places = range(count) if count <= MOST_READ else np.random.default_rng(self.seed).permutation(count)[:MOST_READ]
        samples = []
        for place in places:
            with suppress(UnreadableImageError):
                samples.append(self.base.sample(int(place)))
        return vocabulary_of(samples)


@dataclass(frozen=True)
class ShiftedImages:
    """Images of another source under a covariate shift, with its labels.

    Attributes:
        kind: a name of `CORRUPTIONS` or `SHIFTS`.
        severity: 1 to `MOST_SEVERE`.
        base: the images.
        places: (n,) which of them; None for all.
        seed: of the random choices, together with the place; None for `severity` in its stead.
    """

    kind: str
    severity: int
    base: ImageSource
    places: NDArray[np.int64] | None = None
    seed: int | None = None

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        ids = self.base.ids
        return [f"{self.kind}{self.severity}-{ids[place]}" for place in self._places]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """See `ImageSource`: those of the base."""
        return None if self.base.labels is None else self.base.labels[self._places]

    @property
    def class_names(self) -> Sequence[str] | None:
        """See `ImageSource`: those of the base."""
        return class_names_of(self.base)

    def sample(self, index: int) -> Pixels:
        """See `ImageSource`; place, kind, severity and seed decide on all values."""
        place = int(self._places[index])
        own = [place, self.severity] if self.seed is None else [self.seed, place]
        random = np.random.default_rng([*own, crc32(self.kind.encode())])
        change = CORRUPTIONS.get(self.kind) or SHIFTS[self.kind]
        return np.ascontiguousarray(
            change(wanted_image(self.base.sample(place), where=self.kind), self.severity, random)
        )

    def content(self) -> str:
        """See `ImageSource`."""
        seed = "" if self.seed is None else f" {self.seed}"
        return f"{self.kind} {self.severity}{seed} {self.base.content()}"

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        return np.arange(len(self.base.ids)) if self.places is None else self.places


MOSTLY = 0.5
"""Share of a set from which on it is one of copies."""

TRIED = 100
"""Samples of which a set is made to see how many are copies."""


def mostly_copies(kinds: Sequence[str], base: ImageSource, *, seed: int) -> dict[str, float]:
    """The share of copies of samples in sets that are mostly such: words of one word, columns of ones and zeros.

    Args:
        kinds: of vectors, tokens or text; of images there are none.
        base: what they are made of; up to `MOST_READ` of these are looked at.
        seed: of the random choices.
    """
    count = len(base.ids)
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_READ)).astype(np.int64))
    with suppress(UnreadableImageError, DataError):  # said where it is looked for
        known = {_key(base.sample(int(place))) for place in places}
        tried = places[:: -(-len(places) // TRIED)]
        lone = OF_TWO_CLASSES if len(np.unique(np.asarray(base.labels))) < 2 else ()
        sets = {kind: SyntheticSource(kind, base, seed) for kind in kinds if kind in VALUE_KINDS and kind not in lone}
        shares = {
            kind: float(np.mean([_key(made.sample(int(place))) in known for place in tried]))
            for kind, made in sets.items()
        }
        return {kind: share for kind, share in shares.items() if share >= MOSTLY}
    return {}


def _key(sample: Raw) -> object:
    """What tells samples of one form from each other."""
    if isinstance(sample, Mapping):
        return tuple(values.tobytes() for values in sample.values())
    return sample if isinstance(sample, str) else np.asarray(sample).tobytes()


def synthetic_source(request: Request) -> SyntheticSource:
    """Out-of-distribution samples made of the in-distribution fit samples, one for each.

    Raises:
        DataError: no such kind, nothing to make them of, or samples that it cannot be made of.
    """
    kind, base = request.name, request.base
    if kind not in SYNTHETIC and kind not in VALUE_KINDS:
        raise DataError(f"no synthetic set {kind!r}: wanted one of {', '.join([*SYNTHETIC, *VALUE_KINDS])}")
    if base is None:
        raise DataError(
            f"synthetic:{kind} is made of the in-distribution fit samples, so only OOD sets can be synthetic"
        )
    if kind in OF_TWO_CLASSES and (base.labels is None or len(np.unique(base.labels)) < 2):
        raise DataError(
            f"synthetic:{kind} mixes two classes, and the labels of the in-distribution samples to fit on have fewer; "
            "leave it out of data.auxiliary (in Python: auxiliary=[] makes no synthetic set)"
        )
    found = SyntheticSource(kind, base, int(request.arguments.get("seed", request.seed)))
    with suppress(UnreadableImageError):  # what cannot be made of such samples is refused before anything is computed
        raw, is_of_images = base.sample(0), kind in SYNTHETIC
        if is_image(raw) != is_of_images:
            what, others = ("images", VALUE_KINDS) if is_of_images else ("samples that are no images", SYNTHETIC)
            raise DataError(
                f"synthetic:{kind} is for {what}, and these are {describe_raw(raw)}; for them there are: "
                f"{', '.join(others)}"
            )
        if not is_of_images:
            found.sample(0)
    return found


def corrupted_source(request: Request) -> ShiftedImages:
    """In-distribution test images under covariate shift, as many as there are.

    Raises:
        DataError: no such kind or severity, or nothing to corrupt.
    """
    kind, severity = request.name, request.arguments.get("severity", 3)
    if kind not in CORRUPTIONS:
        raise DataError(f"no corruption {kind!r}: wanted one of {', '.join(CORRUPTIONS)}")
    if not isinstance(severity, int) or not 1 <= severity <= MOST_SEVERE:
        raise DataError(f"corrupted:{kind}: wanted a severity of 1 to {MOST_SEVERE} in arguments, got {severity!r}")
    if request.base is None:
        raise DataError(f"corrupted:{kind} is made of the in-distribution test samples: name it in data.shifted")
    with suppress(UnreadableImageError):  # what is no image is refused before anything is computed
        wanted_image(request.base.sample(0), where=f"corrupted:{kind}")
    return ShiftedImages(kind, severity, request.base, seed=request.seed)
