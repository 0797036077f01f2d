"""The scores by name; p is the softmax of the logits z."""

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
        "knn": of_penultimate(
            penultimate.knn,
            summary="distance to the 50th neighbour among features of unit length",
            source="Sun, Ming, Zhu, Li 2022",
        ),
        "mahalanobis": of_penultimate(
            penultimate.mahalanobis,
            summary="half the squared distance to the nearest class mean, shared covariance",
            source="Lee, Lee, Lee, Shin 2018",
        ),
        "relative_mahalanobis": of_penultimate(
            penultimate.relative_mahalanobis,
            summary="squared distance to the nearest class mean, less that to the mean of all",
            source="Ren, Fort, Liu et al. 2021",
        ),
        "vim": of_penultimate(
            penultimate.vim,
            summary="scaled norm outside the principal subspace of 1000, 512 or half the dimensions, plus energy",
            source="Wang, Li, Feng, Zhang 2022",
        ),
        "react": of_penultimate(
            penultimate.react,
            summary="energy after features are clipped at their 90th percentile",
            source="Sun, Guo, Li 2021",
        ),
        "ash": of_penultimate(
            penultimate.ash,
            summary="energy after ASH-S with 65 % pruned",
            source="Djurisic et al. 2023",
        ),
        "scale": of_penultimate(
            penultimate.scale,
            summary="energy after SCALE with 65 %",
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
