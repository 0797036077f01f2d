"""Samples that a run holds twice, byte for byte: in two splits or in one that is reported.

Columns of millions of content hashes are compared by Arrow, which makes no Python object of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from ..notices import Notice
from ..system import BoolArray, IntArray, some

MOSTLY = 0.5
"""Share of an OOD set from which on it is called one of in-distribution samples."""


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
        """Sentence on how many samples are in both."""
        number = "1 sample is" if self.samples == 1 else f"{self.samples} samples are"
        return f"{number} both in {self.first.name} and in {self.second.name}"

    @property
    def consequence(self) -> str:
        """Consequence for the fits and the figures."""
        pair = (self.first, self.second)
        kinds = {info.kind for info in pair}
        if BANK in kinds:
            if any(info.is_reported for info in pair):
                return "left out of the bank; if it trained the classifier, what is reported of them is too good"
            if CALIBRATION in kinds:
                return "left out of the bank"
            if FIT in kinds:
                return "left out where their own neighbours are looked for, so that none is its own neighbour"
        if self.first.name == TEST and self.second.is_reported_ood:
            return f"left out of {self.second.name}"
        if self.first.name == TEST and self.second.is_reported:
            return "both are reported, so they count in both"
        counted = ", but counted as OOD in the figures" if self.second.is_reported_ood else ""
        return f"left out where they would fit{counted}"


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

    @property
    def phrase(self) -> str:
        """Phrase of how many copies there are."""
        are = "is a copy of another" if self.copies == 1 else "are copies of others"
        return f"{self.copies} of {self.samples} samples {are} in it"

    def __str__(self) -> str:
        """Sentence on how many copies there are, and what follows."""
        if self.split.is_reported_ood:
            return f"{self.split.name}: {self.phrase}; each content counts once"
        count = "it counts as if it were" if self.copies == 1 else "they count as if they were"
        return (
            f"{self.split.name}: {self.phrase}; {count} independent, so intervals are too narrow: remove copies, "
            "unless samples come again as often in use (rows of a few categories)"
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
        Overlap(first=first, second=second, samples=len(common(content[first], content[second])))
        for first, second in combinations(content, 2)
    ]
    return [overlap for overlap in found if overlap.samples]


def duplicate_notices(found: Iterable[Overlap | Copies]) -> list[str]:
    """Sentences on overlaps and splits with copies, one for each: how many samples, and what follows."""
    return [
        f"duplicates: {each}; {each.consequence}" if isinstance(each, Overlap) else f"duplicates: {each}"
        for each in found
    ]


def copied_set_notices(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Notice]:
    """A caution for each reported OOD set with copies of in-distribution samples: half or more, or some that count.

    Args:
        content: split -> content hashes of its samples.
    """
    known = pd.concat([values for split, values in content.items() if split.kind not in ("ood", "shifted")])
    tested = pd.concat([known[:0], *(values for split, values in content.items() if split.kind == TEST)])
    notices = []
    for split, values in content.items():
        if not split.is_reported_ood or values.empty:
            continue
        copies = are_in(values, known)
        counted = int((copies & ~are_in(values, tested) & ~values.duplicated().to_numpy(dtype=bool)).sum())
        said = f"{split.name}: {copies.sum()} of {len(values)} samples are copies of in-distribution samples"
        if copies.sum() >= MOSTLY * len(values):
            little = "its figures, and means with it, say little of OOD samples; give other samples"
            notices.append(Notice(f"{said}: {little}", "caution"))
        elif counted:
            rest = f"only those of {TEST} are left out, so {counted} count{'s' * (counted == 1)} as OOD in its figures"
            notices.append(Notice(f"{said}: {rest}; give other samples", "caution"))
    return notices


def shared_set_notices(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Notice]:
    """A caution where reported OOD sets have samples in common: the mean over sets counts these as different ones.

    Args:
        content: split -> content hashes of its samples.
    """
    sets = {split: _column(values) for split, values in content.items() if split.is_reported_ood}
    if len(sets) < 2:
        return []
    counts = pc.value_counts(pa.concat_arrays([pc.unique(values) for values in sets.values()]))
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    found = {split: pc.sum(pc.is_in(values, value_set=several)).as_py() for split, values in sets.items()}
    shared = [f"{count} of {len(content[split])} in {split.name}" for split, count in found.items() if count]
    text = (
        f"samples are in several OOD sets: {some(shared)}; means over sets count them as if they were different ones, "
        "with intervals that are too narrow; give each in one set"
    )
    return [Notice(text, "caution")] if shared else []


def count_distinct(values: pd.Series[str]) -> int:
    """Number of distinct contents."""
    return len(pc.unique(_column(values)))


def numbered(columns: Iterable[pd.Series[str]]) -> IntArray:
    """The contents (N,) of several columns, one after the other, as numbers that copies have in common."""
    columns = list(columns)
    known = Numbered(columns)
    return np.concatenate([known.of(column) for column in columns])


class Numbered:
    """Contents, each with a number, so that sets of them are masks.

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

    def mask(self, numbers: Iterable[IntArray]) -> BoolArray:
        """Mask of the contents among some, by number; the last entry, of contents without a number, is False."""
        mask = np.zeros(len(self._values) + 1, dtype=bool)
        for each in numbers:
            mask[each] = True
        mask[-1] = False
        return mask


def common(values: pd.Series[str], others: pd.Series[str]) -> pa.Array:
    """The distinct contents that are in both columns; the first is the one that is held a second time."""
    there = _column(others)
    return pc.unique(pc.filter(there, pc.is_in(there, value_set=_column(values))))


def are_in(values: pd.Series[str], others: pd.Series[str]) -> BoolArray:
    """Mask (N,) of the contents of a column that are in another, too."""
    return np.asarray(pc.is_in(_column(values), value_set=_column(others)).to_numpy())


def _column(values: pd.Series[str]) -> pa.ChunkedArray:
    found = pa.array(values, pa.large_string())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
