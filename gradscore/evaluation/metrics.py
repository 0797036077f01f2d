"""Figures of merit: of an uncertainty score, of selective classification by it, and of probabilities.

All take scores (N,) with higher = more uncertain, and `positive` (N,), True for the samples a good score ranks high:
wrong predictions, or out-of-distribution (OOD) samples, in those of retrieving certain samples as well. The others are
called in-distribution (ID) here, whichever the task. A metric that needs both kinds and sees one is `None`. Scores that
are not finite, or of another shape than the truth, and probabilities outside [0, 1] are an `EvaluationError`. The
intervals of all metrics are in `intervals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from ..errors import EvaluationError
from ..meta import area_of
from ..system import BoolArray, FloatArray, IntArray

Metric = Callable[[ArrayLike, ArrayLike], float | None]

GRID = 500
"""Thresholds of a score that are tried, at most, for pairs of thresholds."""


def auroc(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Area under the ROC curve: the chance that a positive outranks a negative, a tie counting one half.

    See `gradscore.meta.area_of`.

    Returns:
        A value in [0, 1], or None with fewer than two classes.
    """
    values, truth = checked(scores, positive)
    if truth.all() or not truth.any():
        return None
    return area_of(values[truth], values[~truth])


def aupr_out(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Average precision with the uncertain samples (OOD, or wrong) as the class to retrieve.

    The step-wise sum over thresholds of (recall gained) x precision, tied scores entering together; a score without
    information gives the share of positives, not one half.

    Returns:
        A value in (0, 1], or None with fewer than two classes.
    """
    values, truth = checked(scores, positive)
    if truth.all() or not truth.any():
        return None
    order = np.argsort(-values, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(values[order])), len(values) - 1]
    hits = np.cumsum(truth[order])[last_of_tie]
    return float(np.sum(np.diff(hits, prepend=0) * hits / (last_of_tie + 1)) / truth.sum())


def aupr_in(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Average precision with the certain samples (ID, or correct) as the class to retrieve, by low score.

    Returns:
        A value in (0, 1], or None with fewer than two classes.
    """
    values, truth = checked(scores, positive)
    return aupr_out(-values, ~truth)


def fpr95_ood_positive(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Share of ID samples flagged by the highest threshold that flags at least 95 % of the OOD samples.

    A sample is flagged when score >= threshold. "How many false alarms does catching 95 % of the OOD samples cost?"
    The other convention is `fpr95_id_positive`; the two differ and papers use both.

    Returns:
        A value in [0, 1], lower is better, or None with fewer than two classes.
    """
    values, truth = checked(scores, positive)
    if truth.all() or not truth.any():
        return None
    positives = int(truth.sum())
    needed = -(-95 * positives // 100)
    threshold = np.sort(values[truth])[positives - needed]
    return float((values[~truth] >= threshold).mean())


def fpr95_id_positive(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Share of OOD samples accepted by the lowest threshold that accepts at least 95 % of the ID samples.

    A sample is accepted when score <= threshold. "How many OOD samples slip through when 95 % of the ID samples pass?"
    This is the convention of Hendrycks and Gimpel, 2017, as most OOD benchmarks compute it.

    Returns:
        A value in [0, 1], lower is better, or None with fewer than two classes.
    """
    values, truth = checked(scores, positive)
    return fpr95_ood_positive(-values, ~truth)


def checked(scores: ArrayLike, positive: ArrayLike) -> tuple[FloatArray, BoolArray]:
    """Scores (N,) as float64 and the truth (N,) as bool.

    Raises:
        EvaluationError: shapes differ, the truth is not boolean, or a score is not finite.
    """
    values = np.asarray(scores, dtype=np.float64)
    truth = np.asarray(positive)
    if values.ndim != 1 or values.shape != truth.shape:
        raise EvaluationError(
            f"scores and truth: wanted two arrays of one shape (N,), got {values.shape} and {truth.shape}"
        )
    if truth.size and truth.dtype != np.bool_ and not np.isin(truth, (0, 1)).all():
        raise EvaluationError("truth: wanted True for positive and False for negative samples, got other values")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise EvaluationError(f"scores: {len(bad)} of {len(values)} are not finite (first at position {bad[0]})")
    return values, truth.astype(np.bool_)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "auroc": auroc,
        "aupr_in": aupr_in,
        "aupr_out": aupr_out,
        "fpr95_ood_positive": fpr95_ood_positive,
        "fpr95_id_positive": fpr95_id_positive,
    }
)
"""Name -> function from (scores, positive) to a value or None."""

BINS = 15
"""Bins of the calibration error, as in Guo et al., 2017."""


@dataclass(frozen=True, kw_only=True)
class RiskCoverage:
    """A risk-coverage curve, one point for each distinct score.

    Samples are accepted from the lowest score upwards.

    Attributes:
        coverage: (G,) share of the samples accepted, rising to 1.
        risk: (G,) share of wrong ones among the accepted.
    """

    coverage: FloatArray
    risk: FloatArray


def risk_coverage(scores: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """The risk-coverage curve of a score.

    Args:
        scores: (N,) higher = more uncertain.
        wrong: (N,) bool, whether the prediction is wrong.
    """
    errors, sizes = _by_score(scores, wrong)
    accepted = np.cumsum(sizes)
    return RiskCoverage(coverage=accepted / max(1, sizes.sum()), risk=np.cumsum(errors) / accepted)


def aurc(scores: ArrayLike, wrong: ArrayLike) -> float | None:
    """Area under the risk-coverage curve: the mean risk of the 1, 2, ..., N most certain samples; lower is better.

    Within a group of equal scores that brings m samples and e errors after a samples with E errors, the expected risk
    of the first i samples is (E + (i - a) e / m) / i, whose sum over the group is (E - a e / m) (H_b - H_a) + e with
    b = a + m and harmonic numbers H.

    Source: Geifman, Uziel and El-Yaniv, 2019 (bias-reduced uncertainty estimation).

    Returns:
        A value in (0, 1), or None with fewer than two classes.
    """
    errors, sizes = _by_score(scores, wrong)
    if not 0 < errors.sum() < sizes.sum():
        return None
    after = np.cumsum(sizes)
    before = after - sizes
    errors_before = np.cumsum(errors) - errors
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, int(after[-1]) + 1))])
    steps = harmonic[after.astype(np.int64)] - harmonic[before.astype(np.int64)]
    return float(((errors_before - before * (errors / sizes)) * steps + errors).sum() / sizes.sum())


@dataclass(frozen=True, kw_only=True)
class DoubleScoring:
    """Best figures of two scores together, each with a threshold of its own, chosen on these very samples.

    Attributes:
        f1: the largest F1 of accepting good samples, where all in-distribution ones are to be found.
        aurc: the mean over numbers of accepted in-distribution samples of the smallest share of bad ones among all that
            are accepted.
    """

    f1: float
    aurc: float


def double_scoring(first: ArrayLike, second: ArrayLike, good: ArrayLike, in_dist: ArrayLike) -> DoubleScoring | None:
    """Figures of rejecting what is wrong or OOD by two scores: a sample is accepted if neither is above its threshold.

    Source: Li et al., 2026 (joint reliability assessment, arXiv 2603.03903), DS-F1 and DS-AURC. Their code takes 1001
    equidistant values of each score and 100 bins of coverage; here thresholds are samples' scores, of more than `GRID`
    different ones so many quantiles, and coverages have no bins: where no pair of thresholds accepts so many, the next
    larger number counts.

    Args:
        first: (N,) higher = more likely to be rejected.
        second: (N,) the same of the other score.
        good: (N,) bool, in-distribution and predicted right.
        in_dist: (N,) bool.

    Returns:
        The figures, or None with fewer than two classes.
    """
    (one, truth), (other, negatives) = checked(first, good), checked(second, in_dist)
    if truth.all() or not truth.any():
        return None
    levels = [_levels(values) for values in (one, other)]
    sizes = [int(each.max()) + 1 for each in levels]
    cells = levels[0] * sizes[1] + levels[1]
    accepted, right, known = (
        np.bincount(cells[rows], minlength=sizes[0] * sizes[1]).reshape(sizes).cumsum(axis=0).cumsum(axis=1).ravel()
        for rows in (np.full(len(truth), fill_value=True), truth, negatives)
    )
    risks = np.full(int(negatives.sum()) + 1, np.inf)
    np.minimum.at(risks, known, 1 - right / np.maximum(accepted, 1))
    reached = np.where(np.isfinite(risks), np.arange(len(risks)), len(risks))
    reached = np.minimum.accumulate(reached[::-1])[::-1]
    return DoubleScoring(
        f1=float((2 * right / (accepted + negatives.sum())).max()), aurc=float(risks[reached[1:]].mean())
    )


def rarer_of(first: ArrayLike, second: ArrayLike, good: ArrayLike) -> FloatArray:
    """Score (N,) by which either of two may reject: minus the smaller p-value among good samples.

    Args:
        first: (N,) higher = more likely to be rejected.
        second: (N,) the same of the other score.
        good: (N,) bool, the samples that p-values compare with.
    """
    found = []
    for values, truth in (checked(first, good), checked(second, good)):
        below = np.searchsorted(np.sort(values[truth]), values, side="left")
        found.append((truth.sum() - below + 1) / (truth.sum() + 1))
    return np.asarray(-np.minimum(*found))


def _levels(values: FloatArray) -> IntArray:
    """The place (N,) of the first threshold that is not below each value."""
    thresholds = np.unique(values)
    if len(thresholds) > GRID:
        thresholds = np.unique(np.quantile(values, np.linspace(0, 1, GRID), method="higher"))
    return np.searchsorted(thresholds, values)


def _by_score(scores: ArrayLike, wrong: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Numbers of errors and of samples (G,) at each distinct score, most certain first."""
    values, truth = checked(scores, wrong)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.bincount(group, weights=truth, minlength=len(sizes)).astype(np.float64), sizes.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """A reliability curve: one point for each bin that holds samples.

    Attributes:
        predicted: (B,) mean probability of the samples in the bin.
        observed: (B,) share of positives among them.
        count: (B,) how many they are.
    """

    predicted: FloatArray
    observed: FloatArray
    count: FloatArray


def brier(probabilities: ArrayLike, positive: ArrayLike) -> float | None:
    """Mean squared difference of probability and truth; lower is better, p (1 - p) for a constant at prevalence p.

    Source: Brier, 1950.

    Returns:
        A value in [0, 1], or None without a sample.
    """
    p, truth = checked_probabilities(probabilities, positive)
    return float(np.mean((p - truth) ** 2)) if len(p) else None


def expected_calibration_error(probabilities: ArrayLike, positive: ArrayLike) -> float | None:
    """Mean gap between predicted and observed share of positives over `BINS` of equal width, by samples in the bin.

    Source: Guo et al., 2017, equation 3, for the probability of being positive.

    Returns:
        A value in [0, 1], lower is better, or None without a sample.
    """
    curve = reliability(probabilities, positive)
    if not len(curve.count):
        return None
    return float(np.average(np.abs(curve.predicted - curve.observed), weights=curve.count))


def reliability(probabilities: ArrayLike, positive: ArrayLike) -> Reliability:
    """The reliability curve over `BINS` of equal width; the last one includes 1.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.
    """
    p, truth = checked_probabilities(probabilities, positive)
    place = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS).astype(np.float64)
    held = count > 0
    predicted = np.bincount(place, weights=p, minlength=BINS)[held] / count[held]
    observed = np.bincount(place, weights=truth, minlength=BINS)[held] / count[held]
    return Reliability(predicted=predicted, observed=observed, count=count[held])


def checked_probabilities(probabilities: ArrayLike, positive: ArrayLike) -> tuple[FloatArray, BoolArray]:
    """Probabilities (N,) and the truth (N,), as `checked` gives scores."""
    p, truth = checked(probabilities, positive)
    if len(p) and not (p.min() >= 0 and p.max() <= 1):
        raise EvaluationError(f"probabilities: wanted values in [0, 1], got {p.min():g} to {p.max():g}")
    return p, truth
