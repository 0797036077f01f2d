"""Scores that compare a sample with its augmentations: mirrored, shifted, whatever should leave the class as it is."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax, logsumexp

from ..system import FloatArray
from .baseline import Arrays, Samples, penultimate_of
from .neighbours import unit_length


def all_logits(samples: Samples) -> FloatArray:
    """The logits (V + 1, N, K) of the samples and of their V augmentations."""
    return np.stack([samples.logits, *(augmentation.logits for augmentation in samples.augmentations.values())])


def mean_probability(samples: Samples, _learned: Arrays) -> FloatArray:
    """log(1 - mean over augmentations of the probability of the predicted class), without cancellation."""
    others = np.array(all_logits(samples))
    log_p = log_softmax(others, axis=2)
    np.put_along_axis(log_p, np.broadcast_to(samples.predictions, log_p.shape[:2])[..., None], -np.inf, axis=2)
    of_augmentations = logsumexp(
        log_p, axis=2
    )  # one axis at a time, or the order of the sum depends on the number of samples
    return np.asarray(logsumexp(of_augmentations, axis=0) - np.log(len(log_p)))


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
    return np.asarray(np.log(all_logits(samples).var(axis=0).sum(axis=1) + _LEAST))


def feature_disagreement(samples: Samples, _learned: Arrays) -> FloatArray:
    """1 - mean cosine of the penultimate features of a sample and of its augmentations."""
    own = unit_length(penultimate_of(samples)).astype(np.float64)
    cosines = [
        (own * unit_length(penultimate_of(augmentation))).sum(axis=1) for augmentation in samples.augmentations.values()
    ]
    return np.asarray(1 - np.mean(cosines, axis=0))


_LEAST = 1e-12
"""Variance below which logits are alike: float32 rounds logits of ten to 1e-6."""
