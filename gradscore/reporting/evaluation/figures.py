"""The figures of an evaluation, by what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...evaluation import HEADLINE_PROTOCOLS, Record, baselines, is_group

MISCLASSIFICATION = "misclassification"
IN_DIST_ONLY = "in_dist_only"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A record that has a value.

    Attributes:
        value: the figure.
        interval: its 95 % interval; None where none can be estimated.
        n: samples.
        n_positive: wrong or OOD ones among them.
    """

    value: float
    interval: tuple[float, float] | None
    n: int
    n_positive: int


class Figures:
    """Looks figures up.

    Args:
        records: as `evaluate_run` gives them.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {(each.task, each.protocol, each.dataset, each.score, each.metric): each for each in records}

    def get(self, task: str, protocol: str, dataset: str, score: str, metric: str = "auroc") -> Figure | None:
        """The figure, or None where there is none."""
        record = self._records.get((task, protocol, dataset, score, metric))
        if record is None or record.value is None:
            return None
        interval = None if record.low is None or record.high is None else (record.low, record.high)
        return Figure(value=record.value, interval=interval, n=record.n, n_positive=record.n_positive)

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
        singles = baselines(record for key, record in self._records.items() if key[:3] == (task, protocol, dataset))
        return singles[0].score if singles else None

    def _all_datasets(self, task: str, protocol: str) -> list[str]:
        return _distinct(key[2] for key in self._records if key[:2] == (task, protocol))


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
