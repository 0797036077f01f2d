"""The rows of feature tables: what is computed of samples, and how it becomes a shard or a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data import BANK, FIT, Batch
from ..errors import DataError
from ..extractor import Extractor
from ..store import Recomputed, ShardRows, Skipped
from ..system import FloatArray
from .loop import Cut, Sink

TWICE = 16
"""Samples of each shard of `in_dist.fit` that are computed twice: 1.6 % of a full one."""


@dataclass(frozen=True)
class Values:
    """What was found in the N samples of a batch: logits, features and whatever else there are columns of.

    Attributes:
        first: (N, F) float64.
        again: of a few of the samples once more, computed in another batch.
    """

    first: FloatArray
    again: Recomputed | None = None


class RowExtractor:
    """Computes the rows of splits, batch by batch.

    Of a bank there is no more than what one look forward gives. Some samples of `in_dist.fit` are computed again, in a
    batch of their own, so that a fit sees what is rounding.

    Args:
        extractor: turns batches into values.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._lacking = TWICE

    def names(self, split: str) -> list[str]:
        """The columns of the values of a split; `ModelError` where they depend on a forward pass and there was none."""
        return self._extractor.forward_names if split == BANK else self._extractor.names

    def __call__(self, cut: Cut) -> Values:
        """Computes a batch; raises the same as `Extractor.values`.

        Raises:
            DataError: a loss looks at labels, and a sample has none.
        """
        batch = cut.batch
        if batch.split == BANK:
            return Values(self._extractor.forward_values(batch.inputs))
        values = self._values(batch)
        if batch.split != FIT:
            return Values(values)
        if cut.is_first:
            self._lacking = TWICE
        chosen = from_least_to_most_certain(values[:, : self._extractor.num_classes], self._lacking)
        self._lacking -= len(chosen)
        if not len(chosen):
            return Values(values)
        again = self._values(batch.rows(chosen.tolist()), nudged=True)
        return Values(values, Recomputed(chosen, again))

    def _values(self, batch: Batch, *, nudged: bool = False) -> FloatArray:
        extractor = self._extractor
        check_labelled(extractor.losses_with_labels, batch.labels.numpy(), batch.ids, where=batch.split)
        copies = extractor.copies_of(batch.content_hashes)
        return extractor.values(batch.inputs, copies=copies, labels=batch.labels, nudged=nudged)


def from_least_to_most_certain(logits: FloatArray, count: int) -> npt.NDArray[np.intp]:
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


def shard_rows(found: Sequence[tuple[Batch, Values]], *, names: Sequence[str], num_classes: int) -> ShardRows:
    """Joins batches to the rows of one shard.

    Args:
        found: the batches of the shard in order, and their values.
        names: of the columns of values; the first `num_classes` are the logits.
        num_classes: K.

    Returns:
        The rows; a prediction is the class with the largest logit, the first of equal ones.
    """
    batches = [batch for batch, _ in found]
    values = np.concatenate([each.first for _, each in found])
    again: Recomputed | None = None
    if batches[0].split == FIT:
        starts = np.cumsum([0, *(len(batch.ids) for batch in batches)])
        twice = [(start, each.again) for start, (_, each) in zip(starts, found, strict=False) if each.again is not None]
        places = [np.empty(0, dtype=np.intp), *(start + once.places for start, once in twice)]
        second = [values[:0], *(once.values for _, once in twice)]  # noqa: PD011
        again = Recomputed(np.concatenate(places), np.concatenate(second))
    signatures = [signature for batch in batches for signature in batch.signatures]
    return ShardRows(
        split=batches[0].split,
        sample_ids=[name for batch in batches for name in batch.ids],
        labels=np.concatenate([batch.labels.numpy() for batch in batches]),
        predictions=values[:, :num_classes].argmax(axis=1),
        content_hashes=[name for batch in batches for name in batch.content_hashes],
        names=names,
        values=values,
        skipped=[Skipped(bad.id, bad.error) for batch in batches for bad in batch.bad],
        recomputed=again,
        signatures=signatures or None,
    )


class FrameSink(Sink[Values]):
    """Keeps rows in memory, for a data frame.

    Args:
        extractor: computes them.
        num_classes: K.
    """

    def __init__(self, extractor: RowExtractor, *, num_classes: int) -> None:
        self._extractor, self._num_classes = extractor, num_classes
        self._found: list[tuple[Batch, Values]] = []

    def take(self, cut: Cut, found: Values | None) -> None:
        """See `Sink`."""
        assert found is not None
        self._found.append((cut.batch, found))

    def table(self) -> pd.DataFrame:
        """One row for each sample; `correct` is missing without a label."""
        names = self._extractor.names(self._found[0][0].split)
        rows = shard_rows(self._found, names=names, num_classes=self._num_classes)
        correct = pd.array(rows.predictions == rows.labels, dtype="boolean")
        correct[rows.labels < 0] = pd.NA
        samples = {
            "sample_id": rows.sample_ids,
            "label": rows.labels,
            "prediction": rows.predictions,
            "correct": correct,
            "content_hash": rows.content_hashes,
        }
        return pd.concat([pd.DataFrame(samples), pd.DataFrame(rows.values, columns=list(rows.names))], axis=1)


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
