"""What the bank has that is most like a sample: the classifier's own idea of it, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ...columns import penultimate_columns
from ...data import BANK, FIT
from ...meta import Inputs
from ...store import RunFolder

PER_SAMPLE = 3
"""Neighbours shown of each sample."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A sample of the bank near another one.

    Attributes:
        split: where it is, `in_dist.bank` or without a bank `in_dist.fit`.
        sample_id: its name.
        content_hash: of its content.
        label: its class, -1 without one.
        distance: Euclidean, between penultimate features of unit length: 0 to 2.
    """

    split: str
    sample_id: str
    content_hash: str
    label: int
    distance: float


class NearestOfBank:
    """Finds the samples of the bank that are nearest to others by penultimate features.

    Args:
        run: a run folder with meta models.
        inputs: what makes their inputs, which holds the bank.
    """

    def __init__(self, run: RunFolder, inputs: Inputs) -> None:
        self._run = run
        self._bank = inputs.scores.bank
        self._split = BANK if BANK in run.sizes else FIT

    @property
    def has_bank(self) -> bool:
        """Whether there is anything to be near to."""
        return self._bank is not None and self._bank.content is not None

    def of(self, rows: pd.DataFrame) -> list[list[Neighbour]]:
        """The nearest of each row of a table of scores, the nearest first; none where there is no bank."""
        if not self.has_bank or rows.empty:
            return [[] for _ in range(len(rows))]
        found: dict[tuple[str, str], list[Neighbour]] = {}
        for split, chosen in rows.groupby("split", sort=False):
            for sample_id, neighbours in self._of_split(str(split), set(chosen["sample_id"])):
                found[str(split), sample_id] = neighbours
        return [found[str(split), str(name)] for split, name in zip(rows["split"], rows["sample_id"], strict=True)]

    def _of_split(self, split: str, wanted: set[str]) -> list[tuple[str, list[Neighbour]]]:
        bank = self._bank
        if bank is None or bank.content is None:
            return []
        mask = self._run.read(split, ["sample_id"])["sample_id"].isin(list(wanted)).to_numpy(dtype=bool)
        features = penultimate_columns(self._run.columns(split))
        frame = self._run.read(split, ["sample_id", "prediction", "content_hash", *features], rows=mask)
        near = bank.neighbours(
            frame[features].to_numpy(dtype=np.float64),
            frame["prediction"].to_numpy(dtype=np.int64),
            frame["content_hash"].to_numpy(dtype=np.str_),
        )
        contents = bank.content[near.places[:, :PER_SAMPLE]]
        return [
            (
                sample_id,
                [self._neighbour(content, float(distance)) for content, distance in zip(row, away, strict=True)],
            )
            for sample_id, row, away in zip(
                frame["sample_id"], contents.tolist(), near.distances[:, :PER_SAMPLE], strict=True
            )
        ]

    def _neighbour(self, content: str, distance: float) -> Neighbour:
        sample_id, label = self._samples[content]
        return Neighbour(split=self._split, sample_id=sample_id, content_hash=content, label=label, distance=distance)

    @cached_property
    def _samples(self) -> dict[str, tuple[str, int]]:
        """Name and label of the samples of the bank by content."""
        known = [] if self._bank is None or self._bank.content is None else self._bank.content.tolist()
        held = self._run.read(self._split, ["content_hash"])["content_hash"].isin(known).to_numpy(dtype=bool)
        frame = self._run.read(self._split, ["content_hash", "sample_id", "label"], rows=held)
        return {
            content: (sample_id, int(label)) for content, sample_id, label in frame.itertuples(index=False, name=None)
        }
