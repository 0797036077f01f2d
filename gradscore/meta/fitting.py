"""Fitting meta models: a logistic regression over groups of inputs, each with a penalty of its own.

scikit-learn is imported where it is used: a scorer, which fits nothing, need not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from ..errors import EvaluationError
from ..system import BoolArray, FloatArray
from .inputs import MetaInputs
from .models import MetaModel, prevalence_shift
from .regression import Regression
from .training_set import TrainingSet, balanced_weights

AXES = 200
"""Principal axes of the gradient inputs that fits see.

They hold 95 % of the variance of the 1,302 gradient inputs of a CIFAR-10 ResNet-20; with more of them no AUROC moves by
more than 0.0005 there.
"""

WIDE = 2000
"""Up to so many inputs the decomposition of their covariance is faster than a randomised one of the samples."""

LEAST_SLOPE = 0.1
"""Log-odds rise by no less with what alarms raise, and with a start that nothing corrects: a set amid
in-distribution samples says nothing of what is far from them, and one wrong label nothing of a baseline."""

FREE = 100.0
"""`C` of the coefficient of what a model starts from: next to no penalty."""


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

    def counted(self, axes: int, scores: int, starts: int) -> tuple[int, int, int]:
        """How many take part of so many axes of gradients, scores, and inputs to start from."""
        return axes if self.gradients else 0, scores if self.boost else 0, starts

    def of_inputs(self, axes: int, scores: int, starts: int) -> FloatArray:
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
    inputs: MetaInputs,
    rows: TrainingSet,
    *penalties: Penalty,
    axes: FloatArray | None = None,
    names: Sequence[str] | None = None,
    slope: float = 1.0,
) -> MetaModel:
    """Fits log-odds that are linear in the scaled inputs; with several penalties, the mean of as many fits.

    Args:
        inputs: what made the inputs.
        rows: the samples, of both classes.
        penalties: of the coefficients, at least one; all have the same start.
        axes: (A, G) axes of the G gradient inputs to fit along; found in these rows if None and gradients take part.
        names: of the scores that count, gradients then do not: what meta models gain over such a fit, they gain by the
            rest. All count if None.
        slope: of the log-odds that probabilities are of, as `PenaltyChoice` has it; scores stay as they are.

    Returns:
        The model; its notes say the penalties, whether all fits converged, and how many samples there were.

    Raises:
        EvaluationError: samples of one class only.
    """
    if rows.target.all() or not rows.target.any():
        raise EvaluationError(
            f"fit: wanted samples of two classes, got {int(rows.target.sum())} positive of {len(rows.target)}"
        )
    gradients = np.flatnonzero(inputs.of_gradients)
    if names is not None or not any(penalty.gradients for penalty in penalties):
        axes = np.empty((0, 0))
    elif axes is None:
        axes = leading_axes(rows.scaled[:, _as_slice(gradients)])
    along = rows.scaled[:, _as_slice(gradients)] @ axes.T if len(axes) else np.empty((len(rows.scaled), 0))
    start, scores = start_and_scores(inputs, penalties[0].start, names)
    parts = along, rows.scaled[:, scores], rows.scaled[:, start]
    coefficients, intercepts, odds, converged = np.zeros((len(penalties), len(inputs.names))), [], [], True
    for found, penalty in zip(coefficients, penalties, strict=True):
        widths = penalty.counted(len(axes), len(scores), len(start))
        x = np.hstack([part[:, :width] for part, width in zip(parts, widths, strict=True)])
        fit = Regression(x, rows.target, rows.weights).fit(penalty.of_inputs(*widths))
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


def start_and_scores(
    inputs: MetaInputs, start: str | None, names: Sequence[str] | None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the start is among inputs, if there is one, and the scores that correct it: of these names, or all."""
    is_start = np.isin(inputs.names, [] if start is None else [start])
    counted = inputs.of_scores & np.isin(inputs.names, list(inputs.names if names is None else names))
    return np.flatnonzero(is_start), np.flatnonzero(counted & ~is_start)


def _as_slice(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Neighbouring places as a slice, which copies nothing."""
    start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return slice(start, stop) if stop - start == len(places) else places
