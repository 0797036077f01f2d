"""The scores by name."""

from __future__ import annotations

from ..system import Registry
from . import logits, penultimate
from .penultimate import of_penultimate
from .score import Needs, Score, of_logits

TAKEN = (
    *("task", "protocol", "dataset", "split", "sample_id", "content_hash", "label", "prediction", "positive"),
    *("probability", "meta", "logit_lr", "meta_wrong", "classifier"),
)
"""What scores stand beside in the tables of an evaluation."""

SCORES: Registry[Score] = Registry(
    "score",
    "gradscore.scores",
    {
        "msp": of_logits(
            logits.msp,
            summary="logarithm of 1 - max softmax",
            source="Hendrycks and Gimpel 2017",
            is_input=True,
        ),
        "entropy": of_logits(logits.entropy, summary="logarithm of the softmax entropy", is_input=True),
        "margin": of_logits(
            logits.margin, summary="logarithm of 1 - (largest - second largest softmax probability)", is_input=True
        ),
        "max_logit": of_logits(
            logits.max_logit, summary="minus the largest logit", source="Hendrycks et al. 2022", is_input=True
        ),
        "energy": of_logits(
            logits.energy, summary="minus the log-sum-exp of the logits", source="Liu et al. 2020", is_input=True
        ),
        "gen": of_logits(
            logits.gen,
            summary="logarithm of the generalised entropy",
            source="Liu, Lochman and Zach 2023",
            is_input=True,
        ),
        "knn": of_penultimate(
            penultimate.knn,
            summary="distance to the 50th neighbour of unit length",
            source="Sun, Ming, Zhu, Li 2022",
        ),
        "mahalanobis": of_penultimate(
            penultimate.mahalanobis,
            summary="squared distance to the nearest class mean, shared covariance",
            source="Lee, Lee, Lee, Shin 2018",
        ),
        "relative_mahalanobis": of_penultimate(
            penultimate.relative_mahalanobis,
            summary="the same less the distance to the mean of all",
            source="Ren, Fort, Liu et al. 2021",
        ),
        "vim": of_penultimate(
            penultimate.vim,
            summary="norm outside the principal subspace against energy",
            source="Wang, Li, Feng, Zhang 2022",
        ),
        "react": of_penultimate(
            penultimate.react,
            summary="energy after clipping features at their 90th percentile",
            source="Sun, Guo, Li 2021",
        ),
        "ash": of_penultimate(
            penultimate.ash,
            summary="energy with 65 % of the features pruned and the rest sharpened (ASH-S)",
            source="Djurisic et al. 2023",
        ),
        "scale": of_penultimate(
            penultimate.scale,
            summary="energy with features scaled by the share of the largest 35 %",
            source="Xu, Chen, Franchi, Yao 2024",
        ),
        "gradnorm": of_penultimate(
            penultimate.gradnorm,
            summary="minus the L1 norm of the last weight's gradient with a uniform label",
            source="Huang, Geng, Li 2021",
        ),
    },
    wanted=Score,
    reserved=TAKEN,
)
"""Scores by name, in the order of reports; higher = more likely wrong or out of distribution."""


def score_names(needs: Needs) -> list[str]:
    """The names of the scores that look at logits, or at penultimate features."""
    return [name for name in SCORES if SCORES[name].needs == needs]
