"""The samples of a run as fits see them: feature tables, and what makes inputs of them, each read and computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ..baselines import FittedBaselines, InDistribution
from ..columns import augmentations_of, logit_columns
from ..data import BANK, FIT
from ..errors import EvaluationError
from ..meta import BASELINE_PREFIX, MetaInputs, RecomputedRows, TrainingSet, judged_rows, outputs_of
from ..store import RunFolder, read_head
from ..system import BoolArray, FloatArray, IntArray, some
from .duplicates import common, numbered
from .protocols import MetaModelSpec
from .score_tables import refuse_not_finite

MOST_LOST = 0.02
"""Accuracy that an augmentation may cost the classifier: one that costs more shows it other classes, as mirrored digits
do."""

LEAST_REFERENCE = 2
"""Samples of the bank that have to be left: a neighbour, and one to compare it with."""


def in_dist_of(run: RunFolder, table: pd.DataFrame) -> InDistribution:
    """What baselines are fitted on: samples of a feature table, whose classes are labels, or predictions without."""
    outputs = outputs_of(table)
    return InDistribution(
        outputs=outputs,
        classes=table["label"].where(table["label"] >= 0, table["prediction"]).to_numpy(dtype=np.int64),
        head=None if outputs.penultimate is None else read_head(run.path),
    )


class Tables:
    """The feature tables of a run, or some of their rows; the last one is kept, so that no two large ones are there.

    Args:
        run: a finished run folder.
        rows: (N,) masks of the rows of splits of which not all are read.
    """

    def __init__(self, run: RunFolder, rows: Mapping[str, BoolArray]) -> None:
        self._run, self._rows = run, rows
        self._kept: dict[str, pd.DataFrame] = {}

    def read(self, split: str) -> pd.DataFrame:
        """The feature table of a split."""
        if split not in self._kept:
            self._kept.clear()
            refuse_not_finite(self._run, split)
            self._kept[split] = self._run.read(split, rows=self._rows.get(split))
        return self._kept[split]

    @property
    def that_fit(self) -> list[str]:
        """Names of the splits whose samples may fit models."""
        return [info.name for info in self._run.splits() if info.name == FIT or info.name.startswith("ood.")]

    def contents(self, split: str) -> pd.Series[str]:
        """The column `content_hash` of what `read` gives."""
        return self._run.read(split, ["content_hash"], rows=self._rows.get(split))["content_hash"]

    def places(self, split: str, mask: BoolArray) -> BoolArray:
        """Where the rows of a mask of the whole split are in what `read` gives; they must be among its rows."""
        return mask[self._rows[split]] if split in self._rows else mask


@dataclass(frozen=True, kw_only=True)
class SomeRows:
    """Some samples, of which models are fitted anew to choose scores.

    Attributes:
        table: their feature table.
        baselines: their baselines, as those of the whole fit give them.
        gradients: (N, D) their inputs that come from gradients, before they are scaled.
    """

    table: pd.DataFrame
    baselines: pd.DataFrame
    gradients: FloatArray

    def __getitem__(self, rows: BoolArray | IntArray) -> SomeRows:
        """Those of a mask, or at these places."""
        return SomeRows(
            table=self.table.iloc[rows], baselines=self.baselines.iloc[rows], gradients=self.gradients[rows]
        )

    @classmethod
    def joined(cls, parts: Sequence[SomeRows]) -> SomeRows:
        """All samples of several."""
        return cls(
            table=pd.concat([each.table for each in parts], ignore_index=True),
            baselines=pd.concat([each.baselines for each in parts], ignore_index=True),
            gradients=np.concatenate([each.gradients for each in parts]),
        )


class Prepared:
    """The scaled inputs of the samples of a run, each split read and computed once.

    Args:
        inputs: what makes them.
        tables: the feature tables.
        known: baselines of splits that are known already.
        twice: samples of `in_dist.fit` that were computed twice, with their baselines.
    """

    def __init__(
        self, inputs: MetaInputs, tables: Tables, known: Mapping[str, pd.DataFrame], twice: RecomputedRows
    ) -> None:
        self.inputs, self.twice, self._tables, self._known = inputs, twice, tables, known
        self._scaled: dict[str, FloatArray] = {}
        self._content: dict[str, pd.Series[str]] = {}
        self._some: dict[str, SomeRows] = {}
        self._judged: dict[str, BoolArray] = {}

    @cached_property
    def _total(self) -> int:
        return sum(len(self._contents(name)) for name in self._tables.that_fit)

    def rows(self, spec: MetaModelSpec) -> TrainingSet:
        """The samples that fit the model of a spec."""
        masks = {split: mask for split, mask in spec.fit.items() if mask.any()}
        return TrainingSet(
            scaled=np.concatenate([self._scaled_rows(split, mask) for split, mask in masks.items()]),
            target=np.concatenate([spec.positive[split][mask] for split, mask in masks.items()]),
            sets=np.repeat(list(masks), [int(mask.sum()) for mask in masks.values()]),
            content=numbered(self._contents(split)[self._tables.places(split, mask)] for split, mask in masks.items()),
        )

    def some_rows(self, spec: MetaModelSpec) -> tuple[SomeRows, TrainingSet]:
        """Some samples of the fit of a spec and their targets: of many, some of each split."""
        parts, targets, sets = [], [], []
        for split in (split for split, mask in spec.fit.items() if mask.any()):
            self._prepare(split)
            chosen, positive = (
                self._tables.places(split, each)[self._judged[split]]
                for each in (spec.fit[split], spec.positive[split])
            )
            parts.append(self._some[split][chosen])
            targets.append(positive[chosen])
            sets.append(np.full(int(chosen.sum()), split))
        target = np.concatenate(targets)
        content = numbered(each.table["content_hash"] for each in parts)
        rows = TrainingSet(scaled=np.empty((len(target), 0)), target=target, sets=np.concatenate(sets), content=content)
        return SomeRows.joined(parts), rows

    def _contents(self, split: str) -> pd.Series[str]:
        if split not in self._content:
            self._content[split] = self._tables.contents(split)
        return self._content[split]

    def _scaled_rows(self, split: str, mask: BoolArray) -> FloatArray:
        self._prepare(split)
        rows = self._tables.places(split, mask)
        return self._scaled[split] if rows.all() else self._scaled[split][rows]

    def _prepare(self, split: str) -> None:
        if split in self._scaled:
            return
        table = self._tables.read(split)
        baselines = self._known[split] if split in self._known else pd.DataFrame(self.inputs.baseline_scores(table))
        self._scaled[split] = self.inputs.scaled(table, baselines)
        judged = self._judged[split] = judged_rows(len(table), self._total)
        some = table.loc[judged].copy()
        gradients = self.inputs.gradient_inputs(some)
        self._some[split] = SomeRows(table=some, baselines=baselines.loc[judged], gradients=gradients)


def prepare(run: RunFolder, tables: Tables) -> tuple[Prepared, list[str]]:
    """Fits the baselines of a run, and the scale of its inputs, on in-distribution samples that have no other use.

    The scale is that of `in_dist.fit`; its samples that were computed twice show which inputs are rounding. Baselines
    are fitted on the bank, if there is one, else on `in_dist.fit` as well; samples whose content is in a split that is
    reported or calibrates are left out of both, and no sample is its own neighbour. Classes are the labels, or
    predictions where there is none. Augmentations that cost more than `MOST_LOST` of the accuracy on `in_dist.fit` do
    not count.

    Args:
        run: a finished run folder.
        tables: its feature tables.

    Returns:
        What makes the inputs of its meta models, and what a reader should know of them.

    Raises:
        EvaluationError: too few samples, copies of samples that are reported or calibrate alone, in `in_dist.fit` or in
            the bank, or values that are not finite.
        StoreError: a damaged file.
    """
    splits = {info.name: info for info in run.splits()}
    used = [name for name, info in splits.items() if name not in (FIT, BANK) and not info.auxiliary]
    ours = pd.concat([tables.contents(name) for name in (FIT, BANK) if name in splits])
    contents = {name: set(common(ours, run.read(name, ["content_hash"])["content_hash"]).to_pylist()) for name in used}
    elsewhere = set[str]().union(*contents.values())
    whole = tables.read(FIT)
    fit = _without(whole, elsewhere)
    if fit.empty and len(whole):
        copied = [name for name, values in contents.items() if not values.isdisjoint(whole["content_hash"])]
        raise EvaluationError(
            f"{run.path}: all {len(whole)} samples of {FIT} are copies of samples that are reported or calibrate "
            f"({', '.join(copied)}), which fit nothing; give others, and extract again"
        )
    notices: list[str] = []
    augmentations = _augmentations(fit, notices)
    reference = fit
    if BANK in splits:
        bank = tables.read(BANK)
        reference = _without(bank, elsewhere)
        if len(reference) < LEAST_REFERENCE <= len(bank):
            found = [name for name, values in contents.items() if not values.isdisjoint(bank["content_hash"])]
            number = f"all {len(bank)}" if reference.empty else f"{len(bank) - len(reference)} of {len(bank)}"
            raise EvaluationError(
                f"{run.path}: data.{BANK}: {number} samples are copies of samples that are reported or calibrate "
                f"({', '.join(found)}); give others"
            )
    in_dist = in_dist_of(run, reference)
    unseen = in_dist_of(run, fit) if BANK in splits else None
    baselines = FittedBaselines.fit(in_dist, unseen=unseen, augmentations=augmentations, on_others=BANK in splits)
    known = pd.DataFrame(baselines.scores(outputs_of(whole)))
    once, again = run.recomputed(FIT)
    twice = RecomputedRows(once, again, unit=run.rounding_unit)
    twice = replace(twice, baselines=[baselines.scores(outputs_of(version)) for version in twice.versions])
    inputs = MetaInputs.fit(fit, baselines, twice=twice, table=known.loc[fit.index])
    return Prepared(inputs, tables, {FIT: known}, twice), [*notices, *baselines.notices, *rounding_notices(inputs)]


def rounding_notices(inputs: MetaInputs) -> list[str]:
    """Says how many inputs are rounding and were left out, and of which parameters; nothing where none was."""
    if not inputs.left_out:
        return []
    count, all_of_them = len(inputs.left_out), len(inputs.left_out) + len(inputs.names)
    places = Counter(
        name if name.startswith(BASELINE_PREFIX) else name.rpartition("/")[0].split("/", 1)[-1]
        for name in inputs.left_out
    )
    mostly = some([place for place, _ in places.most_common()], 3)
    return [f"{count} of {all_of_them} inputs enter no model: they hold little but rounding, mostly of {mostly}"]


def _augmentations(fit: pd.DataFrame, notices: list[str]) -> list[str]:
    """Those that leave the classifier as good as it is, or its predictions as they are where labels are missing."""
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
                f"augmentation {augmentation!r} is left out: with it the accuracy on {FIT} is {seen:.3f}, without "
                f"{accuracy:.3f}; remove it from features.augmentations"
            )
    return kept


def _without(frame: pd.DataFrame, contents: Collection[str]) -> pd.DataFrame:
    return frame[~frame["content_hash"].isin(list(contents))]
