"""The penalties of meta models, chosen by cross-validation on samples that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..config import MetaConfig
from ..system import BoolArray, FloatArray
from .alarms import LeftOutSets
from .fitting import Penalty, log_odds_of, start_and_scores
from .inputs import BASELINE_PREFIX, MetaInputs
from .placements import Placements, mean_area
from .regression import Regression
from .training_set import Fold, TrainingSet, balanced_weights, held_out_folds, subsampled

STARTS = ("augmentations_temperature", "msp")
"""Baselines that models of wrong predictions start from; the first that is there counts."""

ERRORS = 1.5
"""Standard errors by which a stronger penalty may rank worse than the best and still count.

Breiman et al. 1984 have one. On fits of 200 and 400 samples of five networks (docs/meta-model.md) both gain as much in
the mean, and the largest loss to the start is .007 with 1.5, and .019 with one; on three networks that took no part in
this choice it is .048 and .089.
"""

FEW_ERRORS = 10
"""With fewer wrong predictions nothing corrects what their model starts from."""

PATIENCE = 2
"""Penalties in a row that are no better than the best, after which weaker ones are not tried."""


@dataclass(frozen=True, kw_only=True)
class PenaltyChoice:
    """Penalties and how they were found.

    Attributes:
        penalties: those chosen; several have models whose mean is taken.
        score: of the last of these what was judged by, higher = better: minus the log loss of held-out samples, or the
            mean AUROC of held-out sets; None where there was nothing to hold out.
        judged_by: `sets` or `samples`; None likewise.
        tried: the score of each penalty, as `C=...,boost=...`.
        left_out: what fits with the chosen penalties say of left-out sets, if these judged; they are told apart.
        slope: what makes log-odds of held-out samples those that they would be fitted with (Platt 1999), 1 at most: a
            fit is surer of the samples that it has seen. 1 where no samples were held out, and of OOD models.
    """

    penalties: tuple[Penalty, ...]
    score: float | None = None
    judged_by: str | None = None
    tried: dict[str, float]
    left_out: LeftOutSets | None = field(default=None, compare=False, repr=False)
    slope: float = 1.0

    def notes(self) -> dict[str, object]:
        """The choice as plain values."""
        return {"judged_by": self.judged_by, "judged": self.score, "tried": self.tried}


def choose_penalty(
    inputs: MetaInputs,
    rows: TrainingSet,
    config: MetaConfig,
    *,
    axes: FloatArray,
    names: Sequence[str] | None = None,
    from_start: bool = False,
    new_sets: bool = True,
) -> PenaltyChoice:
    """Chooses penalties by what was held out.

    With OOD samples of at least `LEAST_SETS` sets, folds leave whole sets out: random folds would choose what fits the
    sets at hand best, and new sets are what a detector meets. Otherwise folds are stratified. First `C` is
    chosen at a boost in the middle, from the strongest penalty on until `PATIENCE` in a row are no better, then the
    boost likewise; scores alone are tried last, so that gradients that do not pay cost nothing.

    What starts from a baseline may be that alone, and of all that was tried the AUROC of held-out samples chooses, see
    `_Judge.best_rankings`.

    Args:
        inputs: what made the inputs.
        rows: the samples that fit, of both classes.
        config: folds, seed, and what to choose from.
        axes: (A, G) axes of the gradient inputs; none, and scores count alone.
        names: the inputs among the scores that count, if not all do.
        from_start: models start from the first of `STARTS` that counts.
        new_sets: whether OOD sets are left out whole, if there are enough; else samples are.

    Returns:
        The choice; values in the middle where nothing can be held out.
    """
    rows = subsampled(rows)
    gradients = inputs.of_gradients
    starts = [f"{BASELINE_PREFIX}{name}" for name in STARTS if from_start]
    start = next((name for name in starts if name in inputs.names and (names is None or name in names)), None)
    place, scores = start_and_scores(inputs, start, names)
    along = rows.scaled[:, gradients] @ axes.T if len(axes) else np.empty((len(rows.target), 0))
    judge = _Judge(along, rows.scaled[:, scores], rows.scaled[:, place], rows, held_out_folds(rows, config, new_sets))
    inverse, boosts = sorted(config.Cs), sorted(config.boosts)
    middle = Penalty(
        C=inverse[len(inverse) // 2], boost=boosts[(len(boosts) - 1) // 2], gradients=bool(len(axes)), start=start
    )
    best = judge.search([replace(middle, C=each) for each in inverse], middle)
    if len(scores) and len(axes):
        best = judge.search([replace(best, boost=boost) for boost in boosts], best)
        best = judge.search([replace(best, boost=boost, gradients=False) for boost in boosts], best)
    chosen = (best,) if start is None else judge.best_rankings(replace(middle, boost=0.0, gradients=False))
    best = chosen[-1]
    return PenaltyChoice(
        penalties=chosen,
        score=judge.tried.get(best),
        judged_by=judge.judged_by,
        left_out=judge.left_out(best),
        slope=judge.slope(chosen) if from_start else 1.0,
        tried={_label(penalty): score for penalty, score in judge.tried.items()},
    )


class _Judge:
    def __init__(
        self,
        gradients: FloatArray,
        scores: FloatArray,
        start: FloatArray,
        rows: TrainingSet,
        folds: tuple[str, list[Fold]] | None,
    ) -> None:
        self._rows, self._x = rows, np.hstack([gradients, scores, start])
        self._widths = gradients.shape[1], scores.shape[1], start.shape[1]
        self.judged_by: str | None = None
        self._folds: list[Fold] = []
        if folds is not None:
            self.judged_by, self._folds = folds
        self._weights = [balanced_weights(rows.target[fit], rows.sets[fit]) for fit, _ in self._folds]
        self._regressions: dict[tuple[int, int], Regression] = {}
        self._odds: dict[Penalty, list[FloatArray]] = {}
        self.tried: dict[Penalty, float] = {}

    def left_out(self, penalty: Penalty) -> LeftOutSets | None:
        """What fits with a penalty say of left-out sets; None where none were, or fits tell no samples apart."""
        if self.judged_by != "sets":
            return None
        found = LeftOutSets(rows=self._rows, folds=self._folds, odds=self._odds[penalty])
        return found if found.differ(found.odds) else None

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

    def best_rankings(self, alone: Penalty) -> tuple[Penalty, ...]:
        """The penalty by which held-out samples of all folds together have the highest AUROC, and stronger ones.

        Stronger are those of a lower C x boost squared. They count where their AUROC is lower by at most `ERRORS`
        standard errors of the paired difference: so few samples do not tell so many penalties apart, and the highest
        AUROC is as often luck as it is the best.

        Args:
            alone: leaves nothing but the start. It is tried as well, and chosen where nothing can be held out, or fewer
                than `FEW_ERRORS` wrong predictions: two or three cost as much as .2 of AUROC.

        Returns:
            The penalties, the strongest first.

        Source: DeLong, DeLong and Clarke-Pearson 1988, for the standard error.
        """
        if not self._folds or self._rows.target.sum() < FEW_ERRORS:
            return (alone,)
        self.search([alone], alone)
        placed: dict[Penalty, Placements] = {}
        for penalty in sorted(self._odds, key=lambda each: (each.C * each.boost**2, each.gradients)):
            placed[penalty] = Placements.of(self._held_out(penalty), self._rows.target)
        order = list(placed)
        best = max(order, key=lambda each: placed[each].of_positives.mean())

        def is_as_good(penalty: Penalty) -> bool:
            gap = placed[best] - placed[penalty]
            return bool(gap.of_positives.mean() <= ERRORS * np.sqrt(gap.variance))

        return tuple(each for each in order[: order.index(best) + 1] if is_as_good(each))

    def slope(self, penalties: Sequence[Penalty]) -> float:
        """See `PenaltyChoice`: that of the mean of fits with some penalties."""
        if self.judged_by != "samples" or not self._odds.keys() >= {*penalties}:
            return 1.0
        odds = np.mean([self._held_out(penalty) for penalty in penalties], axis=0)
        line = log_odds_of(odds, self._rows.target, self._rows.sets)
        return 1.0 if line is None else min(1.0, line[0][0])

    def _held_out(self, penalty: Penalty) -> FloatArray:
        """Log-odds (N,) of all samples, each by the fit that did not see it."""
        found = np.empty(len(self._rows.target))
        for (_, out), odds in zip(self._folds, self._odds[penalty], strict=True):
            found[out] = odds[out]
        return found

    def _score(self, penalty: Penalty) -> float:
        target, sets = self._rows.target, self._rows.sets
        self._odds[penalty] = [self._odds_of(place, penalty) for place in range(len(self._folds))]
        judged = mean_area if self.judged_by == "sets" else _balanced_score
        held_out = zip(self._folds, self._odds[penalty], strict=True)
        return float(np.mean([judged(odds[out], target[out], sets[out]) for (_, out), odds in held_out]))

    def _odds_of(self, place: int, penalty: Penalty) -> FloatArray:
        widths = penalty.counted(*self._widths)
        # What takes no part stands in front: without scores there are no gradients either.
        seen = self._x[:, self._x.shape[1] - sum(widths) :]
        key = (place, seen.shape[1])
        if key not in self._regressions:
            fit, _ = self._folds[place]
            self._regressions[key] = Regression(seen[fit], self._rows.target[fit], self._weights[place])
        return self._regressions[key].fit(penalty.of_inputs(*widths)).odds(seen)


def _balanced_score(odds: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> float:
    return -log_loss(odds, target, balanced_weights(target, sets))


def log_loss(odds: FloatArray, target: BoolArray, weights: FloatArray) -> float:
    """The weighted mean of -log p of what each sample is, by log-odds (N,); no p is below the rounding of one.

    scikit-learn's, to the bit, whose checks of its arguments take a fifth of the time of a small fit.
    """
    rounding = np.finfo(np.float64).eps
    p = np.clip(1 / (1 + np.exp(-np.clip(odds, -700, 700))), rounding, 1 - rounding)
    return float(np.average(-np.log(np.where(target, p, 1 - p)), weights=weights))


def _label(penalty: Penalty) -> str:
    if not penalty.boost:
        return "start alone"
    alone = "" if penalty.gradients else ",scores alone"
    return f"C={penalty.C:g},boost={penalty.boost:g}{alone}"
