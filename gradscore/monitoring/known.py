"""Windows whose accuracy is known: mixtures of calibration samples, shifted copies of images and auxiliary OOD samples.

Classes are not always as frequent as at the calibration, though nothing else changed: so there are windows with classes
in other shares, too, that teach what this looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from ..deployment import Reference, WatchedSet
from ..system import FloatArray
from .sums import Means
from .terms import Terms

MIXED = (1.0, 0.7, 0.4, 0.15)
"""Shares of a window that are shifted."""

MIXED_OOD = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Shares of a window that are OOD."""

UNEVEN = (0.5, 1.0, 3.0, 10.0)
"""Concentrations of the Dirichlet distribution of the shares of classes: from very uneven to nearly even."""

CALM_DRAWS = 24
"""Windows of calibration samples with classes in other shares."""

CALM = ""
"""The group of calibration samples."""


class Known(NamedTuple):
    """A window whose accuracy is known.

    Attributes:
        terms: (t,) what is looked at.
        accuracy: share of predictions that is right.
        noise: variance of that share, as a figure of the sets that it is made of.
        groups: the kinds of shift and OOD sets in it.
    """

    terms: FloatArray
    accuracy: float
    noise: float
    groups: tuple[str, ...]


class _Part(NamedTuple):
    """A set with weights of its samples."""

    means: Means
    accuracy: float
    group: str


def known_windows(terms: Terms, reference: Reference) -> list[Known]:
    """All of them; the first is the calibration samples as they are."""
    random = np.random.default_rng(0)
    calm = _even(terms, reference.calibration, CALM)
    windows = [_mixed(terms, [(1.0, calm)])]
    windows += [
        _mixed(terms, [(1.0, _uneven(terms, reference.calibration, CALM, random, UNEVEN[draw % len(UNEVEN)]))])
        for draw in range(CALM_DRAWS)
    ]
    ood = [_even(terms, each, f"ood:{name}") for name, each in sorted(reference.ood.items())]
    for place, (name, each) in enumerate(sorted(reference.shifted.items())):
        part = _even(terms, each, name.partition(":")[0])
        windows += [_mixed(terms, [(share, part), (1 - share, calm)]) for share in MIXED]
        windows += [
            _mixed(terms, [(1.0, _uneven(terms, each, part.group, random, evenness))]) for evenness in UNEVEN[1:3]
        ]
        windows += _with_ood(terms, part, ood, place)
    for part in ood:
        windows += [_mixed(terms, [(share, part), (1 - share, calm)]) for share in MIXED_OOD]
        windows += [
            _mixed(terms, [(share, part), (1 - share, _uneven(terms, reference.calibration, CALM, random, 3.0))])
            for share in (0.1, 0.2)
        ]
    return windows


def _with_ood(terms: Terms, part: _Part, ood: list[_Part], place: int) -> Iterator[Known]:
    """A shifted set with some of an OOD set, of each of them and in each share in turn."""
    if ood:
        share = (0.05, 0.1, 0.2, 0.3)[(place // 2) % 4]
        yield _mixed(terms, [(share, ood[place % len(ood)]), (1 - share, part)])


def _even(terms: Terms, known: WatchedSet, group: str) -> _Part:
    return _weighted(terms, known, group, np.full(len(known.right), 1 / len(known.right)))


def _uneven(terms: Terms, known: WatchedSet, group: str, random: Generator, evenness: float) -> _Part:
    """A set whose classes have other shares, drawn at random."""
    classes, places, counts = np.unique(known.label, return_inverse=True, return_counts=True)
    weights = (random.dirichlet(np.full(len(classes), evenness)) / counts)[places]
    return _weighted(terms, known, group, weights / weights.sum())


def _weighted(terms: Terms, known: WatchedSet, group: str, weights: FloatArray) -> _Part:
    return _Part(terms.means(known, weights), float(weights @ known.right), group)


def _mixed(terms: Terms, parts: list[tuple[float, _Part]]) -> Known:
    """A window with these shares of sets."""
    taken = [(share, part) for share, part in parts if share > 0]
    return Known(
        terms=terms.at(Means.mixed([(share, part.means) for share, part in taken])),
        accuracy=sum(share * part.accuracy for share, part in taken),
        noise=sum(share**2 * part.accuracy * (1 - part.accuracy) / part.means.samples for share, part in taken),
        groups=tuple(part.group for _, part in taken if part.group != CALM),
    )
