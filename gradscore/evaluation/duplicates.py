"""Samples that are in more than one split, or several times in one that is reported, byte for byte.

Columns of millions of content hashes are compared by Arrow, which makes no Python object of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from ..errors import EvaluationError
from ..system import BoolArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Two splits with samples in common.

    Attributes:
        first: a split.
        second: another, later in the run.
        samples: distinct contents in both.
    """

    first: SplitInfo
    second: SplitInfo
    samples: int

    def __str__(self) -> str:
        """How many samples are in both."""
        number = "1 sample is" if self.samples == 1 else f"{self.samples} samples are"
        return f"{number} both in {self.first.name} and in {self.second.name}"

    @property
    def consequence(self) -> str:
        """What follows for the fits and the figures."""
        pair = (self.first, self.second)
        kinds = {info.kind for info in pair}
        if BANK in kinds:
            if any(info.is_reported for info in pair):
                return "left out of the bank; if it trained the classifier, what is reported of them is too good"
            if CALIBRATION in kinds:
                return "left out of the bank"
            if FIT in kinds:
                return "left out where their own neighbours are looked for, so that none is its own neighbour"
        if self.first.name == TEST and self.second.is_reported:
            return "both are reported, so they count on both sides"
        return "left out where they would fit"


@dataclass(frozen=True)
class Copies:
    """A reported split that holds samples several times.

    Attributes:
        split: the split.
        copies: samples without which each content would be there once.
        samples: all of them.
    """

    split: SplitInfo
    copies: int
    samples: int

    def __str__(self) -> str:
        """How many copies there are, and what follows."""
        are = "is a copy of another" if self.copies == 1 else "are copies of others"
        count = "it counts as if it were" if self.copies == 1 else "they count as if they were"
        return (
            f"{self.split.name}: {self.copies} of {self.samples} samples {are} in it; {count} independent, so "
            "intervals are too narrow: remove copies, unless samples come again as often in use (rows of a few "
            "categories)"
        )


def find_copies(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Copies]:
    """The reported splits with copies, in the order of the splits.

    Args:
        content: split -> content hashes of its samples.
    """
    reported = {split: values for split, values in content.items() if split.is_reported}
    found = [Copies(split, len(values) - count_distinct(values), len(values)) for split, values in reported.items()]
    return [each for each in found if each.copies]


def find_overlaps(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Overlap]:
    """The pairs of splits with samples in common, in the order of the splits.

    Args:
        content: split -> content hashes of its samples.
    """
    found = [
        Overlap(first=first, second=second, samples=len(_common(content[first], content[second])))
        for first, second in combinations(content, 2)
    ]
    return [overlap for overlap in found if overlap.samples]


def duplicate_notices(found: Iterable[Overlap | Copies]) -> list[str]:
    """One sentence for each overlap, or split with copies: how many samples, and what follows."""
    return [
        f"duplicates: {each}; {each.consequence}" if isinstance(each, Overlap) else f"duplicates: {each}"
        for each in found
    ]


def refuse_overlaps(overlaps: Sequence[Overlap], *, where: str) -> None:
    """Makes sure that there are none.

    Raises:
        EvaluationError: there are.
    """
    if overlaps:
        raise EvaluationError(
            f"{where}: wanted no sample in two splits (evaluate.duplicates is error), got "
            f"{'; '.join(map(str, overlaps))}. Select other samples, or set evaluate.duplicates=remove"
        )


def common(values: pd.Series[str], others: pd.Series[str]) -> set[str]:
    """The distinct contents that are in both columns; the first is the one that is held a second time."""
    return set(_common(values, others).to_pylist())


def count_distinct(values: pd.Series[str]) -> int:
    """How many distinct contents there are."""
    return len(pc.unique(_column(values)))


class Numbered:
    """Some contents, each with a number, so that sets of them are masks.

    Args:
        columns: the contents, those of several columns together.
    """

    def __init__(self, columns: Iterable[pd.Series[str]]) -> None:
        chunks = [chunk for column in columns for chunk in _column(column).chunks]
        self._values = pc.unique(pa.chunked_array(chunks, pa.large_string()))

    def of(self, column: pd.Series[str]) -> IntArray:
        """The number (N,) of each content of a column; contents that have none get the next higher number, all one."""
        found = pc.fill_null(pc.index_in(_column(column), value_set=self._values), len(self._values))
        return np.asarray(found.to_numpy())

    def mask(self, numbers: Iterable[IntArray] = ()) -> BoolArray:
        """Which contents are among some, by number; the last entry, of contents without a number, is False."""
        mask = np.zeros(len(self._values) + 1, dtype=bool)
        for each in numbers:
            mask[each] = True
        mask[-1] = False
        return mask


def _common(values: pd.Series[str], others: pd.Series[str]) -> pa.Array:
    there = _column(others)
    return pc.unique(pc.filter(there, pc.is_in(there, value_set=_column(values))))


def _column(values: pd.Series[str]) -> pa.ChunkedArray:
    found = pa.array(values, pa.large_string())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
