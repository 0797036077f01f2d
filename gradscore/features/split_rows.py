"""The rows of a split, batch by batch, until they make a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..data import BANK, FIT, Batch
from ..errors import DataError
from ..store import Recomputed, ShardRows, Skipped
from ..system import each_input
from .extractor import Extractor

TWICE = 16
"""Samples of each shard of `in_dist.fit` that are computed twice: 1.6 % of a full one."""


class SplitRows:
    """Computes the rows of a split and keeps them until they are taken.

    Some samples of `in_dist.fit` are computed again, in a batch of their own, so that a fit sees what is rounding.

    Args:
        extractor: turns batches into values.
        split: the split; of a bank there is no more than what one look forward gives.
        num_classes: K.
    """

    def __init__(self, extractor: Extractor, *, split: str, num_classes: int) -> None:
        self._extractor, self._split, self._num_classes = extractor, split, num_classes
        self._computed: list[_Computed] = []
        self._recomputed: list[Recomputed] = []

    def compute(self, batch: Batch) -> None:
        """Computes the rows of a batch; raises the same as `Extractor.values`.

        Raises:
            DataError: a loss looks at labels, and a sample has none.
        """
        values = self._values(batch)
        lacking = TWICE - sum(len(each.places) for each in self._recomputed)
        if self._split == FIT and lacking and len(values):
            start = sum(len(entry.values) for entry in self._computed)
            chosen = spread_over(values[:, : self._num_classes], lacking)
            again = self._values(_rows_of(batch, chosen), nudged=True)
            self._recomputed.append(Recomputed(start + chosen, again))
        self._computed.append(_Computed(batch, values))

    def _values(self, batch: Batch, *, nudged: bool = False) -> npt.NDArray[np.float64]:
        extractor = self._extractor
        if self._split == BANK:
            return extractor.forward_values(batch.images)
        check_labelled(extractor.losses_with_labels, batch.labels.numpy(), batch.sample_ids, where=self._split)
        copies = extractor.copies_of(batch.content_hashes)
        return extractor.values(batch.images, copies=copies, labels=batch.labels, nudged=nudged)

    @property
    def are_waiting(self) -> bool:
        """Whether there are rows to take."""
        return bool(self._computed)

    def taken(self) -> ShardRows:
        """The rows since the last time."""
        rows, self._computed = self._computed, []
        again, self._recomputed = self._recomputed, []
        names = self._extractor.forward_names if self._split == BANK else self._extractor.names
        found = joined_rows(rows, split=self._split, names=names, num_classes=self._num_classes)
        if self._split != FIT:
            return found
        places = [np.empty(0, dtype=np.intp), *(each.places for each in again)]
        values = [np.empty((0, len(names))), *(each.values for each in again)]
        return replace(found, recomputed=Recomputed(np.concatenate(places), np.concatenate(values)))


def spread_over(logits: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Chooses samples from the least to the most confident one, in equal steps of rank.

    Args:
        logits: (N, K).
        count: how many, at most.

    Returns:
        Their places, the least confident one first; none of a sample whose logits are not finite.
    """
    finite = np.flatnonzero(np.isfinite(logits).all(axis=1))
    known = logits[finite]
    order = finite[np.argsort(-np.exp(known - known.max(axis=1, keepdims=True)).sum(axis=1), kind="stable")]
    return order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.intp))]


def _rows_of(batch: Batch, places: npt.NDArray[np.intp]) -> Batch:
    rows = places.tolist()
    return Batch(
        images=each_input(batch.images, lambda each: each[rows]),
        labels=batch.labels[rows],
        sample_ids=[batch.sample_ids[place] for place in rows],
        content_hashes=[batch.content_hashes[place] for place in rows],
        bad=[],
    )


@dataclass(frozen=True)
class _Computed:
    """A batch and the values of its rows."""

    batch: Batch
    values: npt.NDArray[np.float64]


def joined_rows(computed: Sequence[_Computed], *, split: str, names: Sequence[str], num_classes: int) -> ShardRows:
    """Joins batches to the rows of one shard.

    Args:
        computed: the batches of the shard in order.
        split: the split they belong to.
        names: of the columns of values; the first `num_classes` are the logits.
        num_classes: K.

    Returns:
        The rows; a prediction is the class with the largest logit, the first of equal ones.
    """
    values = np.concatenate([entry.values for entry in computed])
    batches = [entry.batch for entry in computed]
    return ShardRows(
        split=split,
        sample_ids=[name for batch in batches for name in batch.sample_ids],
        labels=np.concatenate([batch.labels.numpy() for batch in batches]),
        predictions=values[:, :num_classes].argmax(axis=1),
        content_hashes=[name for batch in batches for name in batch.content_hashes],
        names=names,
        values=values,
        skipped=[Skipped(bad.sample_id, bad.error) for batch in batches for bad in batch.bad],
    )


def check_labelled(
    losses: Sequence[str], labels: npt.NDArray[np.int64] | None, sample_ids: Sequence[str], *, where: str
) -> None:
    """Makes sure that samples have the labels that losses look at.

    Args:
        losses: those that look at given labels; without any, nothing is checked.
        labels: (N,) of the samples, -1 for none; None for none at all.
        sample_ids: their names, N of them.
        where: the split, for the message.

    Raises:
        DataError: one has none.
    """
    if not losses:
        return
    missing = np.arange(len(sample_ids)) if labels is None else np.flatnonzero(labels < 0)
    if len(missing):
        raise DataError(
            f"the loss '{losses[0]}' looks at the label of every sample, and {sample_ids[missing[0]]} of split {where} "
            "has none; give labels (in Python: inputs and labels, as a pair), leave samples without labels, or this "
            "split, out of the data, or the loss out of features.losses where it is named there"
        )


def check_samples(batch: Batch, *, split: str, on_error: str, advice: str = "") -> None:
    """Makes sure that all samples of a batch can be used, unless others are to be skipped.

    Args:
        batch: the samples.
        split: where they are from, for the message.
        on_error: "fail", or "skip" for others.
        advice: what the message ends with.

    Raises:
        DataError: one cannot.
    """
    if batch.bad and on_error == "fail":
        first = batch.bad[0]
        raise DataError(
            f"split {split}, sample {first.sample_id}: {first.error}; repair or remove it, "
            f"or set extract.on_error=skip to go on without such samples{advice}"
        )
