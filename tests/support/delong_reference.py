"""The interval of one data set, and the variance of an AUROC as an interval says it."""

from scipy.special import logit
from scipy.stats import norm

from gradscore.evaluation.intervals import mean_auroc_interval, placements


def variance_of(interval):
    """The variance a 95 % interval was made of, which is symmetric on the logit scale."""
    half = (logit(interval.high) - logit(interval.low)) / 2
    return (half / norm.ppf(0.975) * interval.value * (1 - interval.value)) ** 2


def interval_of(scores, truth):
    """The interval of the AUROC of one data set."""
    return mean_auroc_interval([placements(scores, truth)])
