"""Images that are in more than one split, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from ..data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from ..errors import EvaluationError
from .contents import count_common


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
