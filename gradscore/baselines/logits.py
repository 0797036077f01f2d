"""Baselines from logits, of a sample or over its augmentations. Higher = more uncertain, for every one of them.

All of them are computed in float64 and, where a quantity can be tiny, as its natural logarithm: a logarithm keeps the
order of the quantity (so every ranking metric is unchanged) and neither underflows nor ties where the float would.
With K = 10 and a leading logit 800 above the rest, 1 - max softmax is exactly 0.0 as a float; its logarithm is -797.8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp

from ..errors import EvaluationError
from ..system import FloatArray
from .baseline import Arrays, Samples

_LEAST_VARIANCE = 1e-12
"""Variance below which logits are alike: float32 rounds logits of ten to 1e-6."""


def msp(logits: ArrayLike) -> FloatArray:
    """Logarithm of 1 - max softmax, the sum of the other classes' probabilities.

    Source: Hendrycks and Gimpel, 2017 (maximum softmax probability), negated and in logarithms.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most 0; `exp` of it is 1 - max softmax.
    """
    leading, others = _leading_and_others(_checked(logits))
    return -np.logaddexp(0.0, leading - logsumexp(others, axis=1))


def entropy(logits: ArrayLike) -> FloatArray:
    """Logarithm of the entropy (in nats) of the softmax distribution.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most log(log(K)); `exp` of it is the entropy.
    """
    log_p, log_surprise = _log_probabilities(_checked(logits))
    return np.asarray(logsumexp(log_p + log_surprise, axis=1), dtype=np.float64)


def margin(logits: ArrayLike) -> FloatArray:
    """Logarithm of 1 - (largest - second largest softmax probability).

    Written as twice the second probability plus all smaller ones, so nothing cancels.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most 0.
    """
    log_p = np.sort(log_softmax(_checked(logits), axis=1), axis=1)[:, :-1]
    log_p[:, -1] += np.log(2.0)
    return np.asarray(logsumexp(log_p, axis=1), dtype=np.float64)


def max_logit(logits: ArrayLike) -> FloatArray:
    """Minus the largest logit.

    Source: Hendrycks et al., 2022 (scaling out-of-distribution detection for real-world settings).

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64.
    """
    return np.asarray(-_checked(logits).max(axis=1), dtype=np.float64)


def energy(logits: ArrayLike) -> FloatArray:
    """Free energy at temperature 1: minus the log-sum-exp of the logits.

    Source: Liu et al., 2020, equation 4.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64.
    """
    return np.asarray(-logsumexp(_checked(logits), axis=1), dtype=np.float64)


def gen(logits: ArrayLike, *, gamma: float = 0.1, top: int = 100) -> FloatArray:
    """Logarithm of the generalised entropy sum_k p_k^gamma (1 - p_k)^gamma over the `top` most probable classes.

    Source: Liu, Lochman and Zach, 2023 (GEN), equation 3; the paper's score is the negative of the sum.

    Args:
        logits: (N, K), K >= 2.
        gamma: exponent in (0, 1).
        top: number of most probable classes that count.

    Returns:
        (N,) float64.
    """
    ordered = np.sort(_checked(logits), axis=1)
    log_p = log_softmax(ordered, axis=1)
    log_rest = np.log1p(-np.exp(log_p[:, :-1]))
    log_rest_of_leading = -np.logaddexp(0.0, ordered[:, -1] - logsumexp(ordered[:, :-1], axis=1))
    terms = gamma * (log_p + np.column_stack([log_rest, log_rest_of_leading]))
    return np.asarray(logsumexp(terms[:, -top:], axis=1), dtype=np.float64)


def all_logits(samples: Samples) -> FloatArray:
    """The logits (V + 1, N, K) of the samples and of their V augmentations."""
    return np.stack([samples.logits, *(augmentation.logits for augmentation in samples.augmentations.values())])


def mean_probability(samples: Samples, _learned: Arrays) -> FloatArray:
    """log(1 - mean over augmentations of the probability of the predicted class), without cancellation."""
    others = np.array(all_logits(samples))
    log_p = log_softmax(others, axis=2)
    np.put_along_axis(log_p, np.broadcast_to(samples.predictions, log_p.shape[:2])[..., None], -np.inf, axis=2)
    of_each = logsumexp(log_p, axis=2)  # one axis at a time, or the order of the sum depends on the number of samples
    return np.asarray(logsumexp(of_each, axis=0) - np.log(len(log_p)))


def mean_log_probability(samples: Samples, _learned: Arrays) -> FloatArray:
    """Minus the mean over augmentations of the logarithm of the probability of the predicted class."""
    log_p = log_softmax(all_logits(samples), axis=2)
    of_predicted = np.take_along_axis(log_p, np.broadcast_to(samples.predictions, log_p.shape[:2])[..., None], axis=2)
    return np.asarray(-of_predicted[..., 0].mean(axis=0))


def mean_entropy(samples: Samples, _learned: Arrays) -> FloatArray:
    """Entropy (in nats) of the mean over augmentations of the probabilities."""
    log_p = logsumexp(log_softmax(all_logits(samples), axis=2), axis=0) - np.log(1 + len(samples.augmentations))
    return np.asarray(-(np.exp(log_p) * log_p).sum(axis=1))


def logit_variance(samples: Samples, _learned: Arrays) -> FloatArray:
    """Logarithm of the variance of the logits over augmentations, summed over classes."""
    return np.asarray(np.log(all_logits(samples).var(axis=0).sum(axis=1) + _LEAST_VARIANCE))


def _checked(logits: ArrayLike) -> FloatArray:
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2:
        raise EvaluationError(f"logits: wanted an array (N, K) with K >= 2 classes, got shape {values.shape}")
    bad = int((~np.isfinite(values)).any(axis=1).sum())
    if bad:
        raise EvaluationError(
            f"logits: {bad} of {len(values)} samples hold values that are not finite; check the model and these inputs"
        )
    return values


def _leading_and_others(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split (N, K) into the largest logit (N,) and the others (N, K - 1); of equal largest ones, one leads."""
    ordered = np.sort(logits, axis=1)
    return ordered[:, -1], ordered[:, :-1]


def _log_probabilities(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sorted log p (N, K) and log(-log p) (N, K), the latter exact where p rounds to 1."""
    leading, others = _leading_and_others(logits)
    log_odds_of_others = logsumexp(others, axis=1) - leading
    log_p = log_softmax(np.column_stack([others, leading]), axis=1)
    surprise = np.logaddexp(0.0, log_odds_of_others)
    with np.errstate(divide="ignore"):
        # log(log1p(exp(x))) is x to the last bit once exp(x) is below the float64 resolution.
        log_surprise = np.where(log_odds_of_others < -40.0, log_odds_of_others, np.log(surprise))
    return log_p, np.column_stack([np.log(-log_p[:, :-1]), log_surprise])
