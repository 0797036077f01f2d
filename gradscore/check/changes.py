"""What else changed between a run and the expected figures: features of the same samples, and samples that are gone.

Where whole classes are gone, what is left says nothing of them: a network that never predicts one of them passes every
comparison of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from ..columns import COSINE, FORWARD, RATE, feature_columns, logit_columns
from ..statistics import STATISTICS
from ..system import FloatArray, some
from .expected import HASH_DIGITS, PANEL, Probe

WRONG = "those that the expected network got wrong"
"""What else than a class may be gone."""

BY_CHANCE = 0.01
"""In so many cases at most, samples that are gone at random are taken for something else: half of them by the test of
each class, half by the one of all classes together, which sees many small classes of which none has to stand out."""

DRAWS = 1999
"""Random draws that the test of all classes compares with."""


@dataclass(frozen=True, kw_only=True)
class FeatureDrift:
    """How far features moved.

    Attributes:
        samples: probe samples found in the run.
        schema: what differs in the columns; empty if nothing.
        largest: largest change relative to the size of the feature.
        column: the column it is in.
        moved: columns that changed by more than the tolerance, the largest change first.
    """

    samples: int
    schema: str
    largest: float = 0.0
    column: str = ""
    moved: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Layer and statistic of the largest change, in words."""
        loss, _, rest = self.column.partition("/")
        layer, _, statistic = rest.rpartition("/")
        of = "" if loss == FORWARD else f", loss {loss}"
        return f"{statistic} of layer {layer}{of}" if layer else self.column


def feature_drift(probe: Probe, test: pd.DataFrame, *, tolerance: float) -> FeatureDrift:
    """Compares the features of the probe with those of a run.

    A change counts relative to the feature, or to the largest of the element-sized statistics (max, min, mean, std) of
    the same gradient: a mean that is next to zero beside a large maximum is rounding. Cosines and rates
    count as they are.

    Args:
        probe: samples and their features.
        test: the feature table of `in_dist.test`.
        tolerance: accepted relative change.

    Returns:
        The drift; nothing moved where no sample of the probe is in the run.
    """
    names = [*logit_columns(test.columns), *feature_columns(test.columns)]
    lacking = {"missing": _lacking(probe.columns, names), "unexpected": _lacking(names, probe.columns)}
    schema = "; ".join(f"{what} {some(columns, shown=3)}" for what, columns in lacking.items() if columns)
    rows = {name: place for place, name in reversed(list(enumerate(test["content_hash"].str[:HASH_DIGITS])))}
    common = [place for place, name in enumerate(probe.content_hash) if name in rows]
    shared = [name for name in probe.columns if name in set(names)]
    if not common or not shared:
        return FeatureDrift(samples=len(common), schema=schema)
    before = np.array([probe.columns[name] for name in shared], dtype=np.float64)[:, common]
    places = [rows[probe.content_hash[place]] for place in common]
    now = test[shared].iloc[places].to_numpy(dtype=np.float64).T
    changes = _relative_changes(shared, before, now).max(axis=1)
    order = np.argsort(-changes, kind="stable")
    return FeatureDrift(
        samples=len(common),
        schema=schema,
        largest=float(changes[order[0]]),
        column=shared[order[0]],
        moved=[shared[place] for place in order if changes[place] > tolerance],
    )


def _relative_changes(names: list[str], before: FloatArray, now: FloatArray) -> FloatArray:
    """Changes (columns, samples) relative to sizes; infinite where only one value is finite."""
    finite = np.isfinite(before) & np.isfinite(now)
    sizes = np.where(finite, np.maximum(np.abs(before), np.abs(now)), 0.0)
    sizes[[name.endswith((f"/{COSINE}", f"/{RATE}")) for name in names]] = 1.0
    groups = np.unique([_group(name) for name in names], return_inverse=True)[1]
    largest = np.stack([sizes[groups == group].max(axis=0) for group in range(groups.max() + 1)])[groups]
    gaps = np.abs(np.where(finite, now - before, 0.0))
    changes = np.divide(gaps, largest, out=np.zeros_like(gaps), where=gaps > 0)
    return np.where(np.isfinite(before) == np.isfinite(now), changes, np.inf)


def _group(name: str) -> str:
    """Columns whose sizes count together: the logits, the element-sized statistics of a gradient, or one column."""
    group, _, statistic = name.rpartition("/")
    of_elements = statistic in STATISTICS and STATISTICS[statistic].of_elements
    return "logits" if not group else group if of_elements else name


def _lacking(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    present = set(found)
    return [name for name in wanted if name not in present]


@dataclass(frozen=True, kw_only=True)
class MissingSamples:
    """What of the expected samples of a split a run lacks.

    Attributes:
        samples: N, those that are expected.
        gone: those among them that the run lacks.
        lacking: classes, or `WRONG`, of which there is less than chance explains, each in words.
        unseen: the largest drop of a rate that would not be seen: by how much the share of these classes fell, added
            up, or that of `WRONG`, whichever is more; of all that fell where only all of them together stand out.
    """

    samples: int
    gone: int
    lacking: list[str] = field(default_factory=list)
    unseen: float = 0.0


@dataclass(frozen=True)
class _Group:
    """Samples of a class, or `WRONG`: all of N, those that are there, and those that its share is compared with."""

    name: str
    of_all: int
    left: int
    was: int


def missing_samples(
    before: pd.DataFrame, now: pd.DataFrame, *, paired: bool, names: Sequence[str] | None
) -> MissingSamples:
    """Looks for the expected samples in a run, and whether those that are gone are a random part.

    Where the rest is compared sample by sample, the samples of each class, and those that the expected network got
    wrong, are among those that are gone as in a draw without replacement. Where other samples stand in their place,
    labelled samples of both are one draw. Hypergeometric tails, by Bonferroni over classes.

    Args:
        before: the expected samples by hash, as `SplitScores.frame` gives them.
        now: those of the run.
        paired: whether the samples in common are compared.
        names: of the classes.
    """
    if len(now) >= PANEL:  # those with larger hashes may be in the run all the same
        before = before[before.index <= now.index.max()]
    gone = ~before.index.isin(now.index)
    if not gone.any():
        return MissingSamples(samples=len(before), gone=0)
    if paired:
        classes, there, against = before["class"], ~gone, np.ones_like(gone)
    else:
        both = pd.concat([before, now])
        kept = both["correct"].notna().to_numpy()
        classes = both["class"][kept]
        there = np.arange(len(both))[kept] >= len(before)
        against = ~there
    members = {
        f"class {label if names is None else names[label]}": (classes == label).to_numpy()
        for label in sorted(set(classes.tolist()))
    }
    if paired:
        members[WRONG] = (before["correct"] == 0).to_numpy()
    groups = [
        _Group(name, int(of.sum()), int((of & there).sum()), int((of & against).sum())) for name, of in members.items()
    ]
    n, left, was = len(there), int(there.sum()), int(against.sum())
    fewer = [
        group for group in groups if len(groups) * hypergeom.cdf(group.left, n, group.of_all, left) < BY_CHANCE / 2
    ]
    drops = {group.name: float(group.was / was - group.left / max(left, 1)) for group in fewer}
    lacking = [f"{group.left} instead of {group.was} of {group.name}" for group in fewer]
    of_wrong = drops.pop(WRONG, 0)
    of_classes = sum(drops.values())
    if not of_classes and (unevenly := _unevenly([group for group in groups if group.name != WRONG], was=was)):
        of_classes, text = unevenly
        lacking.append(text)
    return MissingSamples(
        samples=len(before), gone=int(gone.sum()), lacking=lacking, unseen=float(max(of_classes, of_wrong))
    )


def _unevenly(groups: Sequence[_Group], *, was: int) -> tuple[float, str] | None:
    """Whether all classes together are left less evenly than random draws leave them, by Pearson's chi-square.

    Returns:
        By how much the shares of those that fell did, added up, and that in words; None where chance explains it.
    """
    counts = np.array([group.of_all for group in groups], dtype=np.int64)
    left = np.array([group.left for group in groups], dtype=np.int64)
    if len(counts) < 2 or not 0 < left.sum() < counts.sum():
        return None
    expected = counts * (left.sum() / counts.sum())
    draws = np.random.default_rng(0).multivariate_hypergeometric(
        counts, int(left.sum()), size=DRAWS, method="marginals"
    )
    far = ((draws - expected) ** 2 / expected).sum(axis=1) >= ((left - expected) ** 2 / expected).sum() - 1e-9
    if (1 + far.sum()) / (1 + DRAWS) >= BY_CHANCE / 2:
        return None
    before = np.array([group.was for group in groups], dtype=np.int64)
    drops = before / was - left / left.sum()
    none_left = int(((left == 0) & (before > 0)).sum())
    return float(drops[drops > 0].sum()), f"no sample of {none_left} of {int((before > 0).sum())} classes"
