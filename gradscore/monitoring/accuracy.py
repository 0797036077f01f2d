"""The estimated accuracy of unlabelled samples, with an interval, learnt on shifts that leave the class as it is.

P(wrong) of a bundle is right on average where nothing is shifted, and too small under shift: equal scores mean more
errors there. So what is looked at is a window as a whole (`Terms`). A Gaussian process learns what that says of the
accuracy from windows whose accuracy is known: mixtures of calibration samples, shifted copies of images and auxiliary
OOD samples. Classes are not always as frequent as at the calibration, though nothing else changed: so there are windows
with classes in other shares, too, that teach what this looks like.

The mean of the process is what confident predictions say (`Terms.at`), and a line and a smooth bend around it, in
log-odds of the accuracy; it is exact without shift. How far around a known window its accuracy speaks for others, and
how much is left unexplained, are chosen by what is best on kinds of shift and OOD sets that are left out. That costs no
other fit: what a process without some windows says of them follows from the inverse of its matrix. Its error under
shifts that nobody has seen is estimated likewise. Errors are as large in log-odds as the process says, but for windows
that have hardly moved, and of OOD samples the estimate is too high: so the interval holds 90 % of what was left out,
shifts and OOD sets counting alike, misses as much at either end, and has the noise of so many samples.

A network that images are too hard for collapses onto a few classes, while its scores stay good: so no more predictions
of a class count as right than there are samples of it. Where classes come in other shares, that would be wrong. The two
are told apart by the penultimate features and scores: other shares move their means as they move between the means of
the predicted classes, and a collapse moves them within the predicted classes. Sums over the samples are enough for all
of these, and are all that is kept of a window.

Terms that are not linear would be larger for small windows, by the noise of so many samples; that is taken off.

Source: Guillory et al. 2021, "Predicting with confidence on unseen distributions", and Deng and Zheng 2021, "Are labels
always necessary for classifier accuracy evaluation?", for the regression over shifted sets; Rasmussen and Williams
2006, "Gaussian processes for machine learning", section 5.4.2, for leaving out; Dunn, Wasserman and Ramdas 2022,
"Distribution-free prediction sets for two-layer hierarchical models", for the interval; Garg et al. 2022, "Leveraging
unlabeled data to predict out-of-distribution performance", for the threshold of the confidence; Lu et al. 2023,
"Characterizing out-of-distribution error via optimal transport", for labels that are dealt out in the shares of the
classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.random import Generator
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.special import expit, logit

from ..deployment import CLASS, CONFIDENCE, FEATURE, GRADIENT, KnownSet, KnownSets
from ..system import FloatArray, IntArray
from .changes import FEWEST
from .streams import FARTHEST, Floats, Scaled, table_of

MIXED = (1.0, 0.7, 0.4, 0.15)
"""Shares of a window that are shifted."""

MIXED_OOD = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Shares of a window that are OOD."""

UNEVEN = (0.5, 1.0, 3.0, 10.0)
"""Concentrations of the Dirichlet distribution of the shares of classes: from very uneven to nearly even."""

UNSHIFTED_DRAWS = 24
"""Windows of calibration samples with classes in other shares."""

UNSHIFTED = ""
"""The group of calibration samples."""

OOD = "ood:"
"""Starts the groups of OOD sets."""

EDGE = 0.001
"""Accuracies closer to 0 and 1 than this count as this close."""

LENGTH_SCALES = (0.5, 1.0, 2.0)
"""Length scales of the kernel that are tried, in root mean squares of the terms."""

NOISE_VARIANCES = (0.02, 0.1, 0.5, 2.0)
"""Variances of the noise that are tried: of the log-odds that terms do not explain."""

KERNEL_VARIANCE = 2.0
"""Variance of the squared-exponential kernel, where that of the linear one is 1."""

LEAST = 0.005
"""Floor of the size of an error."""

NEAR = 0.25
"""Windows that have moved by less than this, in root mean squares of the terms, have smaller errors."""

FAR = 2.0
"""Terms that have moved by more than this, in their root mean squares, count as logarithms: a line goes wrong there."""

Z_90 = 1.644854
"""Standard deviations that hold 90 % of normal noise."""

COVERED = 0.9

NONE = slice(0)
"""No terms."""

LITTLE = 0.3
"""Square of a movement, in standard deviations of the calibration samples, that is little."""


@dataclass(frozen=True, kw_only=True)
class AccuracyEstimate:
    """The estimate of a window's accuracy.

    Attributes:
        accuracy: share of predictions that is right; None of fewer than `FEWEST` samples, where more than half of them
            are flagged as OOD, and where no shift was learnt.
        low: lower end of its 90 % interval.
        high: upper end.
    """

    accuracy: float | None
    low: float | None
    high: float | None


UNKNOWN = AccuracyEstimate(accuracy=None, low=None, high=None)


@dataclass(frozen=True, kw_only=True)
class EstimatedAccuracy:
    """Estimates the accuracy of windows.

    Attributes:
        terms: what is looked at of samples.
        usual: accuracy of the calibration samples.
        calibration: how many they are.
        process: from terms to accuracies; None where no shift was learnt.
    """

    terms: Terms
    usual: float
    calibration: int
    process: GaussianProcess | None = None

    @classmethod
    def learnt(cls, known_sets: KnownSets) -> Self:
        """Learns from what a bundle knows; without shifted copies nothing is estimated."""
        terms, right = Terms.of(known_sets), known_sets.calibration.right
        windows = known_windows(terms, known_sets) if known_sets.shifted else []
        process = GaussianProcess.fitted(windows, terms.optional) if windows else None
        return cls(terms=terms, usual=float(right.mean()), calibration=len(right), process=process)

    def of_sums(self, sums: Sums) -> AccuracyEstimate:
        """The estimate of samples of which sums are known."""
        if self.process is None or sums.samples < FEWEST:
            return UNKNOWN
        accuracy, size = self.process.at(self.terms.at(sums.means))
        # Variances of the shares of right predictions, here and among the calibration samples.
        noise = accuracy * (1 - accuracy) / sums.samples + self.usual * (1 - self.usual) / self.calibration
        below, above = (
            float(np.hypot(far * size, Z_90 * np.sqrt(noise))) for far in (self.process.below, self.process.above)
        )
        return AccuracyEstimate(accuracy=accuracy, low=max(0.0, accuracy - below), high=min(1.0, accuracy + above))


class KnownWindow(NamedTuple):
    """A window whose accuracy is known.

    Attributes:
        terms: (t,) what is looked at.
        accuracy: share of predictions that is right.
        noise: variance of that share, as a figure of the sets that it is made of.
        groups: the kinds of shift and OOD sets in it.
    """

    terms: FloatArray
    accuracy: float
    noise: float
    groups: tuple[str, ...]


def known_windows(terms: Terms, known_sets: KnownSets) -> list[KnownWindow]:
    """All of them; the first is the calibration samples as they are."""
    random = np.random.default_rng(0)
    unshifted = _even(terms, known_sets.calibration, UNSHIFTED)
    windows = [_mixed(terms, [(1.0, unshifted)])]
    windows += [
        _mixed(terms, [(1.0, _uneven(terms, known_sets.calibration, UNSHIFTED, random, UNEVEN[draw % len(UNEVEN)]))])
        for draw in range(UNSHIFTED_DRAWS)
    ]
    ood = [_even(terms, each, f"{OOD}{name}") for name, each in sorted(known_sets.ood.items())]
    for place, (name, each) in enumerate(sorted(known_sets.shifted.items())):
        part = _even(terms, each, name.partition(":")[0])
        windows += [_mixed(terms, [(share, part), (1 - share, unshifted)]) for share in MIXED]
        windows += [
            _mixed(terms, [(1.0, _uneven(terms, each, part.group, random, evenness))]) for evenness in UNEVEN[1:3]
        ]
        if ood:  # some of an OOD set as well, of each of them and in each share in turn
            share = (0.05, 0.1, 0.2, 0.3)[(place // 2) % 4]
            windows.append(_mixed(terms, [(share, ood[place % len(ood)]), (1 - share, part)]))
    for part in ood:
        windows += [_mixed(terms, [(share, part), (1 - share, unshifted)]) for share in MIXED_OOD]
        windows += [
            _mixed(terms, [(share, part), (1 - share, _uneven(terms, known_sets.calibration, UNSHIFTED, random, 3.0))])
            for share in (0.1, 0.2)
        ]
    return windows


class _WeightedSet(NamedTuple):
    means: Sums
    accuracy: float
    group: str


def _even(terms: Terms, known: KnownSet, group: str) -> _WeightedSet:
    return _weighted(terms, known, group, np.full(len(known.right), 1 / len(known.right)))


def _uneven(terms: Terms, known: KnownSet, group: str, random: Generator, evenness: float) -> _WeightedSet:
    """A set whose classes have other shares, drawn at random."""
    classes, places, counts = np.unique(known.label, return_inverse=True, return_counts=True)
    weights = (random.dirichlet(np.full(len(classes), evenness)) / counts)[places]
    return _weighted(terms, known, group, weights / weights.sum())


def _weighted(terms: Terms, known: KnownSet, group: str, weights: FloatArray) -> _WeightedSet:
    return _WeightedSet(terms.means(known, weights), float(weights @ known.right), group)


def _mixed(terms: Terms, parts: list[tuple[float, _WeightedSet]]) -> KnownWindow:
    """A window with these shares of sets."""
    there = [(share, part) for share, part in parts if share > 0]
    return KnownWindow(
        terms=terms.at(Sums.mixed([(share, part.means) for share, part in there])),
        accuracy=sum(share * part.accuracy for share, part in there),
        noise=sum(share**2 * part.accuracy * (1 - part.accuracy) / part.means.samples for share, part in there),
        groups=tuple(part.group for _, part in there if part.group != UNSHIFTED),
    )


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Observations that the process learns from, whatever its settings.

    Attributes:
        groups: the kinds of shift and OOD sets in each window.
        origin: (t,) terms of the first window, which is without shift.
        scale: (t,) root mean square of how far terms are from those; infinite for terms that are not looked at.
        inputs: (w, u) how far the others are from that origin on that scale, see `FAR`.
        accuracy: (w,) shares of predictions that are right.
        noise: (w,) variances of those shares.
        mean: (w,) prior mean of the log-odds: the first term, and what makes it exact without shift.
        targets: (w,) log-odds of the accuracies, from those.
        target_noise: (w,) variances of these.
    """

    groups: Sequence[tuple[str, ...]]
    origin: FloatArray
    scale: FloatArray
    inputs: FloatArray
    accuracy: FloatArray
    noise: FloatArray
    mean: FloatArray
    targets: FloatArray
    target_noise: FloatArray

    @classmethod
    def of(cls, windows: Sequence[KnownWindow], scale: FloatArray | None = None) -> Self:
        """Of windows whose accuracy is known, the first one without shift; on a scale of their own without another."""
        moved = np.stack([each.terms for each in windows]) - windows[0].terms
        if scale is None:
            far = np.sqrt((moved**2).mean(axis=0))
            scale = np.where(far > 0, far + 1e-9, np.inf)
        accuracy, noise = np.array([each.accuracy for each in windows]), np.array([each.noise for each in windows])
        clipped = np.clip(accuracy, EDGE, 1 - EDGE)
        mean = _log_odds(accuracy[0]) + moved[:, 0]
        return cls(
            groups=[each.groups for each in windows],
            origin=windows[0].terms,
            scale=scale,
            inputs=_inputs(moved, scale),
            accuracy=accuracy,
            noise=noise,
            mean=mean,
            targets=_log_odds(accuracy) - mean,
            target_noise=noise / (clipped * (1 - clipped)) ** 2,
        )

    def covariances(self, length_scale: float) -> FloatArray:
        """(w, w) of the log-odds of the windows."""
        # A copy, because an array times itself is rounded in another way than with what lies at other places.
        return _covariances(self.inputs, self.inputs.copy(), length_scale)


class LeftOut(NamedTuple):
    """Estimates of windows by a process that does not know their group.

    Attributes:
        group: a kind of shift, or an OOD set.
        accuracy: (k,) the estimates.
        size: (k,) of its errors.
        windows: the places of the windows.
    """

    group: str
    accuracy: FloatArray
    size: FloatArray
    windows: list[int]


@dataclass(frozen=True, kw_only=True)
class GaussianProcess:
    """Gaussian process of the accuracy of windows, by their terms.

    Attributes:
        known: windows whose accuracy is known.
        length_scale: how far windows tell of each other.
        noise_variance: variance of the log-odds that terms do not explain.
        inverse: (w, w) of the matrix of the windows.
        below: how far an accuracy may be below the estimate, in sizes of the error, so that 90 % of what was left
            out is held; infinite where no group could be left out.
        above: how far above.
    """

    known: Observations
    length_scale: float
    noise_variance: float
    inverse: FloatArray
    below: float = np.inf
    above: float = np.inf

    @classmethod
    def fitted(cls, windows: Sequence[KnownWindow], optional: slice = NONE) -> Self:
        """Chooses settings, and how wide the intervals are, by leaving out each group of windows.

        Args:
            windows: whose accuracy is known; the first one is without shift.
            optional: terms that are looked at only where that is better.
        """
        every = Observations.of(windows)
        scale = every.scale.copy()
        scale[optional] = np.inf
        best, fewer = (cls._best(known) for known in (every, Observations.of(windows, scale)))
        gains = fewer._errors_left_out() - best._errors_left_out()
        # Gains that may be by chance are none (one standard error: Breiman et al. 1984).
        if gains.mean() <= gains.std() / np.sqrt(max(1, len(gains) - 1)):
            best = fewer
        below, above = best._ends()
        return replace(best, below=below, above=above)

    @classmethod
    def _best(cls, known: Observations) -> Self:
        tried = [
            cls._with(known, covariances, length_scale, noise_variance)
            for length_scale in LENGTH_SCALES
            for covariances in [known.covariances(length_scale)]
            for noise_variance in NOISE_VARIANCES
        ]
        return min(tried, key=lambda each: float(each._errors_left_out().mean()))

    @classmethod
    def _with(cls, known: Observations, covariances: FloatArray, length_scale: float, noise_variance: float) -> Self:
        inverse = _inverse(covariances + np.diag(known.target_noise + noise_variance))
        return cls(known=known, length_scale=length_scale, noise_variance=noise_variance, inverse=inverse)

    def at(self, terms: FloatArray) -> tuple[float, float]:
        """The estimated accuracy of a window with these terms (t,), and the size of its error."""
        place = _inputs((terms - self.known.origin)[None], self.known.scale)
        alike = _covariances(place, self.known.inputs, self.length_scale)
        weights = alike @ self.inverse
        found = self.known.mean[0] + terms[0] - self.known.origin[0] + weights @ self.known.targets
        own = _covariances(place, place.copy(), self.length_scale)
        accuracy, variance = expit(found), self.noise_variance + own[:, 0] - (weights * alike).sum(axis=1)
        return float(accuracy[0]), float(_sizes(accuracy, variance, place)[0])

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Estimates of each group's windows without them."""
        known, weighted, found = self.known, self.inverse @ self.known.targets, []
        for group in sorted({group for groups in known.groups for group in groups}):
            places = [place for place, groups in enumerate(known.groups) if group in groups]
            block = _inverse(self.inverse[np.ix_(places, places)])
            accuracy = expit(known.mean[places] + known.targets[places] - block @ weighted[places])
            variance = np.diag(block) - known.target_noise[places]
            found.append(LeftOut(group, accuracy, _sizes(accuracy, variance, known.inputs[places]), places))
        return found

    def _errors_left_out(self) -> FloatArray:
        """The mean absolute error on each group that is left out; 0 without groups."""
        errors = [np.abs(each.accuracy - self.known.accuracy[each.windows]).mean() for each in self.left_out]
        return np.array(errors or [0.0])

    def _ends(self) -> tuple[float, float]:
        """`below` and `above`, from groups left out; a group that comes new counts as one that is worst."""
        groups = self.left_out
        if len(groups) < 2:
            return np.inf, np.inf
        ood = [each.group.startswith(OOD) for each in groups]
        counts, kinds = np.bincount(ood, minlength=2), len(set(ood))
        scores, weights = [], []
        for each, of_ood in zip(groups, ood, strict=True):
            errors, noise = each.accuracy - self.known.accuracy[each.windows], self.known.noise[each.windows]
            beyond = np.sqrt(np.maximum(errors**2 - Z_90**2 * noise, 0.0)) / each.size
            scores.append(np.sign(errors) * beyond)
            share = len(groups) / (len(groups) + 1) / kinds / counts[int(of_ood)]
            weights.append(np.full(len(each.windows), share / len(each.windows)))
        joined, counted = np.concatenate(scores), np.concatenate(weights)
        for missed in np.linspace(1 - COVERED, 0, 201):
            below, above = (_quantile(np.maximum(end, 0.0), counted, 1 - missed) for end in (joined, -joined))
            if counted[(joined <= below) & (-joined <= above)].sum() >= COVERED - 1e-9:
                return below, above
        # With fewer than 9 groups not even the largest holds 90 % of new ones; no figure of these samples does.
        return (float(np.abs(joined).max()),) * 2


def _inverse(matrix: FloatArray) -> FloatArray:
    """Inverse of a symmetric positive definite matrix, by its Cholesky factor: a third of the work of any other one."""
    factor, failed = dpotrf(matrix, clean=False)
    if failed:
        raise np.linalg.LinAlgError(f"not positive definite at row {failed}")
    upper = np.triu(dpotri(factor, overwrite_c=True)[0])
    return np.asarray(upper + np.triu(upper, 1).T, dtype=np.float64)


def _quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """The least value with this much weight at or below it, the largest where all have less."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), level - 1e-9))
    return float(values[order][min(place, len(values) - 1)])


def _inputs(moved: FloatArray, scale: FloatArray) -> FloatArray:
    """(w, u) what the process looks at of how far the terms (w, t) of windows are from the first one's."""
    there = np.isfinite(scale)
    return np.asarray(FAR * np.arcsinh(moved[:, there] / (FAR * scale[there])))


def _sizes(accuracy: FloatArray, variance: FloatArray, inputs: FloatArray) -> FloatArray:
    """Sizes of errors of accuracies (n,), up to a factor.

    Args:
        accuracy: the estimates.
        variance: (n,) of their log-odds, by the process.
        inputs: (n, u) of the windows.
    """
    moved = np.sqrt((inputs**2).sum(axis=1) / max(1, inputs.shape[1]))
    of_odds = np.sqrt(np.maximum(variance, 0.0) * moved / (moved + NEAR))
    return np.asarray(np.hypot(accuracy * (1 - accuracy) * of_odds, LEAST))


def _covariances(some: FloatArray, others: FloatArray, length_scale: float) -> FloatArray:
    """(n, m) covariances of the log-odds at some windows (n, t) and at others (m, t): 0 where nothing has moved."""
    terms = max(1, some.shape[1])
    lengths, widths = (some**2).sum(axis=1) / terms, (others**2).sum(axis=1) / terms
    line = some @ others.T / terms
    apart = np.maximum(lengths[:, None] + widths[None] - 2 * line, 0.0)
    kernel = np.exp(-apart / (2 * length_scale**2)) - np.exp(-(lengths[:, None] + widths[None]) / (2 * length_scale**2))
    return np.asarray(line + KERNEL_VARIANCE * kernel)


def _log_odds(accuracy: FloatArray) -> FloatArray:
    return np.asarray(logit(np.clip(accuracy, EDGE, 1 - EDGE)))


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over samples with weights; means, where these add up to 1.

    Sums in one part or in several are the same but for rounding of the features.

    Attributes:
        values: (d,) of values.
        classes: (K,) of samples by predicted class.
        confident: (K,) of those among them that are confident.
        samples: how many samples of equal weight have as much noise.
    """

    values: Floats
    classes: Floats
    confident: Floats
    samples: float

    @property
    def means(self) -> Sums:
        """Over samples of equal weight, of which there is at least one."""
        parts = (self.values, self.classes, self.confident)
        values, classes, confident = (each / self.samples for each in parts)
        return Sums(values=values, classes=classes, confident=confident, samples=self.samples)

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Self]]) -> Self:
        """Sums of samples of which these shares, which add up to 1, come from these sets."""
        return cls(
            values=np.sum([share * each.values for share, each in parts], axis=0),
            classes=np.sum([share * each.classes for share, each in parts], axis=0),
            confident=np.sum([share * each.confident for share, each in parts], axis=0),
            samples=float(1 / sum(share**2 / each.samples for share, each in parts)),
        )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms that the process looks at.

    Attributes:
        scores: the scale of the scores and the confidence of the calibration samples.
        depth: that of the logarithms of gradients at groups of parameters, from their mean over the groups of a sample.
        features: names of the penultimate features; none where they are not recorded.
        confident: the log-odds of the confidence above which as many calibration samples are as are right.
        centres: (K, f) means of features and scaled scores by predicted class.
        directions: (f, r) from these to directions that do not depend on each other, of variance 1 around the centres.
        usual: the means over the calibration samples.
    """

    scores: Scaled
    depth: Scaled
    features: Sequence[str]
    confident: float
    centres: FloatArray
    directions: FloatArray
    usual: Sums

    @classmethod
    def of(cls, known_sets: KnownSets) -> Self:
        """Terms of these calibration samples."""
        known = known_sets.calibration
        names = sorted(name for name in known.columns if name == CONFIDENCE or name.startswith("score_"))
        features = sorted(name for name in known.columns if name.startswith(FEATURE))
        scores = Scaled.by(known.columns, names)
        found = np.hstack([table_of(known.columns, features), scores.of(known.columns)])
        centres = _centres(found, _classes(known.columns), known_sets.classes)
        usual = np.full(known_sets.classes, np.nan)
        terms = cls(
            scores=scores,
            depth=Scaled.by(_along_depth(known.columns), _gradients(known.columns)),
            features=features,
            confident=float(np.quantile(known.columns[CONFIDENCE], 1 - known.right.mean())),
            centres=centres,
            directions=_directions(found - centres[_classes(known.columns)]),
            usual=Sums(values=usual, classes=usual, confident=usual, samples=np.nan),
        )
        return replace(terms, usual=terms.means(known, np.full(len(known.right), 1 / len(known.right))))

    @property
    def none(self) -> Sums:
        """Sums of no sample."""
        values, classes = self._plain + self.directions.shape[1], len(self.centres)
        return Sums(values=np.zeros(values), classes=np.zeros(classes), confident=np.zeros(classes), samples=0.0)

    def added(self, sums: Sums, columns: Mapping[str, FloatArray]) -> Sums:
        """Sums with more samples, given by what is watched of them (n,), by name."""
        values, predicted = self._values(columns), _classes(columns)
        classes, confident = sums.classes.copy(), sums.confident.copy()
        np.add.at(classes, predicted, 1.0)
        np.add.at(confident, predicted, columns[CONFIDENCE] >= self.confident)
        # Sums over parts in order, so that their rounding does not depend on where a part ends.
        total = np.add.accumulate(np.vstack([sums.values, values]), axis=0)[-1]
        return Sums(values=total, classes=classes, confident=confident, samples=sums.samples + len(values))

    def means(self, known: KnownSet, weights: FloatArray) -> Sums:
        """Means over samples with weights (n,) that add up to 1."""
        predicted, confident = _classes(known.columns), weights * (known.columns[CONFIDENCE] >= self.confident)
        classes = len(self.centres)
        return Sums(
            values=weights @ self._values(known.columns),
            classes=np.asarray(np.bincount(predicted, weights, minlength=classes), dtype=np.float64),
            confident=np.asarray(np.bincount(predicted, confident, minlength=classes), dtype=np.float64),
            samples=float(1 / (weights**2).sum()),
        )

    def at(self, means: Sums) -> FloatArray:
        """(t,) terms of a window, of which the first are the log-odds of the accuracy that confidence and classes say.

        That is the share of confident predictions, of which no more count of a class than there are samples of it:
        as many as usual, and as many more or fewer as are predicted, times the part of the movement of features and
        scores that other shares of the predicted classes explain.
        """
        plain, moved = np.split(means.values, [self._plain])
        variance = 1 / means.samples + 1 / self.usual.samples
        within = max(0.0, float((moved**2).sum()) - len(moved) * variance)
        more = means.classes - self.usual.classes
        between = float((((more @ self.centres) @ self.directions) ** 2).sum()) + LITTLE
        there = self.usual.classes + more * between / (between + within)
        noise = there * (1 - there) * variance
        confident, right = means.confident.sum(), means.confident.sum() - _beyond(means.confident, there, noise)
        spread = [confident, _beyond(means.classes, there, noise), np.sqrt(within / max(1, len(moved)))]
        return np.concatenate([[_log_odds(right)], plain, spread])

    @property
    def optional(self) -> slice:
        """Terms that help with some networks alone: those of the gradients."""
        return slice(1 + self._plain - len(self.depth.names), 1 + self._plain)

    @property
    def _plain(self) -> int:
        """Number of values that are terms as they are."""
        return 3 * len(self.scores.names) + len(self.depth.names)

    def _values(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, d) what is summed of each sample."""
        scaled, chances = self.scores.of(columns), expit(table_of(columns, self.scores.names))
        around = np.hstack([table_of(columns, self.features), scaled]) - self.centres[_classes(columns)]
        moved = np.clip(around @ self.directions, -FARTHEST, FARTHEST)
        return np.hstack([scaled, scaled**2, chances, self.depth.of(_along_depth(columns)), moved])


def _gradients(columns: Mapping[str, FloatArray]) -> list[str]:
    return sorted(name for name in columns if name.startswith(GRADIENT))


def _along_depth(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The same with gradients from the mean of a sample's: where along the depth it is large, not how large it is."""
    names = _gradients(columns)
    table = table_of(columns, names)
    around = table - table.sum(axis=1, keepdims=True) / max(1, len(names))
    return {**columns, **dict(zip(names, around.T, strict=True))}


def _beyond(shares: FloatArray, there: FloatArray, noise: FloatArray) -> float:
    """Share of samples in classes beyond what is there, less the noise of such shares."""
    return float(np.sqrt(np.maximum(np.maximum(shares - there, 0.0) ** 2 - noise, 0.0)).sum())


def _classes(columns: Mapping[str, FloatArray]) -> IntArray:
    return columns[CLASS].astype(np.int64)


def _centres(found: FloatArray, predicted: IntArray, classes: int) -> FloatArray:
    """Means by predicted class, that of all samples for classes that are never predicted."""
    sums = np.zeros((classes, found.shape[1]))
    np.add.at(sums, predicted, found)
    counts = np.bincount(predicted, minlength=classes)[:, None]
    return np.where(counts > 0, sums / np.maximum(counts, 1), found.mean(axis=0))


def _directions(around: FloatArray) -> FloatArray:
    """The directions in which samples (n, f) differ, scaled to a variance of 1."""
    variances, found = np.linalg.eigh(around.T @ around / len(around))
    kept = np.flatnonzero(variances > 1e-9 * max(float(variances[-1]), 1e-12))
    return np.asarray(found[:, kept] / np.sqrt(variances[kept]))
