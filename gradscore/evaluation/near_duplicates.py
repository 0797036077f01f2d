"""Reported images that are nearly images of `in_dist.fit`: re-encoded, shifted by a pixel, changed in a few values.

So are images that are nearly in the bank looked for, the reported ones and those that calibrate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..data import (
    BANK,
    CALIBRATION,
    FIT,
    ImageSource,
    base_split,
    content_hash,
    describe_raw,
    is_image,
    open_splits,
    planned_splits,
)
from ..errors import DataError, EvaluationError, GradscoreError
from ..store import RunFolder
from ..system import csv_quoting, without_formulas, write_text
from .nearness import FALSE_ALARMS, FEWEST, Signatures, near_pairs, signature
from .records import Record

NAME = "near_duplicates.csv"
NAME_IN_BANK = "near_duplicates_bank.csv"

MOST_IMAGES = 1_000_000
"""Images among which near-duplicates are looked for unasked: each takes 768 bytes, and every reported one is compared
with every one that fits."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicate:
    """A reported image that is nearly one of `in_dist.fit`.

    Attributes:
        split: of the reported image.
        sample_id: its name.
        content_hash: of its content.
        fit_sample_id: name of the fit image.
        fit_content_hash: of the content of that.
        expected: reported images of the split expected to come as near if none were a near-duplicate.
    """

    split: str
    sample_id: str
    content_hash: str
    fit_sample_id: str
    fit_content_hash: str
    expected: float


@dataclass(frozen=True, kw_only=True)
class NearInBank:
    """An image that is reported or calibrates, and is nearly one of the bank.

    Attributes:
        split: of the image.
        sample_id: its name.
        bank_sample_id: name of the image in the bank.
        expected: images of the split expected to come as near if none were a near-duplicate.
    """

    split: str
    sample_id: str
    bank_sample_id: str
    expected: float


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """What a search found.

    Attributes:
        pairs: split by split, in the order of the samples.
        searched: images looked at by data set, copies of one another or of fit images not counted.
        left_out: whether the fit images of the pairs are left out of the fits.
        notices: why there was no search.
        in_bank: pairs with images of the bank, split by split.
        compared_with_bank: images looked at by data set, copies of one another or of images of the bank not counted.
    """

    pairs: list[NearDuplicate] = field(default_factory=list)
    searched: Mapping[str, int] = field(default_factory=dict)
    left_out: bool = False
    notices: list[str] = field(default_factory=list)
    in_bank: list[NearInBank] = field(default_factory=list)
    compared_with_bank: Mapping[str, int] = field(default_factory=dict)

    def excluded(self) -> dict[str, set[str]]:
        """Content hash of a reported image -> those of the fit images left out for it; empty where none are."""
        found: dict[str, set[str]] = {}
        for pair in self.pairs if self.left_out else []:
            found.setdefault(pair.content_hash, set()).add(pair.fit_content_hash)
        return found

    def counts(self) -> dict[str, int]:
        """Images with a near-duplicate by split, of the splits that were searched."""
        contents = {split: {pair.content_hash for pair in self.pairs if pair.split == split} for split in self.searched}
        return {split: len(hashes) for split, hashes in contents.items()}

    def records(self) -> list[Record]:
        """The counts as records: task `control`, score `near_duplicates`."""
        return [
            Record(
                task="control",
                dataset=split,
                protocol="all",
                score="near_duplicates",
                metric="count",
                value=float(count),
                low=None,
                high=None,
                n=self.searched[split],
                n_positive=count,
            )
            for split, count in self.counts().items()
        ]

    def in_words(self) -> list[str]:
        """A sentence for each split with near-duplicates, and why there was no search."""
        first = {split: next(pair for pair in self.pairs if pair.split == split) for split in self._found()}
        then = (
            "their fit images are left out of the fits"
            if self.left_out
            else "they flatter the figures; evaluate.near_duplicates=leave_out leaves their fit images out"
        )
        return [*self.notices, *self._leaks()] + [
            f"near-duplicates: {count} of {self.searched[split]} images of {split} are nearly images of {FIT} "
            f"({FALSE_ALARMS:g} expected by chance), the first of them sample {first[split].sample_id}, nearly sample "
            f"{first[split].fit_sample_id}; all are in {NAME}: {then}"
            for split, count in self._found().items()
        ]

    def _leaks(self) -> list[str]:
        """A sentence for each split with images that are nearly in the bank."""
        return [
            f"near-duplicates: {len({pair.sample_id for pair in pairs})} of {number} images of {split} are nearly "
            f"images of {BANK} ({FALSE_ALARMS:g} expected by chance), the first of them sample {pairs[0].sample_id}, "
            f"nearly sample {pairs[0].bank_sample_id}; all are in {NAME_IN_BANK}: a leak, since they are compared with "
            "the bank: take them out of the bank"
            for split, number in self.compared_with_bank.items()
            if (pairs := [pair for pair in self.in_bank if pair.split == split])
        ]

    def _found(self) -> dict[str, int]:
        return {split: count for split, count in self.counts().items() if count}


def search(run: RunFolder) -> NearDuplicates:
    """Looks for near-duplicates as `evaluate.near_duplicates` says.

    Reported sets that are made of other images of the run are not searched: a blurred image is like the one it is made
    of. Nor are copies to the byte, which are found without this.

    Args:
        run: a run folder whose images are where its configuration says.

    Returns:
        The pairs; none with `ignore`. With `report`, `notices` say when images cannot be read, or are more than
        `MOST_IMAGES`.

    Raises:
        EvaluationError: with `leave_out`, the images cannot be had.
        StoreError: the run is not finished or damaged.
    """
    wanted = run.config.evaluate.near_duplicates
    if wanted == "ignore":
        return NearDuplicates()
    specs = planned_splits(run.config.data)
    infos = run.splits()
    searched = [info.name for info in infos if info.is_reported and base_split(*specs[info.name]) is None]
    others = [info.name for info in infos if info.name == CALIBRATION]
    bank = [info.name for info in infos if info.name == BANK]
    needed = [FIT, *searched, *bank, *(others if bank else [])]
    images = sum(run.sizes.get(name, 0) for name in needed)
    if wanted == "report" and images > MOST_IMAGES:
        few = f"{images} images are more than {MOST_IMAGES}; evaluate.near_duplicates=leave_out looks among any number"
        return NearDuplicates(notices=[f"near-duplicates were not looked for: {few}"])
    rows = {name: run.read(name, columns=["sample_id", "content_hash"]) for name in needed}
    try:
        signatures = _signatures(run, rows)
    except (GradscoreError, OSError) as error:
        if wanted == "leave_out":
            raise EvaluationError(
                f"{run.path}: evaluate.near_duplicates is leave_out, and the images cannot be read again: {error}. "
                "Put the data back, or set evaluate.near_duplicates=ignore"
            ) from None
        return NearDuplicates(notices=[f"near-duplicates were not looked for: {error}"])
    near = _compared(FIT, searched, rows, signatures)
    in_bank = _compared(BANK, [*searched, *others], rows, signatures) if bank else _Compared()
    return NearDuplicates(
        pairs=[_in_fit(pair) for pair in near.pairs],
        searched=near.sizes,
        left_out=wanted == "leave_out",
        notices=[*near.notices, *in_bank.notices],
        in_bank=[_in_bank(pair) for pair in in_bank.pairs],
        compared_with_bank=in_bank.sizes,
    )


def _in_fit(pair: _Pair) -> NearDuplicate:
    return NearDuplicate(
        split=pair.split,
        sample_id=str(pair.shown["sample_id"]),
        content_hash=str(pair.shown["content_hash"]),
        fit_sample_id=str(pair.known["sample_id"]),
        fit_content_hash=str(pair.known["content_hash"]),
        expected=pair.expected,
    )


def _in_bank(pair: _Pair) -> NearInBank:
    return NearInBank(
        split=pair.split,
        sample_id=str(pair.shown["sample_id"]),
        bank_sample_id=str(pair.known["sample_id"]),
        expected=pair.expected,
    )


def write_pairs(run: RunFolder, found: NearDuplicates) -> None:
    """Writes `near_duplicates.csv` to the evaluation folder, and `near_duplicates_bank.csv`: one row for each pair."""
    for name, pairs, other in (
        (NAME, found.pairs, "fit_sample_id"),
        (NAME_IN_BANK, found.in_bank, "bank_sample_id"),
    ):
        columns = ["split", "sample_id", other, "expected"]
        table = pd.DataFrame([[getattr(pair, column) for column in columns] for pair in pairs], columns=columns)
        write_text(run.evaluation_path / name, without_formulas(table).to_csv(index=False, quoting=csv_quoting(table)))


@dataclass(frozen=True)
class _Pair:
    """Two rows of feature tables whose images are nearly the same; `shown` is one of `split`."""

    split: str
    shown: pd.Series[str]
    known: pd.Series[str]
    expected: float


@dataclass(frozen=True)
class _Compared:
    """Pairs of images of some splits and of a known one, how many of each split were looked at, and why none were."""

    pairs: list[_Pair] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def _compared(
    known: str, splits: Sequence[str], rows: Mapping[str, pd.DataFrame], signatures: Mapping[str, Signatures]
) -> _Compared:
    others = rows[known].drop_duplicates("content_hash")
    if len(others) < FEWEST:
        few = f"wanted at least {FEWEST} distinct images of {known}, got {len(others)}"
        return _Compared(notices=[f"near-duplicates were not looked for: {few}"])
    found = _Compared()
    for split in splits:
        shown = rows[split].drop_duplicates("content_hash")
        shown = shown[~shown["content_hash"].isin(others["content_hash"])]
        found.sizes[split] = len(shown)
        if shown.empty:
            continue
        near = near_pairs(signatures[split][shown.index], signatures[known][others.index])
        found.pairs.extend(_Pair(split, shown.iloc[row], others.iloc[other], expected) for row, other, expected in near)
    return found


def _signatures(run: RunFolder, rows: Mapping[str, pd.DataFrame]) -> dict[str, Signatures]:
    """The signatures (N, D) of the rows of each split, from the images they were made of."""
    opened = open_splits(
        run.config.data,
        preprocessing=run.config.preprocessing,
        num_classes=run.config.model.num_classes,
        seed=run.config.extract.seed,
        only=set(rows),
        trust_code=run.trust(),
    )
    return {name: _of_split(name, opened[name].images, frame) for name, frame in rows.items()}


def _of_split(split: str, images: ImageSource, frame: pd.DataFrame) -> Signatures:
    places = {name: place for place, name in enumerate(images.ids)}
    found = []
    for name, digest in zip(frame["sample_id"], frame["content_hash"], strict=True):
        pixels = images.image(places[name]) if name in places else None
        if pixels is None or content_hash(pixels) != digest:
            raise DataError(f"{split}: sample {name} is no longer what the features were extracted from")
        if not is_image(pixels):
            raise DataError(f"{split}: it is a search of images, and the samples are {describe_raw(pixels)}")
        found.append(signature(pixels))
    return np.stack(found)
