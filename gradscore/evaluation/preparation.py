"""What all meta models of a run share: scores fitted on ordinary samples, and inputs on the scale of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..baselines import FittedBaselines, Ordinary
from ..columns import augmentations_of, logit_columns
from ..data import BANK, FIT
from ..errors import EvaluationError
from ..meta import SCORE_PREFIX, Inputs, Twice, samples_of
from ..store import RunFolder, read_head
from ..system import BoolArray, FloatArray, some
from .contents import common

MOST_LOST = 0.02
"""Accuracy that an augmentation may cost the classifier: one that costs more shows it other classes, as mirrored digits
do."""

LEAST_REFERENCE = 2
"""Samples of the bank that have to be left: a neighbour, and one to compare it with."""


class Tables:
    """The feature tables of a run, or some of their rows; the last one is kept, so that no two large ones are there.

    Args:
        run: a finished run folder.
        rows: (N,) masks of the rows of splits of which not all are read.
    """

    def __init__(self, run: RunFolder, rows: Mapping[str, BoolArray] | None = None) -> None:
        self._run, self._rows = run, rows or {}
        self._kept: dict[str, pd.DataFrame] = {}

    def read(self, split: str) -> pd.DataFrame:
        """The feature table of a split."""
        if split not in self._kept:
            self._kept.clear()
            self._kept[split] = self._run.read(split, rows=self._rows.get(split))
        return self._kept[split]

    def contents(self, split: str) -> pd.Series[str]:
        """The column `content_hash` of what `read` gives."""
        return self._run.read(split, ["content_hash"], rows=self._rows.get(split))["content_hash"]

    def places(self, split: str, mask: BoolArray) -> BoolArray:
        """Where the rows of a mask of the whole split are in what `read` gives; they must be among its rows."""
        return mask[self._rows[split]] if split in self._rows else mask


class Prepared:
    """The scaled inputs of the samples of a run, each split computed once.

    Args:
        inputs: what makes them.
        tables: the feature tables.
    """

    def __init__(self, inputs: Inputs, tables: Tables) -> None:
        self.inputs, self._tables = inputs, tables
        self._scaled: dict[str, FloatArray] = {}

    def scaled(self, split: str, mask: BoolArray) -> FloatArray:
        """The scaled inputs (n, D) of the n rows of a split that a mask (N,) chooses."""
        if split not in self._scaled:
            self._scaled[split] = self.inputs.scaled(self._tables.read(split))
        return self._scaled[split][self._tables.places(split, mask)]


@dataclass(frozen=True)
class Preparation:
    """The inputs of the meta models of a run, and what a reader should know of them."""

    inputs: Inputs
    notices: list[str]


def prepare(run: RunFolder, tables: Tables, *, left_out: Collection[str] = ()) -> Preparation:
    """Fits the scores of a run, and the scale of its inputs, on in-distribution samples that nothing else is done with.

    The scale is that of `in_dist.fit`; its samples that were computed twice show which inputs are rounding. Scores are
    fitted on the bank, if there is one, else on `in_dist.fit` as well; samples whose content is in a split that is
    reported or calibrates are left out of both, and no sample is its own neighbour. Classes are the labels, or
    predictions where there is none. Augmentations that cost more than `MOST_LOST` of the accuracy on `in_dist.fit` do
    not count.

    Args:
        run: a finished run folder.
        tables: its feature tables.
        left_out: content hashes of other samples that fit nothing.

    Raises:
        EvaluationError: too few samples, a bank of copies of samples that are reported or calibrate, or values that are
            not finite.
        StoreError: a damaged file.
    """
    splits = {info.name: info for info in run.splits()}
    used = [name for name, info in splits.items() if name not in (FIT, BANK) and not info.auxiliary]
    ours = pd.concat([tables.contents(name) for name in (FIT, BANK) if name in splits])
    contents = {name: common(ours, run.read(name, ["content_hash"])["content_hash"]) for name in used}
    elsewhere = set(left_out).union(*contents.values())
    fit = _without(tables.read(FIT), elsewhere)
    notices: list[str] = []
    augmentations = _augmentations(fit, notices)
    reference = _bank(run, tables.read(BANK), contents, elsewhere) if BANK in splits else fit
    samples = samples_of(reference)
    ordinary = Ordinary(
        samples=samples,
        classes=reference["label"].where(reference["label"] >= 0, reference["prediction"]).to_numpy(dtype=np.int64),
        head=None if samples.penultimate is None else read_head(run.path),
    )
    if BANK not in splits and samples.penultimate is not None:
        notices.append(
            f"no data.in_dist.bank: neighbours are looked for among the {len(reference)} samples of {FIT}; samples "
            "that trained the classifier are better ones"
        )
    scores = FittedBaselines.fit(ordinary, augmentations=augmentations)
    once, again = run.recomputed(FIT)
    inputs = Inputs.fit(fit, scores, twice=Twice(once, again, unit=run.rounding_unit))
    return Preparation(inputs, [*notices, *scores.notices, *rounding_in_words(inputs)])


def rounding_in_words(inputs: Inputs) -> list[str]:
    """Says how many inputs are rounding and were left out; nothing where none was."""
    if not inputs.left_out:
        return []
    count, all_of_them = len(inputs.left_out), len(inputs.left_out) + len(inputs.names)
    places = [place for place, _ in Counter(map(_place, inputs.left_out)).most_common()]
    said = f"{count} of {all_of_them} inputs enter no model: they hold little but rounding, mostly of {some(places, 3)}"
    return [said]


def _place(name: str) -> str:
    """The parameter or module of an input that is a statistic; else the input itself."""
    return name if name.startswith(SCORE_PREFIX) else name.rpartition("/")[0].split("/", 1)[-1]


def _bank(
    run: RunFolder, bank: pd.DataFrame, contents: Mapping[str, set[str]], elsewhere: Collection[str]
) -> pd.DataFrame:
    """The samples of the bank that are not elsewhere; `contents` are those that are reported or calibrate by split."""
    kept = _without(bank, elsewhere)
    if len(kept) >= LEAST_REFERENCE or len(bank) < LEAST_REFERENCE:
        return kept
    found = [name for name, values in contents.items() if not values.isdisjoint(bank["content_hash"])]
    number = f"all {len(bank)}" if kept.empty else f"{len(bank) - len(kept)} of {len(bank)}"
    raise EvaluationError(
        f"{run.path}: data.{BANK}: {number} samples are copies of samples that are reported or calibrate "
        f"({', '.join(found)}); give others"
    )


def _without(frame: pd.DataFrame, contents: Collection[str]) -> pd.DataFrame:
    return frame[~frame["content_hash"].isin(list(contents))]


def _augmentations(fit: pd.DataFrame, notices: list[str]) -> list[str]:
    """The augmentations that leave the classifier as good as it is, or its predictions where labels are missing."""
    truth = fit["label"].where(fit["label"] >= 0, fit["prediction"])
    accuracy = float((fit["prediction"] == truth).mean())
    kept = []
    for augmentation in augmentations_of(fit.columns):
        predictions = fit[logit_columns(fit.columns, augmentation=augmentation)].to_numpy().argmax(axis=1)
        seen = float((predictions == truth).mean())
        if seen >= accuracy - MOST_LOST:
            kept.append(augmentation)
        else:
            notices.append(
                f"augmentation {augmentation!r} does not count: the model is right on {seen:.3f} of {FIT} with it, "
                f"on {accuracy:.3f} without; remove it from features.augmentations"
            )
    return kept
