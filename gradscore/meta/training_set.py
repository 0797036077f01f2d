"""The samples that meta models are fitted on: what each counts, which of many are looked at, and which are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..config import MetaConfig
from ..data import LEAST_SETS
from ..system import BoolArray, FloatArray

MOST_ROWS = 10_000
"""Samples that penalties are judged on, of more so many drawn at random, the same share of each set. On CIFAR-10, of
19,000 samples, the same penalties are chosen."""

Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Places of the samples that fit, and of those that are held out."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The samples that a meta model is fitted on.

    Attributes:
        scaled: (N, D) their inputs, scaled.
        target: (N,) bool, True for wrong predictions or OOD samples.
        sets: (N,) names of the data sets they come from.
        content: (N,) numbers that copies have in common; by default no sample is a copy.
    """

    scaled: FloatArray
    target: BoolArray
    sets: NDArray[np.str_]
    content: NDArray[np.int64] | None = None

    @property
    def weights(self) -> FloatArray:
        """(N,) see `balanced_weights`."""
        return balanced_weights(self.target, self.sets)

    def of(self, sets: Sequence[str]) -> TrainingSet:
        """The negatives, and the positives of these sets."""
        return self.where(~self.target | np.isin(self.sets, list(sets)))

    def where(self, kept: BoolArray) -> TrainingSet:
        """Those of a mask (N,)."""
        content = None if self.content is None else self.content[kept]
        return TrainingSet(scaled=self.scaled[kept], target=self.target[kept], sets=self.sets[kept], content=content)


def balanced_weights(target: ArrayLike, sets: ArrayLike) -> FloatArray:
    """Weights by which both classes count the same, and within each class every one of its `sets` the same.

    Args:
        target: (N,) bool.
        sets: (N,) names of the data sets the samples come from.

    Returns:
        (N,) float64 with sum N.
    """
    positive, numbers = np.asarray(target).astype(np.int64), pd.factorize(np.asarray(sets))[0]
    pairs = 2 * numbers + positive
    members = np.bincount(pairs)
    sets_of_class = np.array([np.count_nonzero(members[kind::2]) for kind in (0, 1)])
    return np.asarray(len(pairs) / (members[pairs] * sets_of_class[positive] * np.count_nonzero(sets_of_class)))


def drawn(count: int, most: int) -> BoolArray:
    """A mask (count,) of up to `most` rows drawn at random, the same every time: files may be in turns of classes."""
    mask = np.zeros(count, dtype=bool)
    mask[np.random.default_rng(0).choice(count, min(count, most), replace=False)] = True
    return mask


def judged_rows(count: int, total: int) -> BoolArray:
    """A mask (count,) of the samples of a set that penalties are judged on, where there are `total` in all sets."""
    return drawn(count, -(-count * min(MOST_ROWS, total) // max(total, 1)))


def subsampled(rows: TrainingSet) -> TrainingSet:
    """The same share of each set, drawn at random, so that there are at most about `MOST_ROWS`."""
    if len(rows.target) <= MOST_ROWS:
        return rows
    kept = np.zeros(len(rows.target), dtype=bool)
    for name in np.unique(rows.sets):
        places = np.flatnonzero(rows.sets == name)
        kept[places[judged_rows(len(places), len(kept))]] = True
    return rows.where(kept)


def held_out_folds(rows: TrainingSet, config: MetaConfig, new_sets: bool = True) -> tuple[str, list[Fold]] | None:
    """What is judged by, `sets` or `samples`, and the places that fit and that are held out of each fold.

    Copies of a sample are in the same fold, so that none is judged by what it was fitted on; only copies in several
    OOD sets are where their sets are.

    Args:
        rows: the samples that fit.
        config: the number of folds, and the seed.
        new_sets: as in `choose_penalty`.

    Returns:
        None where nothing can be held out.
    """
    from sklearn.model_selection import StratifiedKFold

    sets = np.unique(rows.sets[rows.target])
    splitter = np.random.default_rng(config.seed)
    content = np.arange(len(rows.target)) if rows.content is None else rows.content
    if new_sets and len(sets) >= LEAST_SETS and not np.isin(sets, rows.sets[~rows.target]).any():
        count = min(config.cv_folds, len(sets))
        set_fold = dict(zip(sets, splitter.permutation(len(sets)) % count, strict=True))
        fold = np.empty(len(rows.target), dtype=np.int64)
        fold[rows.target] = [set_fold[name] for name in rows.sets[rows.target]]
        numbers, negatives = pd.factorize(content[~rows.target])
        fold[~rows.target] = (splitter.permutation(len(negatives)) % count)[numbers]
        if len(negatives) >= 2 * count:
            return "sets", _folds(fold, count)
    numbers, distinct = pd.factorize(content)
    positive = rows.target[np.flatnonzero(~pd.Series(numbers).duplicated())]
    count = min(config.cv_folds, int(positive.sum()), int((~positive).sum()))
    if count < 2:
        return None
    stratified = StratifiedKFold(count, shuffle=True, random_state=config.seed).split(distinct, positive)
    fold = np.empty(len(distinct), dtype=np.int64)
    for place, (_, held_out) in enumerate(stratified):
        fold[held_out] = place
    return "samples", _folds(fold[numbers], count)


def _folds(fold: NDArray[np.int64], count: int) -> list[Fold]:
    return [(np.flatnonzero(fold != place), np.flatnonzero(fold == place)) for place in range(count)]
