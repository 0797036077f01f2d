"""The formulas of baselines. Higher = more uncertain, for every one of them; p is the softmax of the logits z.

Those of logits are computed in float64 and, where a quantity can be tiny, as its natural logarithm: a logarithm keeps
the order of the quantity (so every ranking metric is unchanged) and neither underflows nor ties where the float would.
With K = 10 and a leading logit 800 above the rest, 1 - max softmax is exactly 0.0 as a float; its logarithm is -797.8.

Those of penultimate features, the inputs of the last layer, have the settings of their papers, where these are not
tuned on OOD samples. ReAct, ASH and SCALE act on the pooled features, as their papers and OpenOOD do for residual
networks; ASH and SCALE presume features that are not negative. Each learns arrays from features (M, D) of
in-distribution samples, their classes (M,) and the last layer, and scores features (N, D) and logits (N, K) by these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax

from ..errors import EvaluationError
from ..models import Head
from ..system import FloatArray, IntArray, product

Arrays = Mapping[str, NDArray[Any]]
"""Arrays that a baseline has learned from in-distribution samples, by name."""

CLIPPED_ABOVE = 0.9
"""Quantile of the features at which ReAct clips."""

MASKED_BELOW = 0.7
"""Quantile of the contributions of weights below which DICE leaves them out."""

NORM_SHARE = 0.3
"""What the L1 norm of the features counts in NCI, in the mean of in-distribution samples, beside the other term. Its
authors choose a weight by held-out OOD samples; one that is right for a network is a hundred times too large for
another."""

POWER = 5
"""The p of MaxLogit-pNorm, of which its authors try 0 to 10."""

RESIDUAL = 5.0
"""What the distance where classes do not differ counts in WDiscOOD: its authors' weight for a ResNet-50."""

PRUNED = 0.65
"""Share of the features that ASH prunes, and that SCALE leaves out of its second sum."""

_NO_VARIANCE = 1e-15
"""Axes with less of the largest variance have none, as `numpy.linalg.pinv` has it."""

_ROUNDING = 1e-4
"""Axes along which features move by less than this, beside their root mean square, have no variance either: float32
rounds by a thousandth of that. A layer norm makes one axis constant but for rounding."""

_NOTHING_LEFT = 1e-8
"""Where leaving a sample out leaves less than this of the variance along its direction, it leaves rounding alone."""

_ENTRIES_TOGETHER = 1 << 24
"""Samples times entries of all class means that are looked at together: 128 MiB."""

_CANCELLED = 1e-11
"""Share of the terms of a sum by which products of matrices may be wrong; a float64 rounds by 1e-16 of each."""

_STEEPEST = 30.0
"""Bound of the exponent of `_sharpening`; features that are not negative keep it between 1 and 3 in practice."""

_POWERS = 7.0
"""Temperatures are looked for between exp(-7) and exp(7)."""

_LEAST_VARIANCE = 1e-12
"""Variance below which logits are alike: float32 rounds logits of ten to 1e-6."""


def msp(logits: ArrayLike) -> FloatArray:
    """log(1 - max p).

    Source: Hendrycks and Gimpel 2017 (maximum softmax probability), negated and in logarithms.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most 0; `exp` of it is 1 - max p, the sum of the other classes' probabilities.
    """
    return -np.logaddexp(0.0, -_sorted(_checked(logits))[1])


def entropy(logits: ArrayLike) -> FloatArray:
    """Log of the entropy of p.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most log(log(K)); `exp` of it is the entropy in nats.
    """
    log_p, log_surprise = _log_probabilities(_checked(logits))
    return _log_sum_exp(log_p + log_surprise, axis=1)


def margin(logits: ArrayLike) -> FloatArray:
    """log(1 - (largest p - second largest p)).

    Written as twice the second probability plus all smaller ones, so nothing cancels.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64, at most 0.
    """
    log_p = np.sort(log_softmax(_checked(logits), axis=1), axis=1)[:, :-1]
    log_p[:, -1] += np.log(2.0)
    return _log_sum_exp(log_p, axis=1)


def max_logit(logits: ArrayLike) -> FloatArray:
    """- max z.

    Source: Hendrycks et al. 2022 (scaling out-of-distribution detection for real-world settings).

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64.
    """
    return np.asarray(-_checked(logits).max(axis=1), dtype=np.float64)


def energy(logits: ArrayLike) -> FloatArray:
    """- log sum exp z.

    Source: Liu et al. 2020, equation 4, the free energy at temperature 1.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64.
    """
    return -_log_sum_exp(_checked(logits), axis=1)


def doctor(logits: ArrayLike) -> FloatArray:
    """Log of (1 - sum p^2) / sum p^2.

    These are the odds that the prediction and a class drawn from p differ.

    Source: Granese et al. 2021 (DOCTOR), D_alpha.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64.
    """
    log_p, log_rest = _log_p_and_rest(_checked(logits))
    return _log_sum_exp(log_p + log_rest, axis=1) - _log_sum_exp(2 * log_p, axis=1)


def max_logit_pnorm(logits: ArrayLike) -> FloatArray:
    """- max z over the 5-norm of z, from their mean.

    Source: Cattelan and Silva 2024 (how to fix a broken confidence estimator), equations 8 and 9; they choose p by
    held-out errors.

    Args:
        logits: (N, K), K >= 2.

    Returns:
        (N,) float64 between -1 and 0.
    """
    values = _checked(logits)
    centred = values - values.mean(axis=1, keepdims=True)
    largest = np.abs(centred).max(axis=1, keepdims=True)
    relative = np.divide(centred, largest, out=np.zeros_like(centred), where=largest > 0)
    norms = (np.abs(relative) ** POWER).sum(axis=1) ** (1 / POWER)
    return np.asarray(-relative.max(axis=1) / np.maximum(norms, 1.0))


def gen(logits: ArrayLike, *, top: int = 100) -> FloatArray:
    """Log of the sum over the 100 most probable classes of (p (1 - p))^0.1.

    Source: Liu, Lochman and Zach 2023 (GEN), equation 3, the generalised entropy; their score is the negative.

    Args:
        logits: (N, K), K >= 2.
        top: number of most probable classes that count.

    Returns:
        (N,) float64.
    """
    log_p, log_rest = _log_p_and_rest(_checked(logits))
    return _log_sum_exp(0.1 * (log_p + log_rest)[:, -top:], axis=1)


def nnguide(guidance: FloatArray, logits: FloatArray) -> FloatArray:
    """Energy times the mean of the 10 largest products of cosine and energy over the bank.

    Source: Park et al. 2023 (nearest neighbor guidance), equation 5; the mean (N,) is `Neighbours.guidance`.
    """
    return np.asarray(energy(logits) * guidance)


def mean_probability(logits: FloatArray) -> FloatArray:
    """log(1 - mean over augmentations of p of the predicted class).

    Args:
        logits: (V + 1, N, K) of the samples, whose predictions count, and of their V augmentations; as for the others
            over augmentations.
    """
    log_p = log_softmax(logits, axis=2)
    np.put_along_axis(log_p, _predicted(logits), -np.inf, axis=2)
    # One axis at a time, or the order of the sum depends on the number of samples.
    of_each = _log_sum_exp(log_p, axis=2)
    return np.asarray(_log_sum_exp(of_each, axis=0) - np.log(len(log_p)))


def temperature(logits: FloatArray, classes: IntArray) -> Arrays:
    """Temperature (1,) at which logits (N, K) make classes (N,) likeliest; 1 where none is, from e^-7 to e^7.

    Source: Guo et al. 2017 (on calibration of modern neural networks), section 4.2.
    """
    from scipy.optimize import brentq  # slow to import, and a scorer does not need it

    of_class = np.take_along_axis(logits, classes[:, None], axis=1)[:, 0].mean()

    def slope(power: float) -> float:
        """Slope of minus the mean log likelihood, which is convex, by 1 / temperature, the exponential of `power`."""
        return float((softmax(np.exp(power) * logits, axis=1) * logits).sum(axis=1).mean() - of_class)

    has_minimum = slope(-_POWERS) < 0 < slope(_POWERS)
    return {"temperature": np.exp([-brentq(slope, -_POWERS, _POWERS) if has_minimum else 0.0])}


def mean_log_probability(logits: FloatArray) -> FloatArray:
    """Minus the mean over augmentations of log p of the predicted class."""
    of_predicted = np.take_along_axis(log_softmax(logits, axis=2), _predicted(logits), axis=2)
    return np.asarray(-of_predicted[..., 0].mean(axis=0))


def mean_entropy(logits: FloatArray) -> FloatArray:
    """Entropy of the mean over augmentations of p."""
    log_p = _log_sum_exp(log_softmax(logits, axis=2), axis=0) - np.log(len(logits))
    return np.asarray(-(np.exp(log_p) * log_p).sum(axis=1))


def logit_variance(logits: FloatArray) -> FloatArray:
    """Log of the variance of z over augmentations, summed over classes."""
    return np.asarray(np.log(logits.var(axis=0).sum(axis=1) + _LEAST_VARIANCE))


def feature_disagreement(features: Sequence[FloatArray]) -> FloatArray:
    """1 - mean cosine of the features of a sample and of its augmentations.

    Args:
        features: (N, D) penultimate features of the samples, then of each augmentation.
    """
    own = unit_length(features[0]).astype(np.float64)
    return np.asarray(1 - np.mean([(own * unit_length(each)).sum(axis=1) for each in features[1:]], axis=0))


def unit_length(values: FloatArray) -> NDArray[np.float32]:
    """Rows (N, D) divided by their L2 norm; a row of zeros stays."""
    values = np.ascontiguousarray(values)  # or the order of a sum depends on the number of rows
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.where(norms > 0, norms, 1.0), dtype=np.float32)


def _predicted(logits: FloatArray) -> IntArray:
    """The classes predicted of samples, for each of their augmentations as well: (V + 1, N, 1)."""
    return np.broadcast_to(logits[0].argmax(axis=1), logits.shape[:2])[..., None]


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


def _log_sum_exp(values: FloatArray, axis: int) -> FloatArray:
    """The logarithm of the sum of exponentials along an axis on which something is finite.

    SciPy's takes twenty times as long for one sample.
    """
    largest = values.max(axis=axis, keepdims=True)
    return np.asarray(np.log(np.exp(values - largest).sum(axis=axis)) + largest.squeeze(axis))


def _sorted(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logits (N, K) in ascending order, and the log-odds (N,) of all classes but the last, which leads."""
    ordered = np.sort(logits, axis=1)
    return ordered, _log_sum_exp(ordered[:, :-1], axis=1) - ordered[:, -1]


def _log_p_and_rest(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sorted log p (N, K) and log(1 - p) (N, K), the latter exact where p rounds to 1."""
    ordered, log_odds_of_others = _sorted(logits)
    log_p = log_softmax(ordered, axis=1)
    return log_p, np.column_stack([np.log1p(-np.exp(log_p[:, :-1])), -np.logaddexp(0.0, -log_odds_of_others)])


def _log_probabilities(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sorted log p (N, K) and log(-log p) (N, K), the latter exact where p rounds to 1."""
    ordered, log_odds_of_others = _sorted(logits)
    log_p = log_softmax(ordered, axis=1)
    with np.errstate(divide="ignore"):
        # log(log1p(exp(x))) is x to the last bit once exp(x) is below the float64 resolution.
        log_surprise = np.where(
            log_odds_of_others < -40.0, log_odds_of_others, np.log(np.logaddexp(0.0, log_odds_of_others))
        )
    return log_p, np.column_stack([np.log(-log_p[:, :-1]), log_surprise])


@dataclass(frozen=True)
class InDistFeatures:
    """Features of in-distribution samples, which baselines of penultimate features learn from.

    Attributes:
        features: (M, D) of in-distribution samples.
        classes: (M,) of each.
        head: the last layer.
    """

    features: FloatArray
    classes: IntArray
    head: Head

    @cached_property
    def class_means(self) -> Arrays:
        """The `whitening` (D, D) of the covariance that classes share, means (C, D) in that frame, and counts (C,).

        Several baselines look at them; they are computed once.
        """
        _, numbered = np.unique(self.classes, return_inverse=True)
        counts = np.bincount(numbered)
        means = np.stack([self.features[numbered == place].mean(axis=0) for place in range(len(counts))])
        whitening = _whitening(self.features - means[numbered], self.features)
        return {"means": product(means, whitening), "whitening": whitening, "counts": counts.astype(np.float64)}

    @property
    def can_leave_out(self) -> bool:
        """Whether each, left out, is as far as new ones: they are more than twice as many as dimensions and classes."""
        dimensions = np.count_nonzero(self.class_means["whitening"].any(axis=0))
        return len(self.features) > 2 * (int(dimensions) + len(self.class_means["counts"]))


@dataclass(frozen=True)
class OwnSamples:
    """Samples that a baseline learned from, each to be left out of what it learned when it is scored itself.

    Attributes:
        features: (N, D) that it learned from.
        classes: (N,) place of each class in ascending order, -1 for samples that it did not learn from.
    """

    features: FloatArray
    classes: IntArray

    def at(self, rows: NDArray[np.bool_] | slice) -> OwnSamples:
        """Subset of the samples, by rows."""
        return OwnSamples(self.features[rows], self.classes[rows])


def last_layer(in_dist: InDistFeatures) -> Arrays:
    """Weight (K, D) and bias (K,) of the last layer, for baselines that ask for no more."""
    return {"weight": in_dist.head.weight, "bias": in_dist.head.bias}


def relative_means(in_dist: InDistFeatures) -> Arrays:
    """`InDistFeatures.class_means`, with the mean (1, D) and the whitening (D, D) of all samples."""
    mean = in_dist.features.mean(axis=0, keepdims=True)
    whitening = _whitening(in_dist.features - mean, in_dist.features)
    return {
        **in_dist.class_means,
        "mean_of_all": product(mean, whitening),
        "whitening_of_all": whitening,
    }


def mahalanobis(
    features: FloatArray, _logits: FloatArray, learned: Arrays, left_out: OwnSamples | None = None
) -> FloatArray:
    """Log of the squared distance to the nearest class mean, shared covariance.

    Source: Lee et al. 2018.
    """
    squared = _squared_to_nearest(features, learned, left_out)
    return np.log(np.maximum(squared, np.finfo(np.float64).tiny))


def relative_mahalanobis(
    features: FloatArray, _logits: FloatArray, learned: Arrays, left_out: OwnSamples | None = None
) -> FloatArray:
    """Squared distance to the nearest class mean, less that to the mean of all.

    Source: Ren, Fort, Liu et al. 2021.
    """
    of_all = {
        "whitening": learned["whitening_of_all"],
        "means": learned["mean_of_all"],
        "counts": learned["counts"].sum(keepdims=True),
    }
    without = None if left_out is None else replace(left_out, classes=np.zeros_like(left_out.classes))
    return _squared_to_nearest(features, learned, left_out) - _squared_to_nearest(features, of_all, without)


def class_directions(in_dist: InDistFeatures) -> Arrays:
    """`InDistFeatures.class_means` of features of unit length."""
    return replace(in_dist, features=_directions(in_dist.features)).class_means


def unit_mahalanobis(
    features: FloatArray, logits: FloatArray, learned: Arrays, left_out: OwnSamples | None = None
) -> FloatArray:
    """Log of the squared distance to the nearest class mean among features of unit length.

    Source: Mueller and Hein 2025 (Mahalanobis++).
    """
    without = None if left_out is None else replace(left_out, features=_directions(left_out.features))
    return mahalanobis(_directions(features), logits, learned, without)


def discriminants(in_dist: InDistFeatures) -> Arrays:
    """The `whitening` (D, D), and in its frame `axes` (D, d) along which class means differ, `means` there, the `mean`.

    Whitened by the covariance within classes, these are the axes of linear discriminant analysis.
    """
    learned = in_dist.class_means
    mean = product(in_dist.features.mean(axis=0, keepdims=True), learned["whitening"])
    _, sizes, axes = np.linalg.svd(learned["means"] - mean, full_matrices=False)
    axes = axes[sizes > np.sqrt(_NO_VARIANCE) * sizes.max()].T
    return {"whitening": learned["whitening"], "axes": axes, "means": product(learned["means"], axes), "mean": mean}


def wdiscood(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Distance to the nearest class mean where classes differ, plus 5 times that to the mean elsewhere.

    Source: Chen et al. 2023 (whitened linear discriminant analysis), with all discriminants there are.
    """
    whitened = product(features, learned["whitening"])
    along = np.sqrt(_squared_to_nearest(whitened, {"whitening": learned["axes"], "means": learned["means"]}))
    across = whitened - learned["mean"]
    across = across - product(product(across, learned["axes"]), learned["axes"].T)
    return np.asarray(along + RESIDUAL * np.linalg.norm(across, axis=1))


def residual_space(in_dist: InDistFeatures) -> Arrays:
    """Origin (D,), axes (D, D - d) outside the principal subspace, and the scale of norms against the largest logit."""
    features, head = in_dist.features, in_dist.head
    origin = -np.linalg.pinv(head.weight) @ head.bias
    offsets = features - origin
    _, axes = np.linalg.eigh(offsets.T @ offsets / len(offsets))  # in ascending order
    axes = axes[:, : features.shape[1] - principal_dimensions(features.shape[1])]
    norms = np.linalg.norm(offsets @ axes, axis=1)
    largest = (features @ head.weight.T + head.bias).max(axis=1)
    scale = largest.mean() / norms.mean() if norms.any() else 0.0
    return {"origin": origin, "axes": axes, "scale": np.array([scale])}


def vim(features: FloatArray, logits: FloatArray, learned: Arrays) -> FloatArray:
    """Scaled norm outside the principal subspace of 1000, 512 or half the dimensions, plus energy.

    Source: Wang et al. 2022.
    """
    norms = np.linalg.norm(product(features - learned["origin"], learned["axes"]), axis=1)
    return np.asarray(learned["scale"][0] * norms + energy(logits))


def clip(in_dist: InDistFeatures) -> Arrays:
    """The last layer, and the value (1,) at which features are clipped."""
    return {**last_layer(in_dist), "limit": np.array([np.quantile(in_dist.features, CLIPPED_ABOVE)])}


def react(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Energy after features are clipped at their 90th percentile.

    Source: Sun et al. 2021.
    """
    return _energy_of(np.minimum(features, learned["limit"][0]), learned)


def ash(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Energy with 65 % of the features pruned and the rest sharpened.

    Source: Djurisic et al. 2023 (ASH-S).
    """
    kept = _largest(features)
    return _energy_of(kept * _sharpening(features, kept), learned)


def scale(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Energy with features scaled by how much of them the largest 35 % make up.

    Source: Xu et al. 2024.
    """
    return _energy_of(features * _sharpening(features, _largest(features)), learned)


def gradnorm(features: FloatArray, logits: FloatArray, _learned: Arrays) -> FloatArray:
    """Minus the L1 norm of the last weight's gradient with a uniform label.

    Source: Huang et al. 2021.
    """
    # The gradient is the outer product of p - 1/K and the features.
    p = softmax(logits, axis=1)
    return np.asarray(-np.abs(p - 1 / p.shape[1]).sum(axis=1) * np.abs(features).sum(axis=1))


def norm(features: FloatArray, _logits: FloatArray, _learned: Arrays) -> FloatArray:
    """Minus the logarithm of the L2 norm of the features.

    Source: Yu et al. 2023 (feature norms).
    """
    return np.asarray(-np.log(np.maximum(np.linalg.norm(features, axis=1), np.finfo(np.float64).tiny)))


def contributing(in_dist: InDistFeatures) -> Arrays:
    """The last layer without the weights that contribute least to the logits of in-distribution samples."""
    contributions = in_dist.features.mean(axis=0) * in_dist.head.weight
    kept = contributions > np.quantile(contributions, MASKED_BELOW)
    return {**last_layer(in_dist), "weight": np.where(kept, in_dist.head.weight, 0.0)}


def dice(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Energy by the 30 % of the last weights that contribute most.

    Source: Sun and Li 2022 (DICE).
    """
    return _energy_of(features, learned)


def patterns(in_dist: InDistFeatures) -> Arrays:
    """The mean features (K, D) of samples of each class that are predicted right; of all samples where none is."""
    features, classes, head = in_dist.features, in_dist.classes, in_dist.head
    right = (features @ head.weight.T + head.bias).argmax(axis=1) == classes
    means = np.tile(features.mean(axis=0), (len(head.bias), 1))
    for label in np.unique(classes[right]):
        means[label] = features[right & (classes == label)].mean(axis=0)
    return {"patterns": means}


def she(features: FloatArray, logits: FloatArray, learned: Arrays) -> FloatArray:
    """Minus the product of the features and their mean in the predicted class.

    Source: Zhang et al. 2023 (SHE).
    """
    return np.asarray(-(features * learned["patterns"][logits.argmax(axis=1)]).sum(axis=1))


def mean_and_gaps(in_dist: InDistFeatures) -> Arrays:
    """The mean of the features (D,), distances (K, K) between the weights of classes, and the sample count (1,)."""
    weight = in_dist.head.weight
    gaps = np.stack([np.linalg.norm(weight - row, axis=1) for row in weight])
    return {"mean": in_dist.features.mean(axis=0), "gaps": gaps, "count": np.array([len(in_dist.features)])}


def fdbd(features: FloatArray, logits: FloatArray, learned: Arrays, left_out: OwnSamples | None = None) -> FloatArray:
    """Minus the mean distance to decision boundaries over that to the mean of the features.

    Source: Liu and Qin 2024 (fast decision boundary based detector), equations 4 to 6.
    """
    margins, gaps = logits.max(axis=1, keepdims=True) - logits, learned["gaps"][logits.argmax(axis=1)]
    distances = np.divide(margins, gaps, out=np.zeros_like(margins), where=gaps > 0)
    mean_distance = distances.sum(axis=1) / (logits.shape[1] - 1)
    mean = learned["mean"]
    if left_out is not None:
        mean = mean + (mean - left_out.features) / (learned["count"][0] - 1)
    return np.asarray(-mean_distance / _lengths(features - mean))


def along_classes(in_dist: InDistFeatures) -> Arrays:
    """The mean of the features (D,), the last layer, and what the L1 norm counts (1,)."""
    features, head = in_dist.features, in_dist.head
    learned = {**last_layer(in_dist), "mean": features.mean(axis=0)}
    along = _along(features, features @ head.weight.T + head.bias, learned).mean()
    norm_of_all = np.abs(features).sum(axis=1).mean()
    return {**learned, "alpha": np.array([NORM_SHARE * max(along, 0.0) / norm_of_all if norm_of_all > 0 else 0.0])}


def nci(features: FloatArray, logits: FloatArray, learned: Arrays) -> FloatArray:
    """Minus the predicted class's weight along the features from their mean, and minus their L1 norm.

    Source: Liu and Qin 2025 (through the lens of neural collapse); see `NORM_SHARE` for the weight of the norm.
    """
    return np.asarray(-_along(features, logits, learned) - learned["alpha"][0] * np.abs(features).sum(axis=1))


def correlations(in_dist: InDistFeatures) -> Arrays:
    """The last layer, and the pseudo-inverse (D, D) of sums of products of features of unit length, as a root of it."""
    directions = _directions(in_dist.features)
    root = np.sqrt(1 / len(directions)) * _whitening(directions, directions)
    return {**last_layer(in_dist), "root": root}


def pnml(features: FloatArray, _logits: FloatArray, learned: Arrays) -> FloatArray:
    """Regret of the last layer against one that learned from the sample, features of unit length.

    Source: Bibas et al. 2021 (single layer predictive normalized maximum likelihood), theorem 2, with the
    softmax of features of unit length as in the authors' code.
    """
    directions = _directions(features)
    log_p, log_rest = _log_p_and_rest(product(directions, learned["weight"].T) + learned["bias"])
    leverage = np.square(product(directions, learned["root"])).sum(axis=1, keepdims=True)
    terms = -np.logaddexp(0.0, log_rest - log_p / (1 + leverage))
    return np.asarray(_log_sum_exp(terms, axis=1) / np.log(log_p.shape[1]))


def usual_norm(in_dist: InDistFeatures) -> Arrays:
    """Mean and standard deviation (2,) of the L1 norm."""
    norms = np.abs(in_dist.features).sum(axis=1)
    return {"usual": np.array([norms.mean(), norms.std()])}


def sirc(features: FloatArray, logits: FloatArray, learned: Arrays) -> FloatArray:
    """log(1 - max p), higher where the L1 norm of the features is low.

    Source: Xia and Bouganis 2022 (SIRC), equation 8, of max p and the L1 norm; low is three standard deviations below.
    """
    mean, deviation = learned["usual"]
    excess = np.abs(features).sum(axis=1) - (mean - 3 * deviation)
    return np.asarray(msp(logits) + np.logaddexp(0.0, -excess / max(deviation, np.finfo(np.float64).tiny)))


def principal_dimensions(width: int) -> int:
    """Dimensions of the principal subspace of ViM: as its authors choose for wide features, else half of them."""
    return 1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2)


def _whitening(offsets: FloatArray, features: FloatArray) -> FloatArray:
    """(D, D) whose product with its transpose is the pseudo-inverse of the covariance of offsets (N, D) of features."""
    variances, axes = np.linalg.eigh(offsets.T @ offsets / len(offsets))
    there = variances > max(_NO_VARIANCE * variances.max(), _ROUNDING**2 * np.square(features).mean())
    return np.asarray(axes * np.where(there, 1 / np.sqrt(np.where(there, variances, 1.0)), 0.0))


def _squared_to_nearest(features: FloatArray, learned: Arrays, left_out: OwnSamples | None = None) -> FloatArray:
    """Squared distances (N,) of features (N, D) to the nearest of whitened means (C, D).

    Whitened once, a sample costs D^2 + C D products; C times D^2 with an inverse covariance. Where a sample is left
    out, the mean of its class and the covariance change; the inverse follows by Sherman and Morrison (1950).
    """
    means = learned["means"]
    step = max(1, _ENTRIES_TOGETHER // max(1, means.size))
    if len(features) > step:
        parts = [slice(start, start + step) for start in range(0, len(features), step)]
        lefts = [None if left_out is None else left_out.at(part) for part in parts]
        found = [_squared_to_nearest(features[part], learned, left) for part, left in zip(parts, lefts, strict=True)]
        return np.concatenate(found)
    whitened = product(features, learned["whitening"])
    size = np.square(whitened).sum(axis=1)[:, None] + np.square(means).sum(axis=1)
    about = size - 2 * whitened @ means.T
    if left_out is None:
        return _least(about, size, lambda rows, places: np.square(whitened[rows] - means[places]).sum(axis=1))
    counts, classes = learned["counts"], left_out.classes
    total, of_class = counts.sum(), counts[classes]
    away = product(left_out.features, learned["whitening"]) - means[classes]
    others = np.maximum(of_class - 1, 1)
    weight = of_class / others / total
    rest = 1 - weight * np.square(away).sum(axis=1)
    alone = rest < _NOTHING_LEFT
    left = np.maximum(rest, _NOTHING_LEFT)
    # What a sample alone has: the direction that goes with it, as `_whitening` leaves out what has no variance.
    gone = np.zeros_like(away)
    direction = product(away[alone], learned["whitening"].T)
    gone[alone] = product(direction / np.square(direction).sum(axis=1, keepdims=True), learned["whitening"])

    def squared(rows: IntArray, places: IntArray) -> FloatArray:
        own, single = classes[rows] == places, alone[rows]
        offsets = whitened[rows] - means[places] + np.where(own, 1 / others[rows], 0.0)[:, None] * away[rows]
        along = (offsets * away[rows]).sum(axis=1)
        found = np.square(offsets).sum(axis=1) + weight[rows] * np.square(along) / left[rows]
        found[single] = np.square(offsets[single] - along[single, None] * gone[rows[single]]).sum(axis=1)
        found *= (total - 1) / total
        return np.where(own & (of_class[rows] == 1), np.inf, found)  # its class is gone with it

    along, across = ((whitened * each).sum(axis=1)[:, None] - each @ means.T for each in (away, gone))
    length, lost = (np.square(each).sum(axis=1)[:, None] for each in (away, gone))
    grown = (weight / left)[:, None]
    moved = np.where(alone[:, None], lost * along**2 - 2 * along * across, grown * along**2)
    about = (about + moved) * (total - 1) / total
    every = np.arange(len(features))
    about[every, classes] = squared(every, classes)
    return _least(about, size * (1 + length * (grown + lost)), squared)


def _least(about: FloatArray, size: FloatArray, exact: Callable[[IntArray, IntArray], FloatArray]) -> FloatArray:
    """The least of the distances of each sample, where computing all of them exactly would take long.

    Products of matrices tell in a hundredth of the time which may be the least; their digits are those of the terms
    that cancel, and differ with the number of samples.

    Args:
        about: (N, C) what products say.
        size: (N, C) of the terms that they add up.
        exact: from places (P,) of samples and of means to the distances (P,).

    Returns:
        (N,)
    """
    rows, places = np.nonzero(about <= (about + _CANCELLED * size).min(axis=1, keepdims=True) + _CANCELLED * size)
    found = np.full(len(about), np.inf)
    np.minimum.at(found, rows, exact(rows, places))
    return found


def _along(features: FloatArray, logits: FloatArray, learned: Arrays) -> FloatArray:
    offsets = features - learned["mean"]
    return np.asarray((offsets * learned["weight"][logits.argmax(axis=1)]).sum(axis=1) / _lengths(offsets))


def _directions(features: FloatArray) -> FloatArray:
    return features / _lengths(features)[:, None]


def _lengths(vectors: FloatArray) -> FloatArray:
    """L2 norms (N,), 1 where they are zero."""
    norms = np.linalg.norm(vectors, axis=1)
    return np.asarray(np.where(norms > 0, norms, 1.0))


def _energy_of(features: FloatArray, learned: Arrays) -> FloatArray:
    return energy(product(features, learned["weight"].T) + learned["bias"])


def _largest(features: FloatArray) -> FloatArray:
    """The largest 35 % of the features of each sample, zeros in the place of the others."""
    width = features.shape[1]
    kept = width - round(width * PRUNED)
    places = np.argpartition(features, width - kept, axis=1)[:, width - kept :]
    largest = np.zeros_like(features)
    np.put_along_axis(largest, places, np.take_along_axis(features, places, axis=1), axis=1)
    return largest


def _sharpening(features: FloatArray, kept: FloatArray) -> FloatArray:
    """exp(sum of all / sum of those kept), (N, 1)."""
    whole, part = features.sum(axis=1, keepdims=True), kept.sum(axis=1, keepdims=True)
    ratio = np.divide(whole, part, out=np.ones_like(whole), where=part != 0)
    return np.asarray(np.exp(np.clip(ratio, -_STEEPEST, _STEEPEST)))
