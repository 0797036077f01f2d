"""Which plots a report has, from the scores of its samples and the meta models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from ...evaluation import LOGIT_LR, ScoreFile, positive_of, reliability, risk_coverage
from ...meta import MetaModel, group_of
from ...system import BoolArray, FloatArray
from ..palette import GREY, PALETTE, colour
from ..plots import Curve, Curves, HeatMap, Plot, file_name, histograms, subsampled
from .figures import IN_DIST_ONLY, MISCLASSIFICATION, Figure, Figures

META, RIVAL, LOGITS = PALETTE[0], PALETTE[1], PALETTE[2]


def misclassification_plots(scores: ScoreFile, figures: Figures) -> Iterator[Plot]:
    """ROC, risk-coverage, distributions and reliability for wrong predictions; none with one class only."""
    for dataset in figures.datasets(MISCLASSIFICATION, IN_DIST_ONLY):
        best = figures.best_baseline(MISCLASSIFICATION, IN_DIST_ONLY, dataset)
        if best is None:
            continue
        names = ["positive", "probability", "meta", best, LOGIT_LR]
        block = scores.columns(MISCLASSIFICATION, IN_DIST_ONLY, dataset, list(dict.fromkeys(names)))
        colours = {"meta": META, best: RIVAL} | (
            {LOGIT_LR: LOGITS} if LOGIT_LR in block and block[LOGIT_LR].notna().all() else {}
        )
        yield _roc_of_wrong(block, colours)
        yield _risk_against_coverage(block, colours)
        yield _scores_of_wrong(block)
        yield _reliability(
            block,
            brier=figures.get(MISCLASSIFICATION, IN_DIST_ONLY, dataset, "meta", "brier"),
            ece=figures.get(MISCLASSIFICATION, IN_DIST_ONLY, dataset, "meta", "ece"),
        )


def _roc_of_wrong(block: pd.DataFrame, colours: Mapping[str, str]) -> Plot:
    wrong = positive_of(block)
    return Curves(
        name="misclassification-roc",
        title="Wrong predictions: ROC",
        caption="Share of wrong predictions caught against false alarms, for every threshold.",
        x_label="share of right predictions flagged",
        y_label="share of wrong predictions flagged",
        curves=[*(_roc(block[name], wrong, name, colour) for name, colour in colours.items()), _chance()],
    )


def _risk_against_coverage(block: pd.DataFrame, colours: Mapping[str, str]) -> Plot:
    risks = {name: risk_coverage(block[name], positive_of(block)) for name in colours}
    return Curves(
        name="misclassification-risk-coverage",
        title="Risk against coverage",
        caption="Errors among the accepted samples when the most suspicious ones are refused; lower is better.",
        x_label="coverage: share accepted",
        y_label="risk: share wrong among them",
        curves=[
            Curve(name=name, x=x, y=y, colour=colours[name])
            for name, curve in risks.items()
            for x, y in [subsampled(curve.coverage, curve.risk)]
        ],
        unit_square=False,
    )


def _scores_of_wrong(block: pd.DataFrame) -> Plot:
    wrong, values = positive_of(block), block["meta"].to_numpy(dtype=np.float64)
    return histograms(
        [("right", values[~wrong], META), ("wrong", values[wrong], RIVAL)],
        name="misclassification-scores",
        title="Scores of right and wrong predictions",
        caption="Log-odds of the meta model. The less the two overlap, the better.",
        x_label="score of the meta model",
    )


def _reliability(block: pd.DataFrame, *, brier: Figure | None, ece: Figure | None) -> Plot:
    curve = reliability(block["probability"], positive_of(block))
    said = f" Brier score {brier.value:.4f}, ECE {ece.value:.4f}." if brier and ece else ""
    return Curves(
        name="reliability",
        title="Is the probability what it says?",
        caption="Predicted probability of being wrong against the share that is wrong; on the dotted line it is "
        f"exactly right. Larger points stand for more samples.{said}",
        x_label="predicted probability",
        y_label="share wrong",
        curves=[
            Curve(name="meta", x=curve.predicted, y=curve.observed, colour=META, sizes=curve.count),
            _chance("exactly right"),
        ],
    )


def ood_plots(scores: ScoreFile, figures: Figures) -> Iterator[Plot]:
    """ROC of every OOD set, and the distributions of each, for the headline protocol."""
    for protocol in figures.protocols("ood")[:1]:
        sets = figures.datasets("ood", protocol)
        blocks = {name: scores.columns("ood", protocol, name, ["positive", "meta"]) for name in sets}
        curves = [
            _roc(block["meta"], positive_of(block), name, colour(place))
            for place, (name, block) in enumerate(blocks.items())
        ]
        yield Curves(
            name="ood-roc",
            title=f"Out of distribution: ROC, {protocol}",
            caption="Share of OOD samples caught by the meta model against false alarms, for every threshold.",
            x_label="share of in-distribution samples flagged",
            y_label="share of OOD samples flagged",
            curves=[*curves, _chance()],
        )
        for name, block in blocks.items():
            ood = positive_of(block)
            values = np.asarray(block["meta"], dtype=np.float64)
            yield histograms(
                [("in-distribution", values[~ood], META), (name, values[ood], RIVAL)],
                name=f"ood-scores-{file_name(name)}",
                title=f"Scores: {name}",
                caption="Scores of the meta model on in-distribution samples and on this OOD set.",
                x_label="score of the meta model",
            )


def weight_plots(models: Sequence[MetaModel], *, name: str, title: str) -> Iterator[Plot]:
    """Heat maps layer x statistic of the magnitudes of coefficients, one for each loss; the mean over the models."""
    linear = _fitted(models)
    if not linear:
        return
    weights = pd.Series(mean_weights(linear))
    parts = [label.split("/", 1) for label in weights.index]
    for loss in dict.fromkeys(start for start, _ in parts if start != "score"):
        rows: dict[str, dict[str, float]] = {}
        for label, weight in weights.items():
            start, _, rest = str(label).partition("/")
            layer, _, statistic = rest.rpartition("/")
            if start == loss:
                rows.setdefault(layer, {})[statistic] = float(weight)
        columns = list(dict.fromkeys(statistic for row in rows.values() for statistic in row))
        several = f", mean over {len(linear)} models" if len(linear) > 1 else ""
        yield HeatMap(
            name=f"weights-{name}-{file_name(loss)}",
            title=f"{title}: {loss}",
            caption=f"Magnitude of the coefficient of each scaled input{several}: layers down, statistics across.",
            rows=list(rows),
            columns=columns,
            values=np.array([[row.get(column, np.nan) for column in columns] for row in rows.values()]),
        )


def group_shares(models: Sequence[MetaModel]) -> dict[str, float]:
    """Share of the magnitude of all coefficients that lies on each group of inputs, the largest first."""
    linear = _fitted(models)
    totals: dict[str, float] = {}
    for name, weight in (mean_weights(linear) if linear else {}).items():
        totals[group_of(name)] = totals.get(group_of(name), 0.0) + weight
    whole = sum(totals.values())
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda item: -item[1]) if total}


def _fitted(models: Sequence[MetaModel]) -> list[MetaModel]:
    """Models whose coefficients were fitted, not set."""
    return [model for model in models if model.kind != "one_class"]


def mean_weights(models: Sequence[MetaModel]) -> dict[str, float]:
    """Mean magnitude of the coefficient of each input over linear models of the same inputs."""
    stacked = np.mean([np.abs(model.arrays["coefficients"]) for model in models], axis=0)
    return {name: float(weight) for name, weight in zip(models[0].inputs.names, stacked, strict=True)}


def roc_points(scores: FloatArray, positive: FloatArray) -> tuple[FloatArray, FloatArray]:
    """False and true positive rates (G + 1,) at every distinct score, from flagging nothing to flagging everything."""
    _, group = np.unique(-scores, return_inverse=True)
    hits, sizes = np.bincount(group, weights=positive), np.bincount(group)
    found, flagged = np.cumsum(hits), np.cumsum(sizes - hits)
    return np.r_[0.0, flagged / flagged[-1]], np.r_[0.0, found / found[-1]]


def _roc(scores: pd.Series[float], positive: BoolArray, name: str, colour: str) -> Curve:
    x, y = subsampled(*roc_points(np.asarray(scores, dtype=np.float64), positive.astype(np.float64)))
    return Curve(name=name, x=x, y=y, colour=colour)


def _chance(name: str = "chance") -> Curve:
    ends = np.array([0.0, 1.0])
    return Curve(name=name, x=ends, y=ends, colour=GREY, dotted=True)
