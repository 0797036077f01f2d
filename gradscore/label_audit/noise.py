"""How many labels are wrong, and which of them probably are."""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_array
from scipy.special import expit, softmax

from ..system import BoolArray, FloatArray, IntArray

CERTAIN = 1 / 3
"""Part of the labels that fit worse than another class that has to be wrong for certain, to tell them from the rest."""

BINS = 100
"""Bins of samples by how far their label and another class are apart."""

USUAL = 0.1
"""Share of wrong labels that every search begins with."""

GROUPS = 20
"""Parts of the samples that are left out in turn, to see how sure a count is."""

FREQUENCY_SD = 0.5
"""Standard deviation of the logarithm of how frequent a class truly is, against its labels, before these are looked at.

Without a bound, samples that the last layers tell badly become true samples of rare classes: with nine tenths in one of
ten classes, half as many again were counted. A narrower one finds fewer where mistakes go one way."""

STEPS = 50
"""Steps of expectation and maximisation; the count moves by less than a hundredth of itself afterwards."""

Z_95 = 1.959964
"""Standard deviations that hold 95 % of normal noise."""


class WrongLabels(NamedTuple):
    """Number of wrong labels, the ends of the 95 % interval, and the most there are if mistakes are close calls."""

    estimate: int
    low: int
    high: int
    up_to: int


def wrong_labels(log_p: FloatArray, log_odds: FloatArray, labels: IntArray) -> WrongLabels:
    """Estimates the number of wrong labels.

    Each label is taken for the true class, or for another one that it was mistaken for; the true class has the
    probabilities of other samples' last layers, at the temperature and with the frequencies of classes that make the
    labels most likely. That says how often a class is mistaken for another one. But where two classes look alike, a
    label that fits worse is seldom known to be wrong: if a mistaken label may be any other class, those are close calls
    and count as right, which is the lower end.
    A network that has memorised wrong labels hides them; `chances` sees more of these, for the upper end.

    Labels that are wrong where classes look alike hardly count in this. But if errors of the last layers are labelled
    with the true class more often than with the error, wrong labels are no more than those that fit worse than another
    class: these, with a normal interval, are `up_to`, and no interval ends above.

    Args:
        log_p: (N, K) log probabilities of the classes, each as frequent as the root of its labels, of last layers that
            are fitted to other samples.
        log_odds: (N,) of the likeliest other class to the label, as for `suspects`.
        labels: (N,) the given classes.

    Source: Patrini et al. 2017, "Making deep neural networks robust to label noise: a loss correction approach", for
        the model of mistakes; Dempster, Laird and Rubin 1977 for its fit; Efron 1982 for the jackknife.
    """
    groups = np.random.default_rng(0).permutation(len(labels)) % GROUPS
    frequent = np.log(np.bincount(labels, minlength=log_p.shape[1]) + 1.0) / 2  # log_p has the other half
    ends = []
    for as_alike in (False, True):

        def unlikely(log_scale: float, as_alike: bool = as_alike) -> float:
            return -_mistakes(softmax(np.exp(log_scale) * log_p + frequent, axis=1), labels, as_alike)[1]

        scale = np.exp(minimize_scalar(unlikely, bounds=(-1.5, 2.0), method="bounded", options={"xatol": 0.05}).x)
        true = softmax(scale * log_p + frequent, axis=1)
        count = _mistakes(true, labels, as_alike)[0]
        rest = [groups != each for each in range(GROUPS)]
        without = [_mistakes(true[rows], labels[rows], as_alike)[0] for rows in rest]
        ends.append((count, _error(without)))
    hidden = float(chances(log_odds).sum())
    hidden_error = _error([float(chances(log_odds[groups != each]).sum()) for each in range(GROUPS)])
    (least, least_error), (count, error) = ends
    worse = int((log_odds > 0).sum())
    estimate, up_to = round(count), min(len(labels), ceil(worse + Z_95 * sqrt(1 + worse)))
    low, high = least - Z_95 * least_error, max(count + Z_95 * error, hidden + Z_95 * hidden_error)
    return WrongLabels(
        estimate=estimate,
        low=max(0, min(estimate, floor(low))),
        high=max(estimate, min(up_to, ceil(high))),
        up_to=max(estimate, up_to),
    )


def _error(without: list[float]) -> float:
    """Standard error of a count, from the counts without each group; that of one sample at least."""
    scaled = np.array(without) * GROUPS / (GROUPS - 1)
    return float(np.sqrt(1 + (GROUPS - 1) * scaled.var()))


def _mistakes(true: FloatArray, labels: IntArray, as_alike: bool) -> tuple[float, float]:
    """Number of mistaken labels, and the log-likelihood of all, with that of how frequent classes are.

    Where a class is mistaken for another one and not the other way round, true classes are not as frequent as their
    labels, to which last layers were fitted: how frequent they are is found together with the mistakes.

    Args:
        true: (N, K) probabilities of the true classes, by their frequencies among the labels.
        labels: (N,) the given classes.
        as_alike: whether a class is mistaken for each other one as often as that may be; else for all of them alike.
    """
    true, classes = np.maximum(true, 1e-12), true.shape[1]  # each label is possible, however far off
    given, column = np.unique(labels, return_inverse=True)  # no others are taken for a class
    of_given = csr_array((np.ones(len(labels)), (column, np.arange(len(labels)))))
    diagonal = given[:, None] == np.arange(classes)
    taken = np.where(diagonal, 1 - USUAL, USUAL / (classes - 1))  # for given classes (rows), if others are true
    log_frequency = np.zeros(classes)  # of each class that is true, against that in `true`
    for _ in range(STEPS):
        frequency = np.exp(log_frequency)
        both = true * (frequency * taken)[column]
        both /= both.sum(axis=1, keepdims=True)
        pairs: FloatArray = np.asarray(of_given @ both)
        mistaken = np.where(diagonal, 0, pairs).sum(axis=0)
        found = pairs.sum(axis=0)
        share = mistaken / np.maximum(found, 1e-12)
        others = pairs / np.maximum(mistaken, 1e-12)
        taken = np.where(diagonal, 1 - share, share * (others if as_alike else 1 / (classes - 1)))
        expected = frequency * (true.T @ (1 / (true @ frequency)))
        slope = found - expected - log_frequency / FREQUENCY_SD**2
        step = slope / (np.maximum(found, expected) + FREQUENCY_SD**-2)
        log_frequency[given] += step[given]  # a class without a label could explain any
    frequency = np.exp(log_frequency)
    likelihood = float(np.log((true * (frequency * taken)[column]).sum(axis=1) / (true @ frequency)).sum())
    return float(mistaken.sum()), likelihood - float(np.square(log_frequency).sum()) / (2 * FREQUENCY_SD**2)


def chances(log_odds: FloatArray) -> FloatArray:
    """Probability (N,) that each label is wrong, 0 where it fits best.

    Where label and another class are close, the label often fits worse though it is right, and the less often the
    further they are apart. Wrong labels are there at any distance. So the odds that another class fits better are taken
    for `exp(-a distance - b) + r`, and r's part in them is the probability that a label is wrong.

    Args:
        log_odds: (N,) of the likeliest other class to the label.
    """
    worse, distance = log_odds > 0, np.abs(log_odds) / max(float(np.median(np.abs(log_odds))), 1e-12)
    if not worse.any():
        return np.zeros(len(worse))
    bins = np.array_split(np.argsort(distance), min(BINS, len(distance)))
    middle = np.array([distance[each].mean() for each in bins])
    counts, of_worse = np.array([len(each) for each in bins]), np.array([worse[each].sum() for each in bins])

    def unlikely(settings: FloatArray) -> float:
        odds = np.logaddexp(-np.exp(settings[0]) * middle - settings[1], settings[2])
        return float((counts * np.logaddexp(0, odds) - of_worse * odds).sum())

    starts = [np.array([slope, 0.0, np.log(USUAL)]) for slope in (0.0, 1.5)]
    fits = [
        minimize(unlikely, start, method="Nelder-Mead", bounds=[(-20.0, 20.0)] * 3, options={"maxiter": 1000})
        for start in starts
    ]
    slope, close, wrong = min(fits, key=lambda fit: float(fit.fun)).x
    return np.asarray(worse * expit(np.exp(slope) * distance + close + wrong))


def suspects(log_odds: FloatArray) -> BoolArray:
    """Mask of the labels to look at: those that hold most of the wrong ones and few others.

    As many of the least fitting ones as promise the highest F1, by their `chances`. Where few are wrong for certain,
    noise is where classes are close, and all that fit another class better are suspected.

    Args:
        log_odds: (N,) of the likeliest other class to the label.

    Source: Nan, Chai, Lee and Chieu 2012, "Optimizing F-measure: a tale of two approaches", for the highest F1.
    """
    worse, chance = log_odds > 0, chances(log_odds)
    if chance.sum() < CERTAIN * worse.sum() or not worse.any():
        return worse
    order = np.argsort(-log_odds, kind="stable")
    promised = np.cumsum(chance[order]) / (np.arange(1, len(order) + 1) + chance.sum())
    found = np.zeros(len(worse), dtype=bool)
    found[order[: int(np.argmax(promised)) + 1]] = True
    return found
