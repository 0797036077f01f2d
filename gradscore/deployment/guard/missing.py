"""Samples of the expected figures that a run no longer has: how many, and are they a random part?

Where whole classes are gone, what is left says nothing of them: a network that never predicts one of them passes every
comparison of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from ...system import BoolArray, some
from .expected import PANEL

WRONG = "those that the expected figures' network got wrong"
"""What else than a class may be gone."""

BY_CHANCE = 0.01
"""In so many cases at most, samples that are gone at random are taken for something else: half of them by the test of
each class, half by the one of all classes together, which sees many small classes of which none has to stand out."""

DRAWS = 1999
"""Random draws that the test of all classes compares with."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What of a split of the expected figures a run lacks.

    Attributes:
        samples: N, those of the expected figures.
        gone: those among them that the run lacks.
        lacking: classes, or `WRONG`, of which there is less than chance explains, each in words.
        unseen: the largest drop of a rate that would not be seen: by how much the share of these classes fell, added
            up, or that of `WRONG`, whichever is more; of all that fell where only all of them together stand out.
    """

    samples: int
    gone: int
    lacking: list[str] = field(default_factory=list)
    unseen: float = 0.0


def missing_samples(before: pd.DataFrame, now: pd.DataFrame, *, paired: bool, names: Sequence[str] | None) -> Missing:
    """Looks for samples of the expected figures in the run, and whether those that are gone are a random part.

    Where the rest is compared sample by sample, the samples of each class, and those that the expected figures'
    network got wrong, are among those that are gone as in a draw without replacement. Where other samples stand in
    their place, labelled samples of both are one draw. Hypergeometric tails, by Bonferroni over classes.

    Args:
        before: samples of the expected figures by hash, as `Samples.frame` gives them.
        now: those of the run.
        paired: whether the samples in common are compared.
        names: of the classes.
    """
    if len(now) >= PANEL:  # those with larger hashes may be in the run all the same
        before = before[before.index <= now.index.max()]
    gone = ~before.index.isin(now.index)
    found = Missing(samples=len(before), gone=int(gone.sum()))
    if not gone.any():
        return found
    if paired:
        groups = _of_classes(before["class"], names)
        there, against = ~gone, np.ones_like(gone)
        lacking = _lacking({**groups, WRONG: (before["correct"] == 0).to_numpy()}, there, against=against)
    else:
        both = pd.concat([before, now])
        kept = both["correct"].notna().to_numpy()
        groups = _of_classes(both["class"][kept], names)
        there = np.arange(len(both))[kept] >= len(before)
        against = ~there
        lacking = _lacking(groups, there, against=against)
    texts = [text for *_, text in lacking]
    of_classes = sum(drop for name, drop, _ in lacking if name != WRONG)
    of_wrong = sum(drop for name, drop, _ in lacking if name == WRONG)
    if not of_classes and (unevenly := _unevenly(groups, there, against=against)):
        of_classes, text = unevenly
        texts.append(text)
    return Missing(samples=found.samples, gone=found.gone, lacking=texts, unseen=float(max(of_classes, of_wrong)))


def _of_classes(classes: pd.Series[int], names: Sequence[str] | None) -> dict[str, BoolArray]:
    """Which samples (N,) are of each class."""
    return {
        f"class {label if names is None else names[label]}": (classes == label).to_numpy()
        for label in sorted(set(classes.tolist()))
    }


def _lacking(groups: dict[str, BoolArray], there: BoolArray, *, against: BoolArray) -> list[tuple[str, float, str]]:
    """The groups with fewer samples among those that are there than a random draw would leave.

    Args:
        groups: which of N samples belong to each.
        there: (N,) the samples that are drawn from all.
        against: (N,) those that the share of a group is compared with.

    Returns:
        Of each its name, by how much its share fell, and both in words.
    """
    found = []
    for name, of in groups.items():
        left, of_all = int((of & there).sum()), int(of.sum())
        if len(groups) * hypergeom.cdf(left, len(of), of_all, int(there.sum())) < BY_CHANCE / 2:
            was = int((of & against).sum())
            drop = was / against.sum() - left / max(there.sum(), 1)
            found.append((name, float(drop), f"{left} instead of {was} of {name}"))
    return found


def _unevenly(groups: dict[str, BoolArray], there: BoolArray, *, against: BoolArray) -> tuple[float, str] | None:
    """Whether all classes together are left less evenly than random draws leave them, by Pearson's chi-square.

    Returns:
        By how much the shares of those that fell did, added up, and that in words; None where chance explains it.
    """
    counts = np.array([int(of.sum()) for of in groups.values()], dtype=np.int64)
    left = np.array([int((of & there).sum()) for of in groups.values()], dtype=np.int64)
    if len(counts) < 2 or not 0 < left.sum() < counts.sum():
        return None
    expected = counts * (left.sum() / counts.sum())
    draws = np.random.default_rng(0).multivariate_hypergeometric(
        counts, int(left.sum()), size=DRAWS, method="marginals"
    )
    far = ((draws - expected) ** 2 / expected).sum(axis=1) >= ((left - expected) ** 2 / expected).sum() - 1e-9
    if (1 + far.sum()) / (1 + DRAWS) >= BY_CHANCE / 2:
        return None
    was = np.array([int((of & against).sum()) for of in groups.values()], dtype=np.int64)
    drops = was / against.sum() - left / left.sum()
    none_left = int(((left == 0) & (was > 0)).sum())
    return float(drops[drops > 0].sum()), f"no sample of {none_left} of {int((was > 0).sum())} classes"


def in_words(split: str, found: Missing, *, paired: bool) -> str:
    """How many samples of a split are gone; empty where none is."""
    if not found.gone:
        return ""
    share = f"{100 * found.gone / found.samples:.1f} %"
    ending = "" if paired else ", so the two are compared as different samples"
    return f"{found.gone} of the {found.samples} expected samples of {split} ({share}) are not in the run{ending}"


def why_not(split: str, found: Missing) -> str:
    """Why the comparison of the rest does not tell."""
    if not found.lacking:
        return (
            f"samples of {split}: none of the {found.samples} expected ones is in the run: this is another set; bring "
            "those back, or write the expected figures anew with --update"
        )
    return (
        f"samples of {split}: {some(found.lacking)}; more are gone than by chance, so a drop of up to "
        f"{found.unseen:.3f} would go unseen; bring them back, or write the expected figures anew with --update"
    )
