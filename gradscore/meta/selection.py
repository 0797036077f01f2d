"""The penalties of a meta model, by cross-validation on samples that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ..config import MetaConfig
from ..system import BoolArray, FloatArray
from .fitting import (
    OF_GRADIENTS,
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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Penalties and how they were found.

    Attributes:
        penalty: those chosen.
        score: what was judged by, higher = better: minus the log loss of held-out samples, or the mean AUROC of held-out
            sets; None where there was nothing to hold out.
        judged_by: `sets` or `samples`; None likewise.
        tried: the score of each penalty, as `strength=...,boost=...`.
    """

    penalty: Penalty
    score: float | None = None
    judged_by: str | None = None
    tried: dict[str, float]

    def notes(self) -> dict[str, object]:
        """The choice as plain values."""
        return {"judged_by": self.judged_by, "judged": self.score, "tried": self.tried}


def choose_penalty(inputs: Inputs, rows: Rows, config: MetaConfig, *, axes: FloatArray, names: list[str] | None = None) -> Choice:
    """Chooses penalties by what was held out.

    With OOD samples of at least `LEAST_SETS` sets, folds leave whole sets out: random folds would choose what fits the
    sets at hand best, and new sets are what a detector meets. Otherwise folds are stratified. First the strength is
    chosen, at the middle boost, then the boost; scores alone are tried last. Ties go to the stronger regularisation.

    Args:
        inputs: what made the inputs.
        rows: the samples that fit, of both classes.
        config: folds, seed, and what to choose from.
        axes: (A, G) axes of the gradient inputs.
        names: the inputs that count, if not all do; gradients then do not.

    Returns:
        The choice; the middle ones where nothing can be held out.
    """
    gradients = np.flatnonzero([group in OF_GRADIENTS for group in inputs.groups])
    counted = [name for name in inputs.names if names is None or name in set(names)]
    scores = np.flatnonzero(
        [group not in OF_GRADIENTS and name in set(counted) for group, name in zip(inputs.groups, inputs.names, strict=True)]
    )
    alone = names is not None or not len(axes)
    judge = _Judge(rows.scaled[:, gradients] @ axes.T, rows.scaled[:, scores], rows, _folds(rows, config))
    strengths, boosts = sorted(config.strengths), sorted(config.boosts)
    middle = boosts[len(boosts) // 2]
    judge.try_all([Penalty(strength=strength, boost=middle, gradients=not alone) for strength in strengths])
    best = judge.best(Penalty(strength=strengths[len(strengths) // 2], boost=middle, gradients=not alone))
    if not alone and len(scores):
        judge.try_all([Penalty(strength=best.strength, boost=boost) for boost in boosts if boost != middle])
        best = judge.best(best)
        judge.try_all([Penalty(strength=best.strength, boost=boost, gradients=False) for boost in boosts])
        best = judge.best(best)
    return Choice(
        penalty=best,
        score=judge.tried.get(best),
        judged_by=judge.judged_by,
        tried={_in_words(penalty): score for penalty, score in judge.tried.items()},
    )


def sum_pays(inputs: Inputs, rows: Rows, penalty: Penalty, config: MetaConfig, *, axes: FloatArray) -> bool:
    """Whether a sum with scores that do not extrapolate finds sets that were not fitted on better than log-odds alone.

    Args:
        inputs: what made the inputs.
        rows: the samples that fit.
        penalty: of the log-odds.
        config: folds and seed.
        axes: as for `choose_penalty`.

    Returns:
        False too where there are no such scores, or fewer than `LEAST_SETS` sets to leave out.
    """
    found = _folds(rows, config)
    if found is None or found[0] != "sets" or not has_stable_scores(inputs):
        return False
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
    return bool(summed > alone)


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
        self.judged_by, self._folds = folds or (None, [])
        self.tried: dict[Penalty, float] = {}

    def best(self, otherwise: Penalty) -> Penalty:
        """The penalty with the highest score; of equal ones the first."""
        return max(self.tried, key=lambda penalty: self.tried[penalty]) if self.tried else otherwise

    def try_all(self, penalties: list[Penalty]) -> None:
        """Judges penalties, those of one width from the strongest on, each fit going on from the one before."""
        if not self._folds or not penalties:
            return
        found = [list(self._of_fold(fold, penalties)) for fold in self._folds]
        for penalty, score in zip(penalties, np.mean(found, axis=0), strict=True):
            self.tried[penalty] = float(score)

    def _of_fold(self, fold: Fold, penalties: list[Penalty]) -> Iterator[float]:
        fit, held_out = fold
        target = self._rows.target
        weights = balanced_weights(target[fit], self._rows.sets[fit])
        solver: LogisticRegression | None = None
        for penalty in penalties:
            x = joined(self._gradients, self._scores, penalty)
            solver = regress(x[fit], target[fit], weights, penalty.strength, start=solver)
            odds = solver.decision_function(x[held_out])
            yield _judged(odds, target[held_out], self._rows.sets[held_out], by_sets=self.judged_by == "sets")


def _judged(odds: FloatArray, target: BoolArray, sets: NDArray[np.str_], *, by_sets: bool) -> float:
    if not by_sets:
        p = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
        return -float(log_loss(target, p, sample_weight=balanced_weights(target, sets), labels=[False, True]))
    found = []
    for name in np.unique(sets[target]):
        rows = ~target | (sets == name)
        found.append(float(roc_auc_score(target[rows], odds[rows])))
    return float(np.mean(found))


def _in_words(penalty: Penalty) -> str:
    alone = "" if penalty.gradients else ",scores alone"
    return f"strength={penalty.strength:g},boost={penalty.boost:g}{alone}"
