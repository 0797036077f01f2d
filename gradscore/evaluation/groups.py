"""Records of groups of OOD sets: the mean over sets, every one of the same weight, and pooled, every sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .delong import Placements, mean_auroc_interval, paired_mean_delong, placements
from .metrics import METRICS
from .records import Figure, Record, Subject, bounds, gain, is_compared
from .score_table import Block

Values = Mapping[tuple[str, str, str, str], float | None]
"""Figures by protocol, data set, score and metric."""


def group_records(
    blocks: Sequence[Block], groups: Mapping[str, Sequence[str]], records: Iterable[Record]
) -> Iterator[Record]:
    """Records of groups of OOD sets.

    Pooled AUROCs compare each OOD sample with the in-distribution samples as the model of its set scores them. Means of
    other figures than AUROC come without an interval.

    Args:
        blocks: the data sets; `meta` and one other score of those of a protocol are held at a time.
        groups: name of a group -> names of its data sets; a protocol that lacks one of them is left out.
        records: those of the data sets, as of `score_records`.

    Yields:
        Records as of `score_records`, with the data set `<group> (mean)` or `<group> (pooled)`.
    """
    ood = [block for block in blocks if block.task == "ood"]
    of_ood = (each for each in records if each.task == "ood")
    values = {(each.protocol, each.dataset, each.score, each.metric): each.value for each in of_ood}
    for protocol in dict.fromkeys(block.protocol for block in ood):
        sets = {block.dataset: block for block in ood if block.protocol == protocol and _has_placements(block)}
        found = [
            _Group(name=group, blocks=[sets[name] for name in names], values=values)
            for group, names in groups.items()
            if all(name in sets for name in names)
        ]
        meta = {name: _placed(block, "meta") for name, block in sets.items()}
        for score in dict.fromkeys(score for block in sets.values() for score in block.names):
            there = {name: block for name, block in sets.items() if score in block.names}
            placed = meta if score == "meta" else {name: _placed(block, score) for name, block in there.items()}
            for group in found:
                group.add(score, placed, meta)
        for group in found:
            yield from group.records()


@dataclass(kw_only=True)
class _Group:
    """A group of OOD sets; figures of the mean and of the pooled sets are collected score by score."""

    name: str
    blocks: list[Block]
    values: Values
    figures: dict[str, list[tuple[str, Figure]]] = field(default_factory=dict)
    gains: dict[str, list[Figure]] = field(default_factory=dict)

    @property
    def _weights(self) -> dict[str, list[int]]:
        sizes = [int(block.positive.sum()) for block in self.blocks]
        return {"mean": [1] * len(sizes), "pooled": sizes}

    def add(self, score: str, placed: Mapping[str, Placements], meta: Mapping[str, Placements]) -> None:
        """Adds the figures of a score that all sets of the group have, by its placements and those of `meta`."""
        names = [block.dataset for block in self.blocks]
        if not all(name in placed for name in names):
            return
        of_sets, of_meta = [placed[name] for name in names], [meta[name] for name in names]
        for kind, weights in self._weights.items():
            area = float(np.average([each.of_positives.mean() for each in of_sets], weights=weights))
            figures = [Figure("auroc", area, bounds(mean_auroc_interval(of_sets, weights)))]
            if kind == "mean":
                figures += [self._mean_of(metric, score) for metric in METRICS if metric != "auroc"]
            self.figures.setdefault(kind, []).extend((score, figure) for figure in figures)
            if is_compared(score):
                self.gains.setdefault(kind, []).append(gain(score, paired_mean_delong(of_meta, of_sets, weights)))

    def records(self) -> Iterator[Record]:
        """The records: of each kind the figures of all scores, then the gains of `meta`."""
        first = Subject.of(self.blocks[0])
        positives = sum(self._weights["pooled"])
        for kind, figures in self.figures.items():
            n = positives + first.n - first.n_positive
            subject = replace(first, dataset=f"{self.name} ({kind})", n=n, n_positive=positives)
            yield from (subject.record(score, figure) for score, figure in figures)
            yield from (subject.record("meta", figure) for figure in self.gains.get(kind, []))

    def _mean_of(self, metric: str, score: str) -> Figure:
        found = [self.values[block.protocol, block.dataset, score, metric] for block in self.blocks]
        return Figure(metric, float(np.mean(np.array(found, dtype=float))))


def _has_placements(block: Block) -> bool:
    positives = int(block.positive.sum())
    return min(positives, len(block.positive) - positives) >= 2


def _placed(block: Block, score: str) -> Placements:
    found = placements(block.score(score), block.positive)
    if found is None:
        raise ValueError(f"{block.dataset}: too few samples of either class")
    return found
