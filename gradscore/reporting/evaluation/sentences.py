"""What the figures say, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...data import TEST
from ...evaluation import FEW, Outcome, Verdict
from .figures import IN_DIST_ONLY, MISCLASSIFICATION, Figure, Figures

HOW = {
    "leave_one_dataset_out": "each by a model fitted on the other OOD sets only",
    "auxiliary": "by a model fitted on synthetic sets only",
    "in_dist_only": "by a model fitted on in-distribution samples only",
    "known": "by a model fitted on other samples of the same OOD sets",
}

EXPLAINED = {
    "leave_one_dataset_out": "Leave one out: for each OOD set a model fitted on the others.",
    "auxiliary": "Auxiliary: fitted on auxiliary sets alone, which are made of in-distribution samples as a rule.",
    "in_dist_only": "In-distribution only: no OOD sample was fitted on.",
    "known": "Known: one half of each OOD set was fitted on, the other half is reported.",
    MISCLASSIFICATION: "Fitted on in_dist.fit, reported on in_dist.test.",
    "shifted": "The same classes under covariate shift, by the model fitted on in_dist.fit. They are not out of "
    "distribution and count in no OOD figure.",
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A figure and what it means.

    Attributes:
        title: what it is about.
        value: the figure.
        interval: its interval, or why there is none.
        text: what it means.
    """

    title: str
    value: str
    interval: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A comparison of the meta model with another score.

    Attributes:
        label: what it is about.
        kind: the outcome.
        verdict: the same in words.
        text: the comparison as a sentence.
    """

    label: str
    kind: str
    verdict: str
    text: str


VERDICTS: Mapping[Outcome, str] = {
    "better": "better",
    "ahead": "ahead of those computed",
    "mixed": "better in the mean, worse on some",
    "open": "not shown",
    "worse": "worse",
}


def headlines(figures: Figures) -> list[Headline]:
    """The figures to read first: misclassification, then the OOD sets or groups of them."""
    return [*_misclassification(figures), *_ood(figures)]


def gains(found: Sequence[Verdict]) -> list[Gain]:
    """What the verdicts say in words; those without a comparison are left out."""
    return [_gain(verdict) for verdict in found if verdict.gain is not None and verdict.gain.low is not None]


def number(value: float) -> str:
    """A figure with three decimals."""
    return f"{value:.3f}"


def interval(figure: Figure) -> str:
    """The 95 % interval of a figure, or that there is none."""
    if figure.interval is None:
        return "no interval"
    low, high = figure.interval
    return f"{low:.3f} to {high:.3f}"


def _misclassification(figures: Figures) -> Iterator[Headline]:
    area = figures.get(MISCLASSIFICATION, IN_DIST_ONLY, TEST, "meta")
    if area is None:
        return
    wrong, right = area.n_positive, area.n - area.n_positive
    few = f" Only {wrong} are wrong, so the interval is wide." if wrong < FEW else ""
    yield Headline(
        title="Wrong predictions",
        value=number(area.value),
        interval=f"AUROC ({interval(area)})",
        text=f"Of a wrong and a right prediction, the meta model finds the wrong one more suspicious "
        f"{_share(area.value)} of the time ({wrong} wrong, {right} right).{few}",
    )


def _ood(figures: Figures) -> Iterator[Headline]:
    for protocol in figures.protocols("ood")[:1]:
        for dataset, label in _ood_parts(figures, protocol):
            area = figures.get("ood", protocol, dataset, "meta")
            if area is None:
                continue
            group = dataset.removesuffix(" (mean)")
            pooled = figures.get("ood", protocol, f"{group} (pooled)", "meta")
            if pooled is not None and pooled.interval == area.interval:
                pooled = None  # a group of one set
            text = (
                f"Of an OOD and an in-distribution sample, the meta model finds the OOD one more suspicious "
                f"{_share(area.value)} of the time, {HOW[protocol]}."
            )
            if pooled is not None:
                text += f" Pooled over all samples: {number(pooled.value)} ({interval(pooled)})."
            yield Headline(
                title=label,
                value=number(area.value),
                interval=("mean " if pooled is not None else "") + f"AUROC ({interval(area)})",
                text=text,
            )


def _ood_parts(figures: Figures, protocol: str) -> list[tuple[str, str]]:
    """The data sets of the headline, and what to call them: groups where there are any, else every set."""
    groups = figures.groups(protocol)
    if groups:
        return [(f"{group} (mean)", _group_label(group)) for group in groups]
    return [(dataset, f"OOD: {dataset}") for dataset in figures.datasets("ood", protocol)]


def _group_label(group: str) -> str:
    return "All OOD sets" if group == "all" else f"{group.capitalize()} OOD"


def _gain(verdict: Verdict) -> Gain:
    compared = {f"{verdict.best}, the best baseline on these samples": verdict.gain}
    compared["score_lr, a logistic regression on all scores without gradients"] = verdict.by_gradients
    text = "; over ".join(
        f"{name}, {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        for name, gain in compared.items()
        if gain is not None and gain.value is not None and gain.low is not None
    )
    label = "Wrong predictions" if verdict.area.task == MISCLASSIFICATION else _ood_label(verdict)
    outcome = verdict.outcome
    said = f"The meta model is {verdict.in_words}."
    return Gain(label=label, kind=outcome, verdict=VERDICTS[outcome], text=f"AUROC gained over {text}. {said}")


def _ood_label(verdict: Verdict) -> str:
    grouped = verdict.area.dataset != verdict.what
    return _group_label(verdict.what) if grouped else f"OOD: {verdict.what}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
