"""Synthetic sets: out-of-distribution samples made of in-distribution ones, by the kinds of `SYNTHETIC`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from ...system import Registry
from . import image_changes, value_changes
from .raw_samples import Raw, Request, SampleSource, UnreadableSampleError, describe_raw, is_image, wanted_image


@dataclass(frozen=True)
class SyntheticKind:
    """A kind of synthetic set.

    Attributes:
        change: makes a sample of no class of a sample, what it needs beside, and random numbers.
        of_images: of images (H, W, C) uint8, both of one size; otherwise of what it does not refuse by a `DataError`.
        beside: what it needs: a sample of another class, one that holds every token of all samples, or nothing.
    """

    change: Callable[[Any, Any, Generator], Any]
    of_images: bool = True
    beside: Literal["other class", "vocabulary"] | None = None


_of_values = partial(SyntheticKind, of_images=False)

SYNTHETIC: Registry[SyntheticKind] = Registry(
    "synthetic set",
    {
        "blur": SyntheticKind(image_changes.blur),
        "cutmix": SyntheticKind(image_changes.cutmix, beside="other class"),
        "gaussian_noise": SyntheticKind(image_changes.gaussian_noise),
        "jigsaw": SyntheticKind(image_changes.jigsaw),
        "mixup": SyntheticKind(image_changes.mixup, beside="other class"),
        "permuted_pixels": SyntheticKind(image_changes.permuted_pixels),
        "rotate90": SyntheticKind(image_changes.rotate90),
        "uniform_noise": SyntheticKind(image_changes.uniform_noise),
        "strokes": SyntheticKind(image_changes.strokes),
        "shapes": SyntheticKind(image_changes.shapes),
        "patches": SyntheticKind(image_changes.patches),
        "gradients": SyntheticKind(image_changes.gradients),
        "fractal_noise": SyntheticKind(image_changes.fractal_noise),
        "zoom": SyntheticKind(image_changes.zoom),
        "shrink": SyntheticKind(image_changes.shrink),
        "shuffled_tokens": _of_values(value_changes.shuffled_tokens),
        "swapped_fields": _of_values(value_changes.swapped_fields, beside="other class"),
        "permuted_columns": _of_values(value_changes.permuted_columns),
        "feature_mixture": _of_values(value_changes.feature_mixture, beside="other class"),
        "feature_extrapolation": _of_values(value_changes.feature_extrapolation, beside="other class"),
        "far_extrapolation": _of_values(value_changes.far_extrapolation, beside="other class"),
        "extrapolated_fields": _of_values(value_changes.extrapolated_fields, beside="other class"),
        "random_tokens": _of_values(value_changes.random_tokens, beside="vocabulary"),
        "some_random_tokens": _of_values(value_changes.some_random_tokens, beside="vocabulary"),
        "blended_words": _of_values(value_changes.blended_words, beside="other class"),
    },
    wanted=SyntheticKind,
)
"""Kinds of synthetic sets by name. New ones go to the end: the place of a kind is part of its random seed."""

AUTO_OF_IMAGES = ("rotate90", "mixup", "cutmix", "jigsaw", "permuted_pixels")
"""Kinds of synthetic sets made of images unless others are asked for."""

FEWEST_VALUES = 4
"""Values of a vector from which on some can be put in other places."""

MOST_READ = 1000
"""Samples whose tokens are a vocabulary: of more, so many drawn at random."""


def kinds_of(*, images: bool) -> list[str]:
    """The kinds of synthetic sets that are made of images, or those that are made of other samples."""
    return [name for name, kind in SYNTHETIC.items() if kind.of_images == images]


def auto_kinds(sample: Raw) -> tuple[str, ...]:
    """The sets that are made of samples like this one unless others are asked for.

    Only square images are turned. Of vectors, arrays, tokens and texts it is every kind that can be made of them.
    """
    if is_image(sample):
        square = sample.shape[0] == sample.shape[1]
        return tuple(kind for kind in AUTO_OF_IMAGES if square or kind != "rotate90")
    if isinstance(sample, np.ndarray) and sample.size < FEWEST_VALUES:
        return ()
    found = []
    for kind in kinds_of(images=False):
        with suppress(DataError):
            check_synthetic(kind, sample)
            found.append(kind)
    return tuple(found)


def check_synthetic(kind: str, sample: Raw) -> None:
    """Makes sure that a synthetic set can be made of samples like this one.

    Raises:
        DataError: it cannot.
    """
    found = SYNTHETIC[kind]
    if found.of_images != is_image(sample):
        what = "images" if found.of_images else "samples that are no images"
        raise DataError(
            f"synthetic:{kind} is for {what}, and these are {describe_raw(sample)}; for them there are: "
            f"{', '.join(kinds_of(images=not found.of_images))}"
        )
    if not found.of_images:
        found.change(sample, sample, np.random.default_rng(0))


@dataclass(frozen=True)
class SyntheticSource:
    """Samples of no class made of those of another source, one for each.

    Attributes:
        kind: a name of `SYNTHETIC`.
        base: in-distribution samples of the fit split.
        seed: of the random choices, together with the position.
    """

    kind: str
    base: SampleSource
    seed: int

    @property
    def ids(self) -> Sequence[str]:
        """See `SampleSource`."""
        return [f"{self.kind}-{name}" for name in self.base.ids]

    @property
    def labels(self) -> None:
        """See `SampleSource`: there are none."""
        return None

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        kind = SYNTHETIC[self.kind]
        # Seeds are of the place of a kind among those for such samples, from 1000 on where these are no images.
        place = kinds_of(images=kind.of_images).index(self.kind) + (0 if kind.of_images else 1000)
        random = np.random.default_rng([self.seed, index, place])
        sample = other = self.base.sample(index)
        if kind.beside == "other class":
            labels = np.asarray(self.base.labels)
            other = self.base.sample(int(random.choice(np.flatnonzero(labels != labels[index]))))
        elif kind.beside == "vocabulary":
            other = self._vocabulary
        if kind.of_images:
            sample, other = (wanted_image(each, where=f"synthetic:{self.kind}") for each in (sample, other))
            other = image_changes.matched(other, sample)
        found: Raw = kind.change(sample, other, random)
        return found

    def content(self) -> str:
        """See `SampleSource`."""
        return f"{self.kind} {self.seed} {self.base.content()}"

    @cached_property
    def _vocabulary(self) -> Raw:
        """A sample that holds every token of all samples, or of many."""
        count = len(self.base.ids)
        places = range(count) if count <= MOST_READ else np.random.default_rng(self.seed).permutation(count)[:MOST_READ]
        samples = []
        for place in places:
            with suppress(UnreadableSampleError):
                samples.append(self.base.sample(int(place)))
        return value_changes.vocabulary_of(samples)


MOSTLY = 0.5
"""Share of a set from which on it is one of copies."""

TRIED = 100
"""Samples of which a set is made to see how many are copies."""


def mostly_copies(kinds: Sequence[str], base: SampleSource, *, seed: int) -> dict[str, float]:
    """The share of copies of samples in sets that are mostly such: words of one word, columns of ones and zeros.

    Args:
        kinds: of vectors, tokens or text; of images there are none.
        base: what they are made of; up to `MOST_READ` of these are looked at.
        seed: of the random choices.
    """
    count = len(base.ids)
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_READ)).astype(np.int64))
    with suppress(UnreadableSampleError, DataError):  # said where it is looked for
        known = {_key(base.sample(int(place))) for place in places}
        tried = places[:: -(-len(places) // TRIED)]
        lone = "other class" if len(np.unique(np.asarray(base.labels))) < 2 else ""
        tested = [kind for kind in kinds if not SYNTHETIC[kind].of_images and SYNTHETIC[kind].beside != lone]
        sets = {kind: SyntheticSource(kind, base, seed) for kind in tested}
        shares = {
            kind: float(np.mean([_key(made.sample(int(place))) in known for place in tried]))
            for kind, made in sets.items()
        }
        return {kind: share for kind, share in shares.items() if share >= MOSTLY}
    return {}


def _key(sample: Raw) -> object:
    """What tells the values of a sample from those of others."""
    if isinstance(sample, Mapping):
        return tuple(values.tobytes() for values in sample.values())
    return sample if isinstance(sample, str) else np.asarray(sample).tobytes()


def synthetic_source(request: Request) -> SyntheticSource:
    """Out-of-distribution samples made of the in-distribution fit samples, one for each.

    Raises:
        ConfigError: no such kind.
        DataError: nothing to make them of, or samples that it cannot be made of.
    """
    kind, base = request.name, request.base
    found = SYNTHETIC.find(kind, where=f"data source {request.source!r}")
    if base is None:
        raise DataError(
            f"synthetic:{kind} is made of the in-distribution fit samples, so only OOD sets can be synthetic"
        )
    if found.beside == "other class" and (base.labels is None or len(np.unique(base.labels)) < 2):
        raise DataError(
            f"synthetic:{kind} mixes two classes, and the labels of the in-distribution samples to fit on have fewer; "
            "leave it out of data.auxiliary (in Python: auxiliary=[] makes no synthetic set)"
        )
    source = SyntheticSource(kind, base, int(request.arguments.get("seed", request.seed)))
    with suppress(UnreadableSampleError):  # what cannot be made of such samples is refused before anything is computed
        check_synthetic(kind, base.sample(0))
        source.sample(0)
    return source
