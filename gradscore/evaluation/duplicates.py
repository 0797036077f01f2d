"""Images that are in more than one split, or several times in one that is reported, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from ..data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from ..errors import EvaluationError
from .contents import count_common, count_distinct


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Two splits with images in common.

    Attributes:
        first: a split.
        second: another, later in the run.
        images: distinct images in both.
    """

    first: SplitInfo
    second: SplitInfo
    images: int


@dataclass(frozen=True)
class Copies:
    """A reported split that holds images several times.

    Attributes:
        split: the split.
        copies: samples without which each content would be there once.
        samples: all of them.
    """

    split: SplitInfo
    copies: int
    samples: int


def find_copies(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Copies]:
    """The reported splits with copies, in the order of the splits.

    Args:
        content: split -> content hashes of its samples.
    """
    reported = {split: values for split, values in content.items() if split.is_reported}
    found = [Copies(split, len(values) - count_distinct(values), len(values)) for split, values in reported.items()]
    return [each for each in found if each.copies]


def copies_in_words(found: Sequence[Copies]) -> list[str]:
    """One sentence for each split: how many copies, and what follows."""
    return [f"duplicates: {each.split.name}: {_counted(each)}" for each in found]


def _counted(found: Copies) -> str:
    are = "is a copy of another" if found.copies == 1 else "are copies of others"
    count = "it counts as if it were" if found.copies == 1 else "they count as if they were"
    return (
        f"{found.copies} of {found.samples} samples {are} in it; {count} independent, so intervals are too narrow: "
        "remove copies, unless samples come again as often in use (rows of a few categories)"
    )


def find_overlaps(content: Mapping[SplitInfo, pd.Series[str]]) -> list[Overlap]:
    """The pairs of splits with images in common, in the order of the splits.

    Args:
        content: split -> content hashes of its samples.
    """
    found = [
        Overlap(first=first, second=second, images=count_common(content[first], content[second]))
        for first, second in combinations(content, 2)
    ]
    return [overlap for overlap in found if overlap.images]


def in_words(overlaps: Sequence[Overlap]) -> list[str]:
    """One sentence for each overlap: how many images, and what follows."""
    return [f"duplicates: {_shared(each)}; {_consequence(each)}" for each in overlaps]


def refuse(overlaps: Sequence[Overlap], *, where: str) -> None:
    """Makes sure that there are none.

    Raises:
        EvaluationError: there are.
    """
    if overlaps:
        raise EvaluationError(
            f"{where}: wanted no sample in two splits (evaluate.duplicates is error), got "
            f"{'; '.join(_shared(each) for each in overlaps)}. Select other samples, or set evaluate.duplicates=remove"
        )


def _consequence(overlap: Overlap) -> str:
    pair = (overlap.first, overlap.second)
    if BANK in (info.kind for info in pair):
        if any(info.is_reported for info in pair):
            return "left out of the bank; if it trained the classifier, what is reported of them is too good"
        if any(info.kind == CALIBRATION for info in pair):
            return "left out of the bank"
        if any(info.kind == FIT for info in pair):
            return "left out where their own neighbours are looked for, so that none is its own neighbour"
    if overlap.first.name == TEST and overlap.second.is_reported:
        return "both are reported, so they count on both sides"
    return "left out where they would fit"


def _shared(overlap: Overlap) -> str:
    number = "1 sample is" if overlap.images == 1 else f"{overlap.images} samples are"
    return f"{number} both in {overlap.first.name} and in {overlap.second.name}"
