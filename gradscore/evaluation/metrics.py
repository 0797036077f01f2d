"""Ranking metrics of an uncertainty score. All take scores with higher = more uncertain.

`positive` marks the samples a good score ranks high: wrong predictions, or out-of-distribution (OOD) samples. The
others are called in-distribution (ID) here, whichever the task. A metric that needs both kinds and sees one is `None`;
`one_class_reason` says why in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from ..errors import EvaluationError

Metric = Callable[[ArrayLike, ArrayLike], float | None]


def auroc(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Area under the ROC curve: the chance that a positive outranks a negative, a tie counting one half.

    Exact: the Mann-Whitney statistic from mid-ranks, summed in integers.

    Source: Hanley and McNeil, 1982.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        A value in [0, 1], or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    positives, negatives = _counts(truth)
    if not positives or not negatives:
        return None
    twice_ranks = np.rint(2.0 * rankdata(values)).astype(np.int64)
    twice_wins = int(twice_ranks[truth].sum()) - positives * (positives + 1)
    return twice_wins / (2 * positives * negatives)


def aupr_out(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Average precision with the uncertain samples (OOD, or wrong) as the class to retrieve.

    The step-wise sum over thresholds of (recall gained) x precision, tied scores entering together; a score without
    information gives the share of positives, not one half.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        A value in (0, 1], or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    positives, negatives = _counts(truth)
    if not positives or not negatives:
        return None
    order = np.argsort(-values, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(values[order])), len(values) - 1]
    hits = np.cumsum(truth[order])[last_of_tie]
    return float(np.sum(np.diff(hits, prepend=0) * hits / (last_of_tie + 1)) / positives)


def aupr_in(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Average precision with the certain samples (ID, or correct) as the class to retrieve, by low score.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool; still marks the uncertain samples.

    Returns:
        A value in (0, 1], or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    return aupr_out(-values, ~truth)


def fpr95_ood_positive(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Share of ID samples flagged by the highest threshold that flags at least 95 % of the OOD samples.

    A sample is flagged when score >= threshold. "How many false alarms does catching 95 % of the OOD samples cost?"
    The other convention is `fpr95_id_positive`; the two differ and papers use both.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        A value in [0, 1], lower is better, or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    positives, negatives = _counts(truth)
    if not positives or not negatives:
        return None
    needed = -(-95 * positives // 100)
    threshold = np.sort(values[truth])[positives - needed]
    return float((values[~truth] >= threshold).mean())


def fpr95_id_positive(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Share of OOD samples accepted by the lowest threshold that accepts at least 95 % of the ID samples.

    A sample is accepted when score <= threshold. "How many OOD samples slip through when 95 % of the ID samples pass?"
    This is the convention of Hendrycks and Gimpel, 2017, as most OOD benchmarks compute it.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool; still marks the OOD samples.

    Returns:
        A value in [0, 1], lower is better, or None with fewer than two classes.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    return fpr95_ood_positive(-values, ~truth)


def one_class_reason(positive: ArrayLike, *, positive_name: str, negative_name: str) -> str | None:
    """Say in words why no metric can be computed, or None when both classes are there.

    Args:
        positive: (N,) bool.
        positive_name: what a positive is, e.g. "misclassified sample".
        negative_name: what a negative is, e.g. "correctly classified sample".
    """
    positives, negatives = _counts(np.asarray(positive, dtype=bool))
    missing = [name for name, count in ((positive_name, positives), (negative_name, negatives)) if not count]
    if not missing:
        return None
    return f"no {' and no '.join(missing)} among {positives + negatives} samples; both kinds are needed"


def checked(scores: ArrayLike, positive: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
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
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise EvaluationError(f"scores: {bad} of {len(values)} are not finite (first at position {_first(values)})")
    return values, truth.astype(np.bool_)


def _first(values: NDArray[np.float64]) -> int:
    return int(np.flatnonzero(~np.isfinite(values))[0])


def _counts(truth: NDArray[np.bool_]) -> tuple[int, int]:
    positives = int(truth.sum())
    return positives, len(truth) - positives


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
