"""The scores by name; p is the softmax of the logits z."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..system import FloatArray, Registry
from . import augmentations, logits, penultimate
from .baseline import Arrays, Baseline, Needs, Samples, learns_nothing, of_logits
from .neighbours import Neighbours
from .penultimate import of_penultimate

OF_AUGMENTATIONS = ("augmentations", "features of augmentations")
"""What scores need that compare a sample with its augmentations."""

OF_PENULTIMATE = ("penultimate", "neighbours")
"""What scores need that compare a sample with ordinary ones by what enters the last layer, or change that."""

OVER_AUGMENTATIONS = "@augmentations"
"""End of the name of a score that is averaged over a sample and its augmentations."""

TAKEN = (
    *("task", "protocol", "dataset", "split", "sample_id", "content_hash", "label", "prediction", "positive"),
    *("probability", "meta", "logit_lr", "score_lr", "meta_wrong", "classifier"),
)
"""What scores stand beside in the tables of an evaluation."""


def _of_augmentations(
    of: Callable[[Samples, Arrays], FloatArray],
    summary: str,
    *,
    needs: Needs = "augmentations",
    is_compared: bool = False,
) -> Baseline:
    return Baseline(fit=learns_nothing, of=of, needs=needs, summary=summary, is_input=True, is_compared=is_compared)


def _of_neighbours(
    distance: Callable[[Neighbours], FloatArray], summary: str, *, source: str = "", is_compared: bool = False
) -> Baseline:
    def of(samples: Samples, _learned: Arrays) -> FloatArray:
        if samples.neighbours is None:
            raise ValueError("neighbours have not been looked for")
        return np.asarray(distance(samples.neighbours))

    return Baseline(
        fit=learns_nothing,
        of=of,
        needs="neighbours",
        summary=summary,
        source=source,
        is_input=True,
        is_compared=is_compared,
    )


BASELINES: Registry[Baseline] = Registry(
    "score",
    "gradscore.baselines",
    {
        "msp": of_logits(
            logits.msp,
            summary="log(1 - max p)",
            source="Hendrycks and Gimpel 2017",
            is_input=True,
        ),
        "entropy": of_logits(logits.entropy, summary="log of the entropy of p", is_input=True),
        "margin": of_logits(logits.margin, summary="log(1 - (largest p - second largest p))", is_input=True),
        "max_logit": of_logits(logits.max_logit, summary="- max z", source="Hendrycks et al. 2022", is_input=True),
        "energy": of_logits(logits.energy, summary="- log sum exp z", source="Liu et al. 2020", is_input=True),
        "gen": of_logits(
            logits.gen,
            summary="log of the sum over the 100 most probable classes of (p (1 - p))^0.1",
            source="Liu, Lochman and Zach 2023",
            is_input=True,
        ),
        "knn": _of_neighbours(
            lambda found: found.distances[:, -1],
            "distance to the 50th neighbour among features of unit length",
            source="Sun, Ming, Zhu, Li 2022",
            is_compared=True,
        ),
        "knn_10": _of_neighbours(lambda found: found.distances[:, :10][:, -1], "the same, 10th neighbour"),
        "knn_1": _of_neighbours(lambda found: found.distances[:, 0], "the same, nearest neighbour"),
        "class_knn": _of_neighbours(
            lambda found: found.of_class[:, -1],
            "distance to the 10th neighbour of the predicted class among features of unit length",
            is_compared=True,
        ),
        "class_knn_1": _of_neighbours(lambda found: found.of_class[:, 0], "the same, nearest neighbour"),
        "mahalanobis": of_penultimate(
            penultimate.class_means,
            penultimate.mahalanobis,
            summary="squared distance to the nearest class mean, shared covariance",
            source="Lee, Lee, Lee, Shin 2018",
        ),
        "relative_mahalanobis": of_penultimate(
            penultimate.relative_means,
            penultimate.relative_mahalanobis,
            summary="squared distance to the nearest class mean, less that to the mean of all",
            source="Ren, Fort, Liu et al. 2021",
        ),
        "vim": of_penultimate(
            penultimate.residual_space,
            penultimate.vim,
            summary="scaled norm outside the principal subspace of 1000, 512 or half the dimensions, plus energy",
            source="Wang, Li, Feng, Zhang 2022",
        ),
        "react": of_penultimate(
            penultimate.clip,
            penultimate.react,
            summary="energy after features are clipped at their 90th percentile",
            source="Sun, Guo, Li 2021",
            is_input=True,
        ),
        "ash": of_penultimate(
            penultimate.last_layer,
            penultimate.ash,
            summary="energy after ASH-S with 65 % pruned",
            source="Djurisic et al. 2023",
            is_input=True,
        ),
        "scale": of_penultimate(
            penultimate.last_layer,
            penultimate.scale,
            summary="energy after SCALE with 65 %",
            source="Xu, Chen, Franchi, Yao 2024",
            is_input=True,
        ),
        "gradnorm": of_penultimate(
            penultimate.last_layer,
            penultimate.gradnorm,
            summary="minus the L1 norm of the last weight's gradient with a uniform label",
            source="Huang, Geng, Li 2021",
            is_input=True,
        ),
        "feature_norm": of_penultimate(
            penultimate.last_layer,
            penultimate.norm,
            summary="minus the logarithm of the L2 norm of the features",
            source="Yu et al. 2023",
            is_input=True,
        ),
        "augmentations_probability": _of_augmentations(
            augmentations.mean_probability,
            "log(1 - mean over augmentations of p of the predicted class)",
            is_compared=True,
        ),
        "augmentations_log_probability": _of_augmentations(
            augmentations.mean_log_probability, "minus the mean over augmentations of log p of the predicted class"
        ),
        "augmentations_entropy": _of_augmentations(
            augmentations.mean_entropy, "entropy of the mean over augmentations of p"
        ),
        "augmentations_logits": _of_augmentations(
            augmentations.logit_variance, "log of the variance of z over augmentations, summed over classes"
        ),
        "augmentations_features": _of_augmentations(
            augmentations.feature_disagreement,
            "1 - mean cosine of the features of a sample and of its augmentations",
            needs="features of augmentations",
        ),
    },
    wanted=Baseline,
    reserved=TAKEN,
)
"""Scores by name, in the order of reports; higher = more likely wrong or out of distribution."""
