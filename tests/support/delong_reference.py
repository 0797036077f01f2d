"""The variance of an AUROC by its definition, and as an interval says it."""

from scipy.special import logit
from scipy.stats import norm

from gradscore.evaluation.intervals import mean_auroc_interval, placements


def kernel_placements(scores, truth):
    """The quadratic definition: kernel values of all pairs, averaged over either class."""
    gaps = scores[truth][:, None] - scores[~truth][None, :]
    kernel = (gaps > 0) + 0.5 * (gaps == 0)
    return kernel.mean(axis=1), kernel.mean(axis=0)


def definition_of_variance(scores, truth):
    of_positives, of_negatives = kernel_placements(scores, truth)
    return of_positives.var(ddof=1) / len(of_positives) + of_negatives.var(ddof=1) / len(of_negatives)


def variance_of(interval):
    """The variance a 95 % interval was made of, which is symmetric on the logit scale."""
    half = (logit(interval.high) - logit(interval.low)) / 2
    return (half / norm.ppf(0.975) * interval.value * (1 - interval.value)) ** 2


def interval_of(scores, truth):
    """The interval of the AUROC of one data set."""
    return mean_auroc_interval([placements(scores, truth)])
