"""Samples that a run holds twice: byte for byte, in two splits or in one that is reported, or nearly.

Columns of millions of content hashes are compared by Arrow, which makes no Python object of each.

Near-duplicates are images that are re-encoded, shifted by a pixel, or changed in a few values. Reported ones are looked
for in `in_dist.fit` and in the bank, those that calibrate in the bank alone, by the signatures that extraction stored.
Two images are nearly the same when they are nearer than the neighbours at that place explain: where samples lie evenly,
the volumes up to the first and to the K-th neighbour have a ratio whose law is known, that of the smallest of K - 1
uniform numbers, whatever the density (Facco, d'Errico, Rodriguez and Laio 2017, for K = 2). The radius of a volume is
its m-th root, and the dimension m is what makes the median right among the fit samples themselves, each without itself:
copies among these move a median little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from ..columns import logit_columns
from ..data import BANK, CALIBRATION, FIT, SIGNATURE_SIDE, TEST, SplitInfo, base_split, planned_splits
from ..notices import Notice
from ..store import RunFolder
from ..system import BoolArray, FloatArray, IntArray, replacing, some, write_csv

NAME = "near_duplicates.csv"

MOSTLY = 0.5
"""Share of an OOD set from which on it is called one of in-distribution samples."""

MOST_IMAGES = 1_000_000
"""Images among which near-duplicates are looked for: each takes 768 bytes, and every reported one is compared
with every one that fits."""

NEIGHBOURS = 10
"""K: the distance to this neighbour says what is usual at a place. Of one image, K - 1 near-duplicates are seen."""

FEWEST = 2 * NEIGHBOURS
"""Fewer fit images than this do not tell what is usual."""

MOSTLY_NEAR, ENOUGH_TO_TELL = 0.5, 50
"""Share of the way from usual to all at which a split is said to hold near-copies, and how many samples tell. Seen:
0.04 at most on eight networks, 0.32 where samples of one hand stand together."""

FALSE_ALARMS = 0.1
"""Images expected to be called near-duplicates in a reported set that has none."""

ENOUGH_FOR_A_MEDIAN = 2000
"""Fit images whose neighbours tell the dimension; of more, these are taken at even steps."""

_BLOCK = 512

Signatures = NDArray[np.float32]


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
    """A caution for each reported OOD set of which half or more are copies of in-distribution samples.

    Args:
        content: split -> content hashes of its samples.
    """
    known = _column(pd.concat([values for split, values in content.items() if split.kind not in ("ood", "shifted")]))
    sets = {split: _column(values) for split, values in content.items() if split.is_reported_ood}
    counts = {split: pc.sum(pc.is_in(values, value_set=known)).as_py() for split, values in sets.items()}
    return [
        Notice(
            f"{split.name}: {count} of {len(content[split])} samples are copies of in-distribution samples: its "
            "figures, and means with it, say little of OOD samples; give other samples",
            "caution",
        )
        for split, count in counts.items()
        if count is not None and count >= MOSTLY * len(content[split])
    ]


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
    numbers, _ = pd.factorize(pd.concat([pd.Series(dtype="str"), *columns]))
    return np.asarray(numbers, dtype=np.int64)


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


@dataclass(frozen=True, kw_only=True)
class NearDuplicate:
    """An image that is reported, or calibrates, and is nearly one of `in_dist.fit` or of the bank.

    Attributes:
        split: of the image.
        sample_id: its name.
        content_hash: of its content.
        near_split: `in_dist.fit` or `in_dist.bank`.
        near_sample_id: name of the image there.
        expected: images of the split expected to come as near if none were a near-duplicate.
    """

    split: str
    sample_id: str
    content_hash: str
    near_split: str
    near_sample_id: str
    expected: float


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Result of a search for near-duplicates.

    Attributes:
        pairs: split by split, in the order of the samples; those with images of `in_dist.fit` first.
        searched: images of a split that were compared with those of `in_dist.fit` or of the bank, copies of one another
            or of these not counted; by the names of the two splits, `in_dist.fit` or the bank first.
        notices: why there was no search.
    """

    pairs: list[NearDuplicate] = field(default_factory=list)
    searched: Mapping[tuple[str, str], int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    @property
    def in_fit(self) -> list[NearDuplicate]:
        """The pairs with images of `in_dist.fit`."""
        return [pair for pair in self.pairs if pair.near_split == FIT]

    def sentences(self) -> list[str]:
        """A sentence for each split with near-duplicates, the bank first, and why there was no search."""
        leak = "a leak, since they are compared with the bank: take them out of the bank"
        then = f"they flatter the figures: take them out of {FIT}"
        lines: dict[str, list[str]] = {BANK: [], FIT: []}
        for (near, split), number in self.searched.items():
            pairs = [pair for pair in self.pairs if (pair.near_split, pair.split) == (near, split)]
            if pairs:
                lines[near].append(
                    f"near-duplicates: {len({pair.content_hash for pair in pairs})} of {number} images of {split} are "
                    f"nearly images of {near} ({FALSE_ALARMS:g} expected by chance), the first of them sample "
                    f"{pairs[0].sample_id}, nearly sample {pairs[0].near_sample_id}; all are in {NAME}: "
                    f"{leak if near == BANK else then}"
                )
        return [*self.notices, *lines[BANK], *lines[FIT]]

    def write(self, run: RunFolder) -> None:
        """Writes `near_duplicates.csv` to the evaluation folder: one row for each pair."""
        columns = ["split", "sample_id", "near_split", "near_sample_id", "expected"]
        table = pd.DataFrame([[getattr(pair, column) for column in columns] for pair in self.pairs], columns=columns)
        with replacing(run.evaluation_path / NAME) as temporary:
            write_csv(table, temporary)


def near_copies_in_fit(run: RunFolder) -> list[Notice]:
    """A caution where samples of `in_dist.fit` lie nearer to one another than samples drawn one by one would.

    Of n and m distinct samples that are exchangeable, the nearest to one of the n is among these with a probability of
    (n - 1) / (n + m - 1), whatever they are: near-copies raise that share, and so do several samples of one source.
    Folds that part them judge a fit by what it has seen. Near is by logits; of many samples `ENOUGH_FOR_A_MEDIAN` are
    asked.

    Args:
        run: a finished run folder.
    """
    from sklearn.neighbors import NearestNeighbors

    sizes = run.sizes
    other = next((name for name in (CALIBRATION, TEST) if name in sizes), None)
    if other is None or max(sizes[FIT], sizes[other]) > MOST_IMAGES:
        return []
    columns = ["content_hash", *logit_columns(run.columns(FIT))]
    fit, others = (_finite(run.read(name, columns)).drop_duplicates("content_hash") for name in (FIT, other))
    others = others[~others["content_hash"].isin(fit["content_hash"])]
    if len(fit) < ENOUGH_TO_TELL or others.empty:
        return []
    points, apart = (each[columns[1:]].to_numpy(dtype=np.float64) for each in (fit, others))
    asked = points[np.unique(np.linspace(0, len(points) - 1, ENOUGH_FOR_A_MEDIAN).astype(np.int64))]
    own = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(asked)[0][:, 1]
    foreign = NearestNeighbors(n_neighbors=1).fit(apart).kneighbors(asked)[0][:, 0]
    share = float((own < foreign).mean() + (own == foreign).mean() / 2)
    usual = (len(points) - 1) / (len(points) + len(apart) - 1)
    if share - usual < MOSTLY_NEAR * (1 - usual):
        return []
    text = (
        f"{100 * share:.0f} % of {FIT} are nearer, by their logits, to another of its samples than to any of {other}, "
        f"where {100 * usual:.0f} % would be of samples drawn one by one: near-copies, or several samples of one "
        "source, make fits look better than they are, and probabilities too sure; keep one of each, and draw both "
        "splits at random from the same data"
    )
    return [Notice(text, "caution")]


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = frame[np.isfinite(frame.drop(columns="content_hash").to_numpy(np.float64)).all(axis=1)]
    return found


def find_near_duplicates(run: RunFolder) -> NearDuplicates:
    """Looks for near-duplicates as `evaluate.near_duplicates` says.

    Reported sets that are made of other images of the run are not searched: a blurred image is like the one it is made
    of. Nor are copies to the byte, which are found without this.

    Args:
        run: a finished run folder.

    Returns:
        The pairs; none with `ignore`. `notices` say when images are no pixels, or more than `MOST_IMAGES`.

    Raises:
        StoreError: the run is not finished or damaged.
    """
    if run.config.evaluate.near_duplicates == "ignore":
        return NearDuplicates()
    specs = planned_splits(run.config.data)
    infos = {info.name: info for info in run.splits()}
    reported = [name for name, info in infos.items() if info.is_reported and base_split(*specs[name]) is None]
    compared = {FIT: reported}
    if BANK in infos:
        compared[BANK] = [*reported, *([CALIBRATION] if CALIBRATION in infos else [])]
    needed = list(dict.fromkeys(name for near, splits in compared.items() for name in (near, *splits)))
    number = sum(run.sizes.get(name, 0) for name in needed)
    if number > MOST_IMAGES:
        return _not_searched(f"{number} images are more than {MOST_IMAGES}")
    images = {}
    for name in needed:
        stored = run.signatures(name)
        if stored is None:
            hidden = f"the images of {name} are no pixels (uint8) of 1 or 3 channels"
            return _not_searched(hidden) if run.manifest.splits[name].hides_images else NearDuplicates()
        distinct = run.read(name, columns=["sample_id", "content_hash"]).drop_duplicates("content_hash")
        images[name] = distinct, stored[distinct.index].astype(np.float32)
    pairs: list[NearDuplicate] = []
    searched: dict[tuple[str, str], int] = {}
    notices = []
    for near, splits in compared.items():
        others, known = images[near]
        if len(others) < FEWEST:
            few = f"wanted at least {FEWEST} distinct images of {near}, got {len(others)}"
            notices += _not_searched(few).notices
            continue
        for split in splits:
            rows, signatures = images[split]
            is_new = ~rows["content_hash"].isin(others["content_hash"]).to_numpy()
            new, searched[near, split] = rows[is_new], int(is_new.sum())
            pairs += [
                NearDuplicate(
                    split=split,
                    sample_id=str(new["sample_id"].iloc[row]),
                    content_hash=str(new["content_hash"].iloc[row]),
                    near_split=near,
                    near_sample_id=str(others["sample_id"].iloc[other]),
                    expected=expected,
                )
                for row, other, expected in near_pairs(signatures[is_new], known)
            ]
    return NearDuplicates(pairs=pairs, searched=searched, notices=notices)


def _not_searched(why: str) -> NearDuplicates:
    return NearDuplicates(notices=[f"near-duplicates were not looked for: {why}"])


def near_pairs(reported: Signatures, fit: Signatures) -> Iterator[tuple[int, int, float]]:
    """The pairs of a reported and a fit image that are nearer than chance explains.

    Two images must be near both as they are, and with colour and contrast taken out: two skies of one blue are not.

    Args:
        reported: (M, D) signatures.
        fit: (N, D), of distinct images, at least `FEWEST`.

    Yields:
        Place of the reported image, place of the fit image, and the number of reported images expected to come as near
        without a near-duplicate; below `FALSE_ALARMS`. In the order of the reported images, the nearest pair first.
    """
    number = len(reported)
    suspects, places, expected = _nearer_than_usual(reported, fit, number=number)
    if not len(suspects):
        return
    rows, plain_places, plain = _nearer_than_usual(_standardised(reported[suspects]), _standardised(fit), number=number)
    suspects, places, expected = suspects[rows], places[rows], expected[rows]
    expected = np.maximum(expected[:, :, None], plain[:, None, :])
    same = places[:, :, None] == plain_places[:, None, :]
    for row, column, other in np.argwhere(same & (expected < FALSE_ALARMS)).tolist():
        yield int(suspects[row]), int(places[row, column]), float(expected[row, column, other])


def _nearer_than_usual(shown: Signatures, known: Signatures, *, number: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Pairs of shown and known images that are nearer than usual.

    Returns:
        Their places (n,), those of their neighbours (n, K), and how many of `number` images are expected to come as
        near as each (n, K).
    """
    own = np.unique(np.linspace(0, len(known) - 1, ENOUGH_FOR_A_MEDIAN).astype(np.int64))
    m = dimension(nearest(known[own], known, own=own)[1])
    places, distances = nearest(shown, known)
    expected = chance(distances, m) * number
    rows = np.flatnonzero(expected[:, 0] < FALSE_ALARMS)
    return rows, places[rows], expected[rows]


def nearest(shown: Signatures, known: Signatures, *, own: IntArray | None = None) -> tuple[IntArray, FloatArray]:
    """The `NEIGHBOURS` nearest known images of each, a block of images at a time.

    Args:
        shown: (M, D).
        known: (N, D).
        own: (M,) place of each among the known, which is no neighbour of itself.

    Returns:
        Their places and their Euclidean distances (M, K), nearest first.
    """
    centre = known.mean(axis=0, dtype=np.float64).astype(np.float32)
    shown, known = shown - centre, known - centre
    squares = (known * known).sum(axis=1)
    places, distances = [np.empty((0, NEIGHBOURS), dtype=np.int64)], [np.empty((0, NEIGHBOURS))]
    for start in range(0, len(shown), _BLOCK):
        block = shown[start : start + _BLOCK]
        squared = (-2 * block) @ known.T
        squared += squares  # less the square of the block's own, which orders nothing
        if own is not None:
            squared[np.arange(len(block)), own[start : start + _BLOCK]] = np.inf
        chosen = torch.from_numpy(squared).topk(NEIGHBOURS, largest=False).indices.numpy()
        # Differences of squares lose digits where images are near.
        exact = np.sqrt(np.square(block[:, None].astype(np.float64) - known[chosen]).sum(axis=2))
        order = np.argsort(exact, axis=1, kind="stable")
        places.append(np.take_along_axis(chosen, order, axis=1))
        distances.append(np.take_along_axis(exact, order, axis=1))
    return np.concatenate(places), np.concatenate(distances)


def dimension(distances: FloatArray) -> float:
    """The dimension m at which half of the images come as near as they do, at most that of signatures.

    Args:
        distances: (N, K) of fit images to their neighbours.
    """
    median = float(np.median(_ratios(distances)[:, 0]))
    half = 1 - 0.5 ** (1 / (NEIGHBOURS - 1))  # of the volume up to the K-th neighbour
    return float(np.clip(np.log(half) / np.log(np.clip(median, 1e-9, 1 - 1e-9)), 1.0, 3 * SIGNATURE_SIDE**2))


def chance(distances: FloatArray, m: float) -> FloatArray:
    """Chance that the nearest of K neighbours comes as near as each does, of samples that lie evenly.

    Args:
        distances: (N, K), ascending.
        m: dimension.

    Returns:
        (N, K) of 1 - (1 - (d / d_K)^m)^(K - 1).
    """
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1((NEIGHBOURS - 1) * np.log1p(-(_ratios(distances) ** m))))


def _ratios(distances: FloatArray) -> FloatArray:
    """Ratios of distances to the last; 1 where even that is zero, since nothing there is nearer than usual."""
    usual = distances[:, -1:]
    zero = usual == 0
    return np.asarray(np.where(zero, 1.0, distances / np.where(zero, 1.0, usual)))


def _standardised(signatures: Signatures) -> Signatures:
    channels = signatures.reshape(len(signatures), SIGNATURE_SIDE**2, 3)
    centred = (channels - channels.mean(axis=1, keepdims=True)).reshape(signatures.shape)
    # One grey level more, so that the rounding of plain images does not become their content.
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + 1), dtype=np.float32)
