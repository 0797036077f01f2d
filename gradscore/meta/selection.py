"""The penalties of a meta model, by cross-validation on samples that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ..config import MetaConfig
from ..system import BoolArray, FloatArray
from .fitting import (
    Penalty,
    Rows,
    add_stable_scores,
    balanced_weights,
    fit_logistic,
    has_stable_scores,
    joined,
    regress,
)
from .inputs import Inputs

LEAST_SETS = 3
"""With at least so many OOD sets in a fit, penalties are judged by sets that a fit has not seen."""

MOST_ROWS = 10_000
"""Samples that penalties are judged on: of more, every second, third ... of each set. On CIFAR-10, of 19,000 samples,
the same penalties are chosen."""

PATIENCE = 2
"""Penalties in a row that are no better than the best, after which weaker ones are not tried."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Penalties and how they were found.

    Attributes:
        penalty: those chosen.
        score: what was judged by, higher = better: minus the log loss of held-out samples, or the mean AUROC of
            held-out sets; None where there was nothing to hold out.
        judged_by: `sets` or `samples`; None likewise.
        tried: the score of each penalty, as `C=...,boost=...`.
    """

    penalty: Penalty
    score: float | None = None
    judged_by: str | None = None
    tried: dict[str, float]

    def notes(self) -> dict[str, object]:
        """The choice as plain values."""
        return {"judged_by": self.judged_by, "judged": self.score, "tried": self.tried}


def choose_penalty(
    inputs: Inputs, rows: Rows, config: MetaConfig, *, axes: FloatArray, names: Sequence[str] | None = None
) -> Choice:
    """Chooses penalties by what was held out.

    With OOD samples of at least `LEAST_SETS` sets, folds leave whole sets out: random folds would choose what fits the
    sets at hand best, and new sets are what a detector meets. Otherwise folds are stratified. First `C` is
    chosen at a boost in the middle, from the strongest penalty on until `PATIENCE` in a row are no better, then the
    boost likewise; scores alone are tried last, so that gradients that do not pay cost nothing.

    Args:
        inputs: what made the inputs.
        rows: the samples that fit, of both classes.
        config: folds, seed, and what to choose from.
        axes: (A, G) axes of the gradient inputs; none, and scores count alone.
        names: the inputs among the scores that count, if not all do.

    Returns:
        The choice; values in the middle where nothing can be held out.
    """
    rows = _subsampled(rows)
    gradients = inputs.of_gradients
    counted = np.isin(inputs.names, list(inputs.names if names is None else names))
    along = rows.scaled[:, gradients] @ axes.T if len(axes) else np.empty((len(rows.target), 0))
    judge = _Judge(along, rows.scaled[:, ~gradients & counted], rows, _folds(rows, config))
    inverse, boosts = sorted(config.Cs), sorted(config.boosts)
    middle = Penalty(C=inverse[len(inverse) // 2], boost=boosts[(len(boosts) - 1) // 2], gradients=bool(len(axes)))
    best = judge.search([replace(middle, C=each) for each in inverse], middle)
    if (~gradients & counted).any() and len(axes):
        best = judge.search([replace(best, boost=boost) for boost in boosts], best)
        best = judge.search([replace(best, boost=boost, gradients=False) for boost in boosts], best)
    return Choice(
        penalty=best,
        score=judge.tried.get(best),
        judged_by=judge.judged_by,
        tried={_label(penalty): score for penalty, score in judge.tried.items()},
    )


def _subsampled(rows: Rows) -> Rows:
    """Every so many samples of each set, so that there are at most about `MOST_ROWS`."""
    step = -(-len(rows.target) // MOST_ROWS)
    if step == 1:
        return rows
    kept = np.concatenate([np.flatnonzero(rows.sets == name)[::step] for name in np.unique(rows.sets)])
    kept.sort()
    return Rows(scaled=rows.scaled[kept], target=rows.target[kept], sets=rows.sets[kept])


def judge_sum(
    inputs: Inputs, rows: Rows, penalty: Penalty, config: MetaConfig, *, axes: FloatArray
) -> tuple[float, float] | None:
    """How well log-odds, and their sum with scores that do not extrapolate, find sets that were not fitted on.

    Args:
        inputs: what made the inputs.
        rows: the samples that fit.
        penalty: of the log-odds.
        config: folds and seed.
        axes: as for `choose_penalty`.

    Returns:
        The mean AUROC over left-out sets of log-odds alone and of the sum; None where there are no such scores, or
        fewer than `LEAST_SETS` sets to leave out.
    """
    rows = _subsampled(rows)
    found = _folds(rows, config)
    if found is None or found[0] != "sets" or not has_stable_scores(inputs):
        return None
    areas = []
    for fit, held_out in found[1]:
        part = Rows(scaled=rows.scaled[fit], target=rows.target[fit], sets=rows.sets[fit])
        model = fit_logistic(inputs, part, penalty, axes=axes)
        with_stable = add_stable_scores(model, part.scaled[~part.target])
        areas.append(
            [
                _judged(each.of_scaled(rows.scaled[held_out]), rows.target[held_out], rows.sets[held_out], by_sets=True)
                for each in (model, with_stable)
            ]
        )
    alone, summed = np.mean(areas, axis=0)
    return float(alone), float(summed)


Fold = tuple[NDArray[np.intp], NDArray[np.intp]]


def _folds(rows: Rows, config: MetaConfig) -> tuple[str, list[Fold]] | None:
    """What is judged by, and places that fit and places held out, of each fold; None if nothing can be held out."""
    sets = np.unique(rows.sets[rows.target])
    splitter = np.random.default_rng(config.seed)
    if len(sets) >= LEAST_SETS and not np.isin(sets, rows.sets[~rows.target]).any():
        count = min(config.cv_folds, len(sets))
        set_fold = dict(zip(sets, splitter.permutation(len(sets)) % count, strict=True))
        fold = np.empty(len(rows.target), dtype=np.int64)
        fold[rows.target] = [set_fold[name] for name in rows.sets[rows.target]]
        ordinary = int((~rows.target).sum())
        fold[~rows.target] = splitter.permutation(ordinary) % count
        if ordinary >= 2 * count:
            return "sets", [(np.flatnonzero(fold != place), np.flatnonzero(fold == place)) for place in range(count)]
    folds = min(config.cv_folds, int(rows.target.sum()), int((~rows.target).sum()))
    if folds < 2:
        return None
    stratified = StratifiedKFold(folds, shuffle=True, random_state=config.seed)
    return "samples", list(stratified.split(rows.scaled, rows.target))


class _Judge:
    def __init__(
        self, gradients: FloatArray, scores: FloatArray, rows: Rows, folds: tuple[str, list[Fold]] | None
    ) -> None:
        self._gradients, self._scores, self._rows = gradients, scores, rows
        self.judged_by: str | None = None
        self._folds: list[Fold] = []
        if folds is not None:
            self.judged_by, self._folds = folds
        self._weights = [balanced_weights(rows.target[fit], rows.sets[fit]) for fit, _ in self._folds]
        self._solvers: dict[tuple[int, bool], LogisticRegression] = {}
        self.tried: dict[Penalty, float] = {}

    def search(self, penalties: Sequence[Penalty], best: Penalty) -> Penalty:
        """The best of a series of penalties and of what was best before it.

        The series ends when `PATIENCE` in a row are no better than the best of the series itself: it may begin far
        below what was best before, and rise above it.
        """
        if not self._folds:
            return best
        highest, worse = -np.inf, 0
        for penalty in penalties:
            if penalty not in self.tried:
                self.tried[penalty] = self._score(penalty)
            worse = 0 if self.tried[penalty] > highest else worse + 1
            highest = max(highest, self.tried[penalty])
            if best not in self.tried or self.tried[penalty] > self.tried[best]:
                best = penalty
            if worse == PATIENCE:
                break
        return best

    def _score(self, penalty: Penalty) -> float:
        x = joined(self._gradients, self._scores, penalty)
        return float(np.mean([self._of_fold(place, x, penalty) for place in range(len(self._folds))]))

    def _of_fold(self, place: int, x: FloatArray, penalty: Penalty) -> float:
        fit, held_out = self._folds[place]
        target = self._rows.target
        key = (place, penalty.gradients)
        # Each fit of a fold goes on from the one before.
        solver = regress(x[fit], target[fit], self._weights[place], penalty.C, start=self._solvers.get(key))
        self._solvers[key] = solver
        odds = solver.decision_function(x[held_out])
        return _judged(odds, target[held_out], self._rows.sets[held_out], by_sets=self.judged_by == "sets")


def _judged(odds: FloatArray, target: BoolArray, sets: NDArray[np.str_], *, by_sets: bool) -> float:
    if not by_sets:
        p = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
        return -float(log_loss(target, p, sample_weight=balanced_weights(target, sets), labels=[False, True]))
    return mean_area(odds, target, sets)


def mean_area(scores: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> float:
    """The mean over OOD sets of the AUROC against all ordinary samples.

    Args:
        scores: (N,) higher = more likely OOD.
        target: (N,) bool, True for OOD samples.
        sets: (N,) names of the sets they come from.
    """
    found = []
    for name in np.unique(sets[target]):
        rows = ~target | (sets == name)
        found.append(float(roc_auc_score(target[rows], scores[rows])))
    return float(np.mean(found))


def _label(penalty: Penalty) -> str:
    alone = "" if penalty.gradients else ",scores alone"
    return f"C={penalty.C:g},boost={penalty.boost:g}{alone}"
