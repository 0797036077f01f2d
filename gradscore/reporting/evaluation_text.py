"""What the records of an evaluation say: headlines and comparisons in plain words, and tables as rows of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..data import TEST
from ..evaluation import CLASSIFIER, FEW_SAMPLES, HEADLINE_PROTOCOLS, Outcome, Record, Verdict, baseline_areas, is_group

MISCLASSIFICATION = "misclassification"
IN_DIST_ONLY = "in_dist_only"

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


METRICS = {
    "aupr_out": "AUPR",
    "fpr95_ood_positive": "FPR95, OOD or wrong as positives",
    "fpr95_id_positive": "FPR95, in-distribution or right as positives",
}
TITLES = {MISCLASSIFICATION: "Wrong predictions", "shifted": "Wrong predictions under covariate shift"}
SELECTIVE = {"aurc": "AURC", "eaurc": "E-AURC", "augrc": "AUGRC", "brier": "Brier", "ece": "ECE"}


class Records:
    """Looks records up.

    Args:
        records: as `evaluate_run` gives them.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {(each.task, each.protocol, each.dataset, each.score, each.metric): each for each in records}

    def get(self, task: str, protocol: str, dataset: str, score: str, metric: str = "auroc") -> Record | None:
        """The record, or None where there is none that has a value."""
        record = self._records.get((task, protocol, dataset, score, metric))
        return None if record is None or record.value is None else record

    def protocols(self, task: str) -> list[str]:
        """The protocols of a task, in order, the headline first."""
        found = _distinct(key[1] for key in self._records if key[0] == task)
        order = HEADLINE_PROTOCOLS
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    def datasets(self, task: str, protocol: str) -> list[str]:
        """The data sets of a protocol, without groups of them."""
        return [name for name in self._all_datasets(task, protocol) if not is_group(name)]

    def groups(self, protocol: str) -> list[str]:
        """The names of the groups of OOD sets of a protocol."""
        return [
            name.removesuffix(" (mean)") for name in self._all_datasets("ood", protocol) if name.endswith(" (mean)")
        ]

    def scores(self, task: str, protocol: str) -> list[str]:
        """The scores of a protocol, `meta` first."""
        return _distinct(key[3] for key in self._records if key[:2] == (task, protocol) and key[4] == "auroc")

    def best_baseline(self, task: str, protocol: str, dataset: str) -> str | None:
        """The baseline of the highest AUROC on these very samples, or None without any value."""
        areas = baseline_areas(record for key, record in self._records.items() if key[:3] == (task, protocol, dataset))
        return areas[0].score if areas else None

    def _all_datasets(self, task: str, protocol: str) -> list[str]:
        return _distinct(key[2] for key in self._records if key[:2] == (task, protocol))


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


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


def headlines(records: Records) -> list[Headline]:
    """The figures to read first: misclassification, then the OOD sets or groups of them."""
    return [*_misclassification(records), *_ood(records)]


def gains(found: Sequence[Verdict]) -> list[Gain]:
    """What the verdicts say in words; those without a comparison are left out."""
    return [_gain(verdict) for verdict in found if verdict.gain is not None and verdict.gain.low is not None]


def _number(record: Record) -> str:
    return "-" if record.value is None else f"{record.value:.3f}"


def _interval(record: Record) -> str:
    """The 95 % interval of a figure, or that there is none."""
    return "no interval" if record.low is None or record.high is None else f"{record.low:.3f} to {record.high:.3f}"


def _misclassification(records: Records) -> Iterator[Headline]:
    area = records.get(MISCLASSIFICATION, IN_DIST_ONLY, TEST, "meta")
    if area is None:
        return
    wrong, right = area.n_positive, area.n - area.n_positive
    few = f" Only {wrong} are wrong, so the interval is wide." if wrong < FEW_SAMPLES else ""
    yield Headline(
        title="Wrong predictions",
        value=_number(area),
        interval=f"AUROC ({_interval(area)})",
        text=f"Of a wrong and a right prediction, the meta model finds the wrong one more suspicious "
        f"{_share(area)} of the time ({wrong} wrong, {right} right).{few}",
    )


def _ood(records: Records) -> Iterator[Headline]:
    for protocol in records.protocols("ood")[:1]:
        for dataset, label in _ood_parts(records, protocol):
            area = records.get("ood", protocol, dataset, "meta")
            if area is None:
                continue
            group = dataset.removesuffix(" (mean)")
            pooled = records.get("ood", protocol, f"{group} (pooled)", "meta")
            if pooled is not None and (pooled.low, pooled.high) == (area.low, area.high):
                pooled = None  # a group of one set
            text = (
                f"Of an OOD and an in-distribution sample, the meta model finds the OOD one more suspicious "
                f"{_share(area)} of the time, {HOW[protocol]}."
            )
            if pooled is not None:
                text += f" Pooled over all samples: {_number(pooled)} ({_interval(pooled)})."
            yield Headline(
                title=label,
                value=_number(area),
                interval=("mean " if pooled is not None else "") + f"AUROC ({_interval(area)})",
                text=text,
            )


def _ood_parts(records: Records, protocol: str) -> list[tuple[str, str]]:
    """The data sets of the headline, and what to call them: groups where there are any, else every set."""
    groups = records.groups(protocol)
    if groups:
        return [(f"{group} (mean)", _group_label(group)) for group in groups]
    return [(dataset, f"OOD: {dataset}") for dataset in records.datasets("ood", protocol)]


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
    sentence = f"The meta model is {verdict.sentence}."
    return Gain(label=label, kind=outcome, verdict=VERDICTS[outcome], text=f"AUROC gained over {text}. {sentence}")


def _ood_label(verdict: Verdict) -> str:
    grouped = verdict.area.dataset != verdict.what
    return _group_label(verdict.what) if grouped else f"OOD: {verdict.what}"


def _share(record: Record) -> str:
    return "-" if record.value is None else f"{100 * record.value:.1f} %"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure, its interval below it, and whether it is the best of its row."""

    text: str
    below: str = ""
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """A table.

    Attributes:
        title: above it.
        caption: how to read it.
        columns: headings, that of the row names first.
        rows: name, what to say below it, and the cells of each row.
        headline: whether it is shown at once.
    """

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]
    headline: bool


def area_tables(records: Records) -> list[ScoreTable]:
    """AUROCs by data set and score, with DeLong intervals, one table for each protocol."""
    tables = []
    for task in (MISCLASSIFICATION, "shifted", "ood"):
        for place, protocol in enumerate(records.protocols(task)):
            scores = records.scores(task, protocol)
            names = [*records.datasets(task, protocol), *(f"{each} (mean)" for each in records.groups(protocol))]
            rows = []
            for name in names if task == "ood" else records.datasets(task, protocol):
                areas = [records.get(task, protocol, name, score) for score in scores]
                accuracy = records.get(task, protocol, name, CLASSIFIER, "accuracy")
                said = f", accuracy {_number(accuracy)}" if task == "shifted" and accuracy is not None else ""
                rows.append((name, _counts(areas) + said, _cells(areas)))
            tables.append(
                ScoreTable(
                    title=TITLES.get(task, f"Out of distribution, {protocol}"),
                    caption=EXPLAINED[protocol if task == "ood" else task],
                    columns=["data set", *scores],
                    rows=rows,
                    headline=place == 0 and task != "shifted",
                )
            )
    return tables


def detail_tables(records: Records) -> list[ScoreTable]:
    """The other figures of merit of each data set of the headlines, a row for each score."""
    tables = []
    for task in (MISCLASSIFICATION, "ood"):
        for protocol in records.protocols(task)[:1]:
            metrics = METRICS | (SELECTIVE if task == MISCLASSIFICATION else {})
            for dataset in records.datasets(task, protocol):
                rows = []
                for score in records.scores(task, protocol):
                    found = [records.get(task, protocol, dataset, score, metric) for metric in metrics]
                    rows.append((score, "", [_cell(each) for each in found]))
                meta = records.get(task, protocol, dataset, "meta")
                if meta is not None:
                    share = meta.n_positive / meta.n
                    tables.append(
                        ScoreTable(
                            title=dataset if task == MISCLASSIFICATION else f"{dataset}, {protocol}",
                            caption=f"AUPR of a score without information: {share:.3f}, the share of positives. "
                            "Everything but AUPR is better when lower. Below each figure its 95 % interval.",
                            columns=["score", *metrics.values()],
                            rows=rows,
                            headline=False,
                        )
                    )
    return tables


def _cells(areas: Sequence[Record | None]) -> list[Cell]:
    best = max((area.value for area in areas if area is not None and area.value is not None), default=None)
    return [_cell(area, best=best) for area in areas]


def _cell(record: Record | None, *, best: float | None = None) -> Cell:
    if record is None:
        return Cell(text="-")
    below = "" if record.low is None else _interval(record)
    return Cell(text=_number(record), below=below, best=best is not None and record.value == best)


def _counts(areas: Sequence[Record | None]) -> str:
    return next((f"{area.n_positive} of {area.n}" for area in areas if area is not None), "")
