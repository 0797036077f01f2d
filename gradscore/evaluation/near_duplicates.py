"""Images that a run holds nearly twice: re-encoded, shifted by a pixel, or changed in a few values.

Reported ones are looked for in `in_dist.fit` and in the bank, those that calibrate in the bank alone, by the signatures
that extraction stored. Two images are nearly the same when they are nearer than the neighbours at that place explain:
where samples lie evenly, the volumes up to the first and to the K-th neighbour have a ratio whose law is known, that of
the smallest of K - 1 uniform numbers, whatever the density (Facco, d'Errico, Rodriguez and Laio 2017, for K = 2). The
radius of a volume is its m-th root, and the dimension m is what makes the median right among the fit samples
themselves, each without itself: copies among these move a median little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ..columns import logit_columns
from ..data import BANK, CALIBRATION, FIT, SIGNATURE_SIDE, TEST, base_split, planned_splits
from ..notices import Notice
from ..store import RunFolder
from ..system import FloatArray, IntArray, replacing, write_csv

NAME = "near_duplicates.csv"

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
