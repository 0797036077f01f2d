"""Fitting meta models: a logistic regression over groups of inputs, each with a penalty of its own.

Penalties are chosen by cross-validation on samples that fit. scikit-learn is imported where it is used: a scorer, which
fits nothing, need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from ..baselines import OVER_AUGMENTATIONS
from ..config import MetaConfig
from ..data import LEAST_SETS
from ..errors import EvaluationError
from ..system import BoolArray, FloatArray, product
from .inputs import BASELINE_PREFIX, MetaInputs
from .models import DISTANCES, EXPECTED, OWN, Alarms, MetaModel, prevalence_shift, weights_of
from .placements import Placements, area_among
from .regression import Regression

_ONE_CLASS = {OWN: 2.0, **dict.fromkeys(DISTANCES, 1.0), "energy": 0.5, "ash": 0.5}
"""What scores count for a model that has seen in-distribution samples alone. Energy and ASH say much the same."""

_POWER = 0.5
"""Of tail probabilities there: between their harmonic mean and Fisher's sum of logarithms."""

_LEAST_VARIANCE = 1e-6
"""Axes with less of the largest variance are stretched no further."""

MOST_KEPT = 5000
"""In-distribution samples that such a model keeps at most, drawn at random of more."""

AXES = 200
"""Principal axes of the gradient inputs that fits see.

They hold 95 % of the variance of the 1,302 gradient inputs of a CIFAR-10 ResNet-20; with more of them no AUROC moves by
more than 0.0005 there.
"""

WIDE = 2000
"""Up to so many inputs the decomposition of their covariance is faster than a randomised one of the samples."""

SHARES = tuple(2.0**-halvings for halvings in range(7))
"""What alarms may count of what their errors give them."""

EXPECTED_WEIGHT = 0.5
"""What an alarm of expected kinds counts, where the model's own score counts 1 (docs/meta-model.md)."""

LEAST_SLOPE = 0.1
"""Log-odds rise by no less with what alarms raise, and with a start that nothing corrects: a set amid
in-distribution samples says nothing of what is far from them, and one wrong label nothing of a baseline."""

MOST_ROWS = 10_000
"""Samples that penalties are judged on, of more so many drawn at random, the same share of each set. On CIFAR-10, of
19,000 samples, the same penalties are chosen."""

STARTS = ("augmentations_temperature", "msp")
"""Baselines that models of wrong predictions start from; the first that is there counts."""

FREE = 100.0
"""`C` of the coefficient of what a model starts from: next to no penalty."""

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
        kept = ~self.target | np.isin(self.sets, list(sets))
        content = None if self.content is None else self.content[kept]
        return TrainingSet(scaled=self.scaled[kept], target=self.target[kept], sets=self.sets[kept], content=content)


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The L2 penalty of the coefficients.

    Attributes:
        C: inverse of the penalty on the coefficients of gradients, as in scikit-learn.
        boost: scores are multiplied by this before they meet the same penalty, which weakens theirs by its square; at
            0 they take no part, and gradients take none either where penalties are chosen.
        gradients: whether gradients take part.
        start: the input that log-odds start from, whose coefficient is not penalised: all others correct it. None where
            there is none.
    """

    C: float
    boost: float
    gradients: bool = True
    start: str | None = None

    def of_inputs(self, *, axes: int, scores: int, starts: int) -> FloatArray:
        """The penalty of the square of each coefficient: of axes of gradients, scores, and what is started from."""
        of_scores = 1 / (self.C * self.boost**2) if scores else 0.0
        return np.repeat([1 / self.C, of_scores, 1 / FREE], [axes, scores, starts])


def leading_axes(scaled: FloatArray) -> FloatArray:
    """Axes (A, D) of unit length that hold most of the variance of scaled inputs (N, D), A at most `AXES`.

    Where there are no more inputs than that, they are the axes themselves. Penalties are the same in every rotated
    frame, so that a fit on all axes is a fit on the inputs.

    Source: Halko, Martinsson and Tropp 2011, for the randomised decomposition.
    """
    from sklearn.decomposition import PCA

    samples, width = scaled.shape
    if width <= AXES:
        return np.eye(width)
    count, values = min(AXES, samples), scaled.astype(np.float32)
    if width > WIDE:
        axes = PCA(count, svd_solver="randomized", iterated_power=2, random_state=0).fit(values).components_
    else:
        values -= values.mean(axis=0)
        axes = eigh(values.T @ values, subset_by_index=(width - count, width - 1), check_finite=False)[1].T[::-1]
    return np.asarray(axes, dtype=np.float64)


def fit_logistic(
    inputs: MetaInputs, rows: TrainingSet, *penalties: Penalty, axes: FloatArray | None = None, slope: float = 1.0
) -> MetaModel:
    """Fits log-odds that are linear in the scaled inputs; with several penalties, the mean of as many fits.

    Args:
        inputs: what made the inputs.
        rows: the samples, of both classes.
        penalties: of the coefficients, at least one; all have the same start.
        axes: (A, G) axes of the G gradient inputs to fit along; found in these rows if None and gradients take part.
        slope: of the log-odds that probabilities are of, as `Choice` has it; scores stay as they are.

    Returns:
        The model; its notes say the penalties, whether all fits converged, and how many samples there were.

    Raises:
        EvaluationError: samples of one class only.
    """
    if not any(penalty.gradients for penalty in penalties):
        axes = np.empty((0, 0))
    elif axes is None:
        axes = leading_axes(rows.scaled[:, _as_slice(np.flatnonzero(inputs.of_gradients))])
    return _fitted(inputs, rows, penalties, axes=axes, counted=inputs.of_scores, slope=slope)


def fit_on_scores(
    inputs: MetaInputs, rows: TrainingSet, *penalties: Penalty, names: Sequence[str], slope: float = 1.0
) -> MetaModel:
    """Fits log-odds that see nothing but some scores: what meta models gain over it, they gain by the rest.

    Args:
        inputs: what made the inputs.
        rows: the samples, of both classes.
        penalties: as in `fit_logistic`; gradients take no part.
        names: of the inputs that count.
        slope: as in `fit_logistic`.

    Raises:
        EvaluationError: samples of one class only.
    """
    counted = inputs.of_scores & np.isin(inputs.names, list(names))
    return _fitted(inputs, rows, penalties, axes=np.empty((0, 0)), counted=counted, slope=slope)


def fit_seeing(
    inputs: MetaInputs,
    rows: TrainingSet,
    penalties: Sequence[Penalty],
    names: Sequence[str] | None,
    axes: FloatArray | None = None,
) -> MetaModel:
    """`fit_on_scores` of these names; without names `fit_logistic`, along the axes if they are given."""
    if names is None:
        return fit_logistic(inputs, rows, *penalties, axes=axes)
    return fit_on_scores(inputs, rows, *penalties, names=names)


def _fitted(
    inputs: MetaInputs,
    rows: TrainingSet,
    penalties: Sequence[Penalty],
    *,
    axes: FloatArray,
    counted: BoolArray,
    slope: float,
) -> MetaModel:
    """Regressions along axes of the gradient inputs and on some scores, as coefficients of the inputs themselves."""
    if rows.target.all() or not rows.target.any():
        raise EvaluationError(
            f"fit: wanted samples of two classes, got {int(rows.target.sum())} positive of {len(rows.target)}"
        )
    gradients = np.flatnonzero(inputs.of_gradients)
    along = rows.scaled[:, _as_slice(gradients)] @ axes.T if len(axes) else np.empty((len(rows.scaled), 0))
    start, scores = _places(inputs, counted, penalties[0].start)
    parts = along, rows.scaled[:, scores], rows.scaled[:, start]
    coefficients, intercepts, odds, converged = np.zeros((len(penalties), len(inputs.names))), [], [], True
    for found, penalty in zip(coefficients, penalties, strict=True):
        widths = len(axes) if penalty.gradients else 0, len(scores) if penalty.boost else 0, len(start)
        x = np.hstack([part[:, :width] for part, width in zip(parts, widths, strict=True)])
        fit = Regression(x, rows.target, rows.weights).fit(
            penalty.of_inputs(axes=widths[0], scores=widths[1], starts=widths[2])
        )
        if x.shape[1] == len(start) and not (fit.coefficients > 0).all():
            # A start that nothing corrects says no less than that it rises, whatever a few samples say.
            fit = replace(fit, coefficients=np.full(len(start), LEAST_SLOPE), intercept=0.0)
        of_axes, of_scores, of_start = np.split(fit.coefficients, np.cumsum(widths[:2]))
        if len(of_axes):
            found[gradients] = of_axes @ axes
        found[scores[: len(of_scores)]], found[start] = of_scores, of_start
        intercepts.append(fit.intercept)
        odds.append(fit.odds(x))
        converged &= fit.converged
    share = float(rows.target.mean())
    return MetaModel(
        kind="logistic",
        inputs=inputs,
        arrays={"coefficients": coefficients.mean(axis=0), "intercept": np.array([np.mean(intercepts)])},
        notes={
            "slope": slope,
            "shift": prevalence_shift(slope * np.mean(odds, axis=0), share=share),
            "penalties": [asdict(penalty) for penalty in penalties],
            "converged": converged,
            "n": len(rows.target),
            "n_positive": int(rows.target.sum()),
        },
    )


def alarms_in(inputs: MetaInputs, names: Iterable[str] = DISTANCES) -> dict[str, int]:
    """Places of the inputs that raise alarms beside a model, over augmentations where there are some, by baseline."""
    found = {name: _best_input(inputs, name) for name in names}
    return {name: inputs.names.index(place) for name, place in found.items() if place is not None}


def alarm_weights(inputs: MetaInputs, left_out: LeftOutSets | None) -> dict[str, float]:
    """What a model's own score and the inputs that raise alarms count, by how well they find sets that were left out.

    How much a score errs gives its weight (`weights_of`). Then all alarms count the largest of `SHARES` of theirs whose
    AUROC is within one standard error of the best: where distances tell less than the model, they cost near sets. That
    the model was right about all left-out sets does not show that it always will be, so no share is zero.

    Source: Breiman et al. 1984, for the rule of one standard error.

    Args:
        inputs: what made the inputs.
        left_out: what the model says of left-out sets; None where there were none: all count the same.
    """
    places = alarms_in(inputs)
    if left_out is None:
        return dict.fromkeys([OWN, *places], 1.0)
    rows = left_out.rows
    places = {
        name: place for name, place in places.items() if left_out.differ([rows.scaled[:, place]] * len(left_out.folds))
    }
    errors = {name: 1 - mean_area(rows.scaled[:, place], rows.target, rows.sets) for name, place in places.items()}
    weights = weights_of({OWN: 1 - float(left_out.areas({}, {OWN: 1.0}).mean()), **errors})
    of_share = {
        share: {name: weight * (1.0 if name == OWN else share) for name, weight in weights.items()} for share in SHARES
    }
    areas = {share: left_out.areas(places, each) for share, each in of_share.items()}
    best = max(areas.values(), key=np.mean)
    behind = {share: best - each for share, each in areas.items()}
    chosen = max(share for share, each in behind.items() if each.mean() <= each.std(ddof=1) / np.sqrt(len(each)))
    return of_share[chosen]


def add_alarms(
    model: MetaModel, rows: TrainingSet, weights: Mapping[str, float], expected: MetaModel | None = None
) -> MetaModel:
    """Lets inputs raise alarms beside a model, see `Alarms`; its score stays log-odds where there are positives.

    Args:
        model: without alarms.
        rows: the samples that it was fitted on.
        weights: as `alarm_weights` gives them.
        expected: a model of the OOD sets whose kinds are expected, which raises alarms as well.

    Returns:
        The model; as it was where no input raises alarms, or all in-distribution samples have one score.
    """
    in_dist, own_of_all = rows.scaled[~rows.target], model.compared(rows.scaled)[0]
    own = own_of_all[~rows.target]
    places = {name: place for name, place in alarms_in(model.inputs).items() if name in weights}
    places = {name: place for name, place in places.items() if np.ptp(in_dist[:, place]) > 0}
    linear = np.empty((0, in_dist.shape[1])) if expected is None else expected.arrays["coefficients"][None]
    linear = linear[np.ptp(product(in_dist, linear.T), axis=0) > 0]
    if not (places or len(linear)) or not np.ptp(own) > 0:
        return model
    counts = [weights[name] for name in (OWN, *places)] + [EXPECTED_WEIGHT] * len(linear)
    alarms = Alarms.fit(own, in_dist, np.array(list(places.values()), int), np.array(counts), linear=linear)
    notes = {**model.notes, "alarms": dict(weights)}
    if expected is not None:
        notes[EXPECTED] = expected.notes["penalties"]
    if rows.target.any():
        found = log_odds_of(alarms.sum(own_of_all, rows.scaled), rows.target, rows.sets, least=LEAST_SLOPE)
        if found is None:
            return model
        line, notes["shift"] = found
        alarms = replace(alarms, line=np.array(line))
    return replace(model, arrays={**model.arrays, **alarms.arrays()}, notes=notes)


def fit_one_class(inputs: MetaInputs, in_dist: FloatArray) -> MetaModel:
    """Fits a model that has seen in-distribution samples alone: the nearest of them by gradients, and alarms.

    Its own score is the logarithm of the distance to the nearest of them along the leading axes of the gradient inputs,
    each divided by the fourth root of its variance: halfway between inputs as they are and whitened ones. Energy, ASH
    and distances raise alarms beside it, see `MetaModel.compared` and `Alarms`.

    Source: Ledoit and Wolf 2004, for the shrinkage of the variances.

    Args:
        inputs: what made the inputs.
        in_dist: (N, D) scaled inputs of in-distribution samples, N >= 4.

    Raises:
        EvaluationError: fewer samples, or samples that do not differ.
    """
    from sklearn.covariance import LedoitWolf

    if len(in_dist) < 4:
        raise EvaluationError(f"fit: a distance needs at least 4 in-distribution samples, got {len(in_dist)}")
    gradients = in_dist[:, inputs.of_gradients]
    if not np.ptp(gradients, axis=0).any():
        raise EvaluationError(
            "fit: every feature of the in-distribution samples is constant; nothing to measure a distance by"
        )
    axes = leading_axes(gradients)
    estimate = LedoitWolf().fit(gradients @ axes.T)
    variances, frame = np.linalg.eigh(estimate.covariance_)
    whole = np.zeros((len(axes), len(inputs.names)))
    whole[:, inputs.of_gradients] = frame.T @ axes
    places = {name: place for name, place in alarms_in(inputs, _ONE_CLASS).items() if np.ptp(in_dist[:, place]) > 0}
    weights, raising = {name: _ONE_CLASS[name] for name in (OWN, *places)}, np.array(list(places.values()), int)
    kept = drawn(len(in_dist), MOST_KEPT)
    stretch = np.maximum(variances, _LEAST_VARIANCE * variances.max()) ** -0.25
    arrays = {
        "axes": whole,
        "stretch": stretch,
        "in_dist": (product(in_dist[kept], whole.T) * stretch).astype(np.float32).astype(np.float64),
        "levels": in_dist[kept][:, raising],
    }
    model = MetaModel(
        kind="one_class",
        inputs=inputs,
        arrays=arrays,
        notes={"shrinkage": float(estimate.shrinkage_), "alarms": weights, "n": len(in_dist), "n_positive": 0},
    )
    own, usual = model.compared(in_dist)
    if not np.ptp(own) > 0:
        raise EvaluationError(
            "fit: in-distribution samples do not differ in their distance from each other; add samples"
        )
    alarms = Alarms.fit(own, in_dist, raising, np.array([*weights.values()]), usual=usual, power=_POWER)
    return replace(model, arrays={**arrays, **alarms.arrays()})


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


def log_odds_of(
    scores: FloatArray, target: BoolArray, sets: ArrayLike, *, least: float = 0.0
) -> tuple[tuple[float, float], float] | None:
    """Log-odds that are linear in a baseline (Platt 1999), with both classes and all sets counting the same.

    Args:
        scores: (N,) of the baseline.
        target: (N,) True for wrong predictions or OOD samples.
        sets: (N,) names of the data sets they come from.
        least: what the slope is where it would be lower.

    Returns:
        Slope and intercept, and what to add for probabilities at the share of positives; None for a baseline that is
        constant, or lower for positives where `least` is 0.
    """
    deviation = float(scores.std())
    if not deviation > 0:
        return None
    centre = float(scores.mean())
    standardised = ((scores - centre) / deviation)[:, None]
    fit = Regression(standardised, target, balanced_weights(target, sets)).fit(np.ones(1))
    slope, intercept = float(fit.coefficients[0]) / deviation, fit.intercept
    if slope < least:  # the mean is as likely the one as the other
        slope, intercept = least, 0.0
    if slope <= 0:
        return None
    line = slope, intercept - slope * centre
    return line, prevalence_shift(slope * scores + line[1], share=float(target.mean()))


def _places(inputs: MetaInputs, counted: BoolArray, start: str | None) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the start is among inputs, if there is one, and the scores that correct it."""
    is_start = np.isin(inputs.names, [] if start is None else [start])
    return np.flatnonzero(is_start), np.flatnonzero(counted & ~is_start)


def _as_slice(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Neighbouring places as a slice, which copies nothing."""
    start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return slice(start, stop) if stop - start == len(places) else places


def _best_input(inputs: MetaInputs, score: str) -> str | None:
    """The input that is a score, over augmentations where there are some."""
    wanted = (f"{BASELINE_PREFIX}{score}{OVER_AUGMENTATIONS}", f"{BASELINE_PREFIX}{score}")
    return next((name for name in wanted if name in inputs.names), None)


@dataclass(frozen=True, kw_only=True)
class LeftOutSets:
    """What fits say of OOD sets that they have not seen.

    Attributes:
        rows: samples, N of them.
        folds: places of those that fit and of those that are held out, of each fold.
        odds: (N,) log-odds by the fit of each fold.
    """

    rows: TrainingSet
    folds: list[Fold]
    odds: list[FloatArray]

    def differ(self, scores: Sequence[FloatArray]) -> bool:
        """Whether scores (N,), one array for each fold, are not the same for all in-distribution samples that fit."""
        return all(np.ptp(each[self._in_dist(fit)]) > 0 for (fit, _), each in zip(self.folds, scores, strict=True))

    def areas(self, places: Mapping[str, int], weights: Mapping[str, float]) -> FloatArray:
        """The AUROC (S,) of each set, where inputs at `places` raise alarms beside the log-odds; see `Alarms`."""
        found: list[float] = []
        counts = np.array([weights[name] for name in (OWN, *places)])
        scaled = self.rows.scaled[:, np.array(list(places.values()), int)]
        for (fit, held_out), odds in zip(self.folds, self.odds, strict=True):
            in_dist = self._in_dist(fit)
            alarms = Alarms.fit(odds[in_dist], scaled[in_dist], np.arange(len(places)), counts)
            scores = alarms.sum(odds[held_out], scaled[held_out])
            found.extend(set_areas(scores, self.rows.target[held_out], self.rows.sets[held_out]).values())
        return np.array(found)

    def _in_dist(self, fit: NDArray[np.intp]) -> NDArray[np.intp]:
        return fit[~self.rows.target[fit]]


@dataclass(frozen=True, kw_only=True)
class Choice:
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
) -> Choice:
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
    rows = _subsampled(rows)
    gradients = inputs.of_gradients
    counted = np.isin(inputs.names, list(inputs.names if names is None else names))
    starts = [f"{BASELINE_PREFIX}{name}" for name in STARTS if from_start]
    start = next((name for name in starts if name in np.array(inputs.names)[counted]), None)
    place, scores = _places(inputs, counted & inputs.of_scores, start)
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
    return Choice(
        penalties=chosen,
        score=judge.tried.get(best),
        judged_by=judge.judged_by,
        left_out=judge.left_out(best),
        slope=judge.slope(chosen) if from_start else 1.0,
        tried={_label(penalty): score for penalty, score in judge.tried.items()},
    )


def drawn(count: int, most: int) -> BoolArray:
    """A mask (count,) of up to `most` rows drawn at random, the same every time: files may be in turns of classes."""
    mask = np.zeros(count, dtype=bool)
    mask[np.random.default_rng(0).choice(count, min(count, most), replace=False)] = True
    return mask


def judged_rows(count: int, total: int) -> BoolArray:
    """A mask (count,) of the samples of a set that penalties are judged on, where there are `total` in all sets."""
    return drawn(count, -(-count * min(MOST_ROWS, total) // max(total, 1)))


def _subsampled(rows: TrainingSet) -> TrainingSet:
    """The same share of each set, drawn at random, so that there are at most about `MOST_ROWS`."""
    if len(rows.target) <= MOST_ROWS:
        return rows
    kept = np.zeros(len(rows.target), dtype=bool)
    for name in np.unique(rows.sets):
        places = np.flatnonzero(rows.sets == name)
        kept[places[judged_rows(len(places), len(kept))]] = True
    content = None if rows.content is None else rows.content[kept]
    return TrainingSet(scaled=rows.scaled[kept], target=rows.target[kept], sets=rows.sets[kept], content=content)


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
        self._widths = {"axes": gradients.shape[1], "scores": scores.shape[1], "starts": start.shape[1]}
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
        """See `Choice`: that of the mean of fits with some penalties."""
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
        held_out = zip(self._folds, self._odds[penalty], strict=True)
        by_sets = self.judged_by == "sets"
        return float(
            np.mean([_judged(odds[out], target[out], sets[out], by_sets=by_sets) for (_, out), odds in held_out])
        )

    def _odds_of(self, place: int, penalty: Penalty) -> FloatArray:
        widths = {
            "axes": self._widths["axes"] if penalty.gradients else 0,
            "scores": self._widths["scores"] if penalty.boost else 0,
            "starts": self._widths["starts"],
        }
        # What takes no part stands in front: without scores there are no gradients either.
        seen = self._x[:, self._x.shape[1] - sum(widths.values()) :]
        key = (place, seen.shape[1])
        if key not in self._regressions:
            fit, _ = self._folds[place]
            self._regressions[key] = Regression(seen[fit], self._rows.target[fit], self._weights[place])
        return self._regressions[key].fit(penalty.of_inputs(**widths)).odds(seen)


def _judged(odds: FloatArray, target: BoolArray, sets: NDArray[np.str_], *, by_sets: bool) -> float:
    return mean_area(odds, target, sets) if by_sets else -log_loss(odds, target, balanced_weights(target, sets))


def log_loss(odds: FloatArray, target: BoolArray, weights: FloatArray) -> float:
    """The weighted mean of -log p of what each sample is, by log-odds (N,); no p is below the rounding of one.

    scikit-learn's, to the bit, whose checks of its arguments take a fifth of the time of a small fit.
    """
    rounding = np.finfo(np.float64).eps
    p = np.clip(1 / (1 + np.exp(-np.clip(odds, -700, 700))), rounding, 1 - rounding)
    return float(np.average(-np.log(np.where(target, p, 1 - p)), weights=weights))


def mean_area(scores: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> float:
    """The mean of `set_areas`."""
    return float(np.mean(list(set_areas(scores, target, sets).values())))


def set_areas(scores: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> dict[str, float]:
    """The AUROC of each OOD set against all in-distribution samples, by its name.

    Args:
        scores: (N,) higher = more likely OOD.
        target: (N,) bool, True for OOD samples.
        sets: (N,) names of the sets they come from.
    """
    in_dist = np.sort(scores[~target])
    return {str(name): area_among(scores[target & (sets == name)], in_dist) for name in np.unique(sets[target])}


def _label(penalty: Penalty) -> str:
    if not penalty.boost:
        return "start alone"
    alone = "" if penalty.gradients else ",scores alone"
    return f"C={penalty.C:g},boost={penalty.boost:g}{alone}"
