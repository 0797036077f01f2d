"""Selective classification: what is gained by refusing the samples with the highest scores.

Samples are accepted from the lowest score upwards; the coverage is the share accepted and the risk the share of wrong
ones among them. Of samples with equal scores every order is equally likely, and all areas are means over these orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..system import FloatArray
from .metrics import checked

Area = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class RiskCoverage:
    """A risk-coverage curve, one point for each distinct score.

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

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    errors, sizes = _groups(scores, wrong)
    accepted = np.cumsum(sizes)
    return RiskCoverage(coverage=accepted / max(1, sizes.sum()), risk=np.cumsum(errors) / accepted)


def aurc(scores: ArrayLike, wrong: ArrayLike) -> float | None:
    """Area under the risk-coverage curve: the mean risk of the 1, 2, ..., N most certain samples; lower is better.

    Source: Geifman, Uziel and El-Yaniv, 2019 (bias-reduced uncertainty estimation).

    Args:
        scores: (N,) higher = more uncertain.
        wrong: (N,) bool.

    Returns:
        A value in (0, 1), or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    return _with_both_classes(scores, wrong, aurc_of_counts)


def eaurc(scores: ArrayLike, wrong: ArrayLike) -> float | None:
    """Excess AURC: the area minus that of a perfect score, which accepts every wrong sample last; lower is better.

    The perfect area is that of the N samples at hand, not its limit r + (1 - r) log(1 - r) for many samples.

    Source: Geifman, Uziel and El-Yaniv, 2019.

    Args:
        scores: (N,) higher = more uncertain.
        wrong: (N,) bool.

    Returns:
        A value in [0, 1), or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    return _with_both_classes(scores, wrong, eaurc_of_counts)


def augrc(scores: ArrayLike, wrong: ArrayLike) -> float | None:
    """Area under the generalised risk-coverage curve: the chance of an accepted wrong sample, over all coverages.

    Equals (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 for accuracy a; in [0, 1/2], lower is better.

    Source: Traub et al., 2024 (overcoming common flaws in the evaluation of selective classification systems).

    Args:
        scores: (N,) higher = more uncertain.
        wrong: (N,) bool.

    Returns:
        The area, or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    return _with_both_classes(scores, wrong, augrc_of_counts)


def aurc_of_counts(errors: FloatArray, sizes: FloatArray) -> FloatArray:
    """AURC (...,) from the numbers of errors and of samples (..., G) at each distinct score, most certain first.

    Within a group that brings m samples and e errors after a samples with E errors, the expected risk of the first i
    samples is (E + (i - a) e / m) / i, whose sum over the group is (E - a e / m) (H_b - H_a) + e with b = a + m and
    harmonic numbers H.
    """
    after = np.cumsum(sizes, axis=-1)
    before = after - sizes
    errors_before = np.cumsum(errors, axis=-1) - errors
    rate = np.divide(errors, sizes, out=np.zeros_like(errors), where=sizes > 0)
    total = sizes.sum(axis=-1)
    harmonic = _harmonic(int(total.max()))
    steps = harmonic[after.astype(np.int64)] - harmonic[before.astype(np.int64)]
    return np.asarray(((errors_before - before * rate) * steps + errors).sum(axis=-1) / total)


def eaurc_of_counts(errors: FloatArray, sizes: FloatArray) -> FloatArray:
    """Excess AURC (...,) from the counts `aurc_of_counts` takes."""
    total, wrong = sizes.sum(axis=-1), errors.sum(axis=-1)
    harmonic = _harmonic(int(total.max()))
    right = total - wrong
    perfect = wrong - right * (harmonic[total.astype(np.int64)] - harmonic[right.astype(np.int64)])
    return np.asarray(aurc_of_counts(errors, sizes) - perfect / total)


def augrc_of_counts(errors: FloatArray, sizes: FloatArray) -> FloatArray:
    """AUGRC (...,) from the counts `aurc_of_counts` takes, by trapezoids between distinct scores."""
    errors_before = np.cumsum(errors, axis=-1) - errors
    return np.asarray((sizes * (errors_before + errors / 2)).sum(axis=-1) / sizes.sum(axis=-1) ** 2)


def _with_both_classes(scores: ArrayLike, wrong: ArrayLike, area: Area) -> float | None:
    errors, sizes = _groups(scores, wrong)
    return float(area(errors, sizes)) if 0 < errors.sum() < sizes.sum() else None


def _groups(scores: ArrayLike, wrong: ArrayLike) -> tuple[FloatArray, FloatArray]:
    values, truth = checked(scores, wrong)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.bincount(group, weights=truth, minlength=len(sizes)).astype(np.float64), sizes.astype(np.float64)


def _harmonic(n: int) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
