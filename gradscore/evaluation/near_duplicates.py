"""Reported images that are nearly images of `in_dist.fit`: re-encoded, shifted by a pixel, changed in a few values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..data import FIT, ImageSource, base_split, content_hash, open_splits, planned_splits
from ..errors import DataError, EvaluationError, GradscoreError
from ..store import RunFolder
from ..system import write_text
from .nearness import FALSE_ALARMS, FEWEST, Signatures, near_pairs, signature
from .records import Record

NAME = "near_duplicates.csv"


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
class NearDuplicates:
    """What a search found.

    Attributes:
        pairs: split by split, in the order of the samples.
        searched: images looked at by data set, copies of one another or of fit images not counted.
        left_out: whether the fit images of the pairs are left out of the fits.
        notices: why there was no search.
    """

    pairs: list[NearDuplicate] = field(default_factory=list)
    searched: Mapping[str, int] = field(default_factory=dict)
    left_out: bool = False
    notices: list[str] = field(default_factory=list)

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
        return self.notices + [
            f"near-duplicates: {count} of {self.searched[split]} images of {split} are nearly images of {FIT} "
            f"({FALSE_ALARMS:g} expected by chance), the first of them sample {first[split].sample_id}, nearly sample "
            f"{first[split].fit_sample_id}; all are in {NAME}: {then}"
            for split, count in self._found().items()
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
        The pairs; none with `ignore`. With `report`, images that cannot be read are said in `notices`.

    Raises:
        EvaluationError: with `leave_out`, the images cannot be had.
        StoreError: the run is not finished or damaged.
    """
    wanted = run.config.evaluate.near_duplicates
    if wanted == "ignore":
        return NearDuplicates()
    specs = planned_splits(run.config.data)
    searched = [info.name for info in run.splits() if info.is_reported and base_split(*specs[info.name]) is None]
    rows = {name: run.read(name, columns=["sample_id", "content_hash"]) for name in (FIT, *searched)}
    try:
        signatures = _signatures(run, rows)
    except (GradscoreError, OSError) as error:
        if wanted == "leave_out":
            raise EvaluationError(
                f"{run.path}: evaluate.near_duplicates is leave_out, and the images cannot be read again: {error}. "
                "Put the data back, or set evaluate.near_duplicates=ignore"
            ) from None
        return NearDuplicates(notices=[f"near-duplicates were not looked for: {error}"])
    fit = rows[FIT].drop_duplicates("content_hash")
    if len(fit) < FEWEST:
        few = f"near-duplicates were not looked for: wanted at least {FEWEST} distinct images of {FIT}, got {len(fit)}"
        return NearDuplicates(notices=[few])
    pairs: list[NearDuplicate] = []
    sizes: dict[str, int] = {}
    for name in searched:
        shown = rows[name].drop_duplicates("content_hash")
        shown = shown[~shown["content_hash"].isin(fit["content_hash"])]
        sizes[name] = len(shown)
        pairs += _pairs(name, shown, fit, signatures)
    return NearDuplicates(pairs=pairs, searched=sizes, left_out=wanted == "leave_out")


def write_pairs(run: RunFolder, found: NearDuplicates) -> None:
    """Writes `near_duplicates.csv` to the evaluation folder: one row for each pair."""
    columns = ["split", "sample_id", "fit_sample_id", "expected"]
    table = pd.DataFrame([[getattr(pair, name) for name in columns] for pair in found.pairs], columns=columns)
    write_text(run.evaluation_path / NAME, table.to_csv(index=False))


def _pairs(
    split: str, shown: pd.DataFrame, fit: pd.DataFrame, signatures: Mapping[str, Signatures]
) -> list[NearDuplicate]:
    if shown.empty:
        return []
    return [
        NearDuplicate(
            split=split,
            sample_id=str(shown["sample_id"].iloc[place]),
            content_hash=str(shown["content_hash"].iloc[place]),
            fit_sample_id=str(fit["sample_id"].iloc[other]),
            fit_content_hash=str(fit["content_hash"].iloc[other]),
            expected=expected,
        )
        for place, other, expected in near_pairs(signatures[split][shown.index], signatures[FIT][fit.index])
    ]


def _signatures(run: RunFolder, rows: Mapping[str, pd.DataFrame]) -> dict[str, Signatures]:
    """The signatures (N, D) of the rows of each split, from the images they were made of."""
    opened = open_splits(
        run.config.data,
        preprocessing=run.config.preprocessing,
        num_classes=run.config.model.num_classes,
        seed=run.config.extract.seed,
        only=set(rows),
    )
    return {name: _of_split(name, opened[name].images, frame) for name, frame in rows.items()}


def _of_split(split: str, images: ImageSource, frame: pd.DataFrame) -> Signatures:
    places = {name: place for place, name in enumerate(images.ids)}
    found = []
    for name, digest in zip(frame["sample_id"], frame["content_hash"], strict=True):
        pixels = images.image(places[name]) if name in places else None
        if pixels is None or content_hash(pixels) != digest:
            raise DataError(f"{split}: sample {name} is no longer what the features were extracted from")
        found.append(signature(pixels))
    return np.stack(found)
