"""Which samples fit a meta model and which are reported, so that nothing reported was ever fitted on.

Task `misclassification`: `in_dist.fit` fits, `in_dist.test` is reported; no OOD sample takes part (`in_dist_only`).
Task `ood`, always against `in_dist.test`:

- `known`: every OOD set is split in halves by content hash; one half fits, the other is reported.
- `leave_one_dataset_out`: for every OOD set a model of its own that was fitted on the others.
- `auxiliary`: fitted on auxiliary sets alone, as one has to who has no OOD samples; every OOD set is reported.
- `in_dist_only`: no OOD sample is fitted on, only correctly classified ones of `in_dist.fit`.

Without an OOD set to report on, the models of the last two are fitted all the same, for use: they report nothing.
Without `in_dist.test` nothing is reported at all.

Auxiliary sets join the fits of the first two and are never reported; a bank neither fits nor is reported. Covariate-
shifted sets are reported by themselves, as task `shifted`, by the model of misclassification. Samples whose content is
also among those reported or those that calibrate are removed from the fit and counted, and so are OOD samples whose
content is in-distribution as well. OOD samples whose content is in `in_dist.test` are not reported, and of copies in an
OOD set one is.

Of large data sets samples drawn at random fit, so that memory and time do not grow with the data: a logistic regression
on a few hundred axes learns nothing more from a million samples than from a hundred thousand. All are reported.

Settings that decide which samples fit (such as `auxiliary`) can change after a fit. A fitted model therefore
carries the identity of its fit in its notes, and whatever uses it compares that with what would be fitted now, so that
it never scores samples it was fitted on (`FitIdentities`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..config import Protocol
from ..data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from ..errors import EvaluationError
from ..meta import MetaInputs, MetaModel, balanced_weights, drawn
from ..notices import Notice
from ..store import RunFolder, differences, package_versions
from ..system import BoolArray, Influence, settings_of, sha256, some
from .duplicates import (
    Copies,
    Numbered,
    Overlap,
    are_in,
    copied_set_notices,
    find_copies,
    find_overlaps,
    shared_set_notices,
)

Task = Literal["misclassification", "ood", "shifted"]
RowMasks = Mapping[str, BoolArray]

MOST_SAMPLES = 100_000
"""Samples that a meta model is fitted on at most: half of them of `in_dist.fit`, half of all OOD sets together.

Also the samples of a bank that count, at most. With 100 features a fit takes 1.3 GB.
"""


EXPECTING = ("known", "auxiliary")
"""Protocols whose model is used for everything, so that OOD sets which fit it are of kinds that are expected."""

FITTED_ON = "fitted_on"
"""The note of a meta model that holds the identity of its fit."""

FITTED_WITH = "fitted_with"
"""The note that holds the versions of packages a meta model was fitted with."""


@dataclass(frozen=True)
class SplitContent:
    """Content of a split, as far as planning needs it.

    Attributes:
        info: the split.
        content_hash: (N,) text.
        correct: (N,) whether the prediction is right; missing without a label.
        synthetic: whether it is made of in-distribution samples.
    """

    info: SplitInfo
    content_hash: pd.Series[str]
    correct: pd.Series[bool]
    synthetic: bool = False


@dataclass(frozen=True, kw_only=True)
class MetaModelSpec:
    """Specification of a meta model: what fits it and what it is reported on.

    Attributes:
        task: `misclassification` or `ood`.
        protocol: see the module.
        name: the OOD set the model is for, or `all`.
        fit: (N,) mask of the rows that fit, by split.
        positive: (N,) mask of the rows that are wrong or OOD, by split.
        reported: the data sets reported, and of each the rows by split.
        duplicates: rows removed from the fit because their content is reported, calibrates, or is on both sides.
        shifted: the covariate-shifted sets reported, as `reported`.
        expected: splits of OOD sets that fit, and whose kinds are expected: those of the user, which none made.
    """

    task: Task
    protocol: Protocol
    name: str
    fit: RowMasks
    positive: RowMasks
    reported: Mapping[str, RowMasks]
    duplicates: int
    shifted: Mapping[str, RowMasks] = field(default_factory=dict)
    expected: Sequence[str] = ()

    @property
    def has_two_classes(self) -> bool:
        """Whether the model is fitted on positives and negatives; else it knows in-distribution samples alone."""
        return self.task != "ood" or self.protocol != "in_dist_only"

    @property
    def label(self) -> str:
        """Name of the model in paths and messages: `<task>/<protocol>/<name>`."""
        return f"{self.task}/{self.protocol}/{self.name}"


@dataclass(frozen=True)
class MetaModelSpecs:
    """The meta models of a run.

    Attributes:
        specs: all of them.
        skipped: a sentence for each that cannot be had.
        overlaps: the splits with images in common.
        copies: the reported splits that hold images several times.
        copied_sets: cautions: OOD sets with in-distribution samples, and those with samples in common.
        common: which samples of `in_dist.fit` and auxiliary sets all OOD models share, whichever protocols are wanted;
            None without such.
    """

    specs: list[MetaModelSpec]
    skipped: list[str]
    overlaps: list[Overlap]
    copies: list[Copies]
    copied_sets: list[Notice]
    common: MetaModelSpec | None


def make_specs(splits: Sequence[SplitContent], *, protocols: Collection[Protocol]) -> MetaModelSpecs:
    """Plans the meta models of a run.

    Args:
        splits: all splits of the run, `in_dist.fit` among them.
        protocols: the protocols of the task `ood` wanted; misclassification is always planned.

    Returns:
        The specs, and why others are missing.
    """
    return _SpecMaker({split.info.name: split for split in splits}).specs(protocols)


def first_half(content_hash: pd.Series[str]) -> BoolArray:
    """Mask (N,) bool of the half of the samples that fits, by content alone, so copies stay together."""
    digests = (hashlib.sha256(f"0:{value}".encode()).digest() for value in content_hash)
    return np.array([digest[0] % 2 == 0 for digest in digests], dtype=bool)


def rows_that_fit(sizes: Mapping[str, int]) -> dict[str, BoolArray]:
    """The rows that may fit, of splits that have more of them than fit.

    Args:
        sizes: the number of samples of each split.

    Returns:
        (N,) masks of rows drawn at random by split; all rows of splits that are not named may fit.
    """
    ood = [name for name in sizes if name.startswith("ood.")]
    most = {BANK: MOST_SAMPLES}
    if sizes.get(FIT, 0) + sum(sizes[name] for name in ood) > MOST_SAMPLES:
        most |= {FIT: MOST_SAMPLES // 2}
        most |= dict.fromkeys(ood, largest_share([sizes[name] for name in ood], total=MOST_SAMPLES // 2))
    return {name: drawn(sizes[name], most[name]) for name in sizes if sizes[name] > most.get(name, sizes[name])}


def largest_share(sizes: list[int], *, total: int) -> int:
    """The largest number of samples to take of each set at most, so that all sets together give at most `total`.

    Example:
        >>> largest_share([10, 100, 300], total=210)
        100
    """
    left, share = total, total
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return share


def subsampling_notices(sizes: Mapping[str, int]) -> list[str]:
    """A sentence that says which splits were subsampled, if any."""
    kept = [f"{int(mask.sum())} of {len(mask)} of {name}" for name, mask in rows_that_fit(sizes).items()]
    if not kept:
        return []
    return [f"fitted on samples drawn at random, at most {MOST_SAMPLES} in all: {', '.join(kept)}; all are reported"]


class _SpecMaker:
    def __init__(self, splits: Mapping[str, SplitContent]) -> None:
        self._splits = splits
        self._targets = [split for split in splits.values() if split.info.is_reported_ood]
        self._auxiliary = [split for split in splits.values() if split.info.auxiliary]
        self._shifted = {name: split.info for name, split in splits.items() if split.info.kind == "shifted"}
        sizes = {name: len(split.content_hash) for name, split in splits.items()}
        self._may_fit = rows_that_fit(sizes)
        self._every = {name: np.ones(size, dtype=bool) for name, size in sizes.items()}
        self._counts = {
            each.info.name: ~are_in(each.content_hash, splits[TEST].content_hash)
            & ~each.content_hash.duplicated().to_numpy(dtype=bool)
            for each in self._targets
        }
        self._is_ood = {name: np.full(size, splits[name].info.kind == "ood") for name, size in sizes.items()}
        # No more contents than may fit are told apart, however many are reported.
        fitting = [split for split in splits.values() if split.info.kind in (FIT, "ood")]
        known = Numbered([split.content_hash[self._may_fit.get(split.info.name, slice(None))] for split in fitting])
        self._told_apart = known
        self._numbers = {name: known.of(split.content_hash) for name, split in splits.items()}
        self._in_dist = self._content(split for split in splits.values() if split.info.kind not in ("ood", "shifted"))
        # Where no OOD set is reported, `in_dist.test` is not either by OOD models, but may calibrate them.
        never = (CALIBRATION, "shifted") if self._targets else (CALIBRATION, "shifted", TEST)
        self._never = self._content(split for split in splits.values() if split.info.kind in never)

    def specs(self, protocols: Collection[Protocol]) -> MetaModelSpecs:
        common = self._of_auxiliary()
        content = {split.info: split.content_hash for split in self._splits.values()}
        found = [*self._misclassification(), *self._ood(protocols)]
        return MetaModelSpecs(
            specs=[spec for spec in found if not isinstance(spec, str)],
            skipped=[spec for spec in found if isinstance(spec, str)],
            overlaps=find_overlaps(content),
            copies=find_copies(content),
            copied_sets=[*copied_set_notices(content), *shared_set_notices(content)],
            common=None if isinstance(common, str) else common,
        )

    def _misclassification(self) -> Iterator[MetaModelSpec | str]:
        tests = [name for name in (TEST,) if name in self._splits]
        names = (FIT, *tests, *self._shifted)
        known = {name: self._splits[name].correct.notna().to_numpy(dtype=bool) for name in names}
        wrong = {name: known[name] & ~self._correct(name) for name in names}
        reported = {name: {name: known[name]} for name in tests}
        spec = self._spec("misclassification", "in_dist_only", "all", {FIT: known[FIT]}, reported, positive=wrong)
        shifted = {info.dataset_name: {name: known[name]} for name, info in self._shifted.items() if known[name].any()}
        spec = replace(spec, shifted=shifted)
        counts = {"misclassified": spec.fit[FIT] & wrong[FIT], "correctly classified": spec.fit[FIT] & ~wrong[FIT]}
        lacking = [what for what, rows in counts.items() if not rows.any()]
        yield f"{spec.label}: no {lacking[0]} sample among those that fit ({FIT})" if lacking else spec

    def _ood(self, protocols: Collection[Protocol]) -> Iterator[MetaModelSpec | str]:
        if not self._targets:
            yield "ood: no OOD set to report on (data.ood has none that is not auxiliary)"
        elif "known" in protocols:
            yield self._known()
        if "leave_one_dataset_out" in protocols:
            yield from (self._leave_one_dataset_out(split) for split in self._targets)
        if "auxiliary" in protocols:
            yield self._of_auxiliary()
        if "in_dist_only" in protocols:
            yield self._in_dist_only()

    def _known(self) -> MetaModelSpec | str:
        halves = {each.info.name: first_half(each.content_hash) for each in self._targets}
        fit = {
            FIT: self._every[FIT],
            **halves,
            **{each.info.name: self._every[each.info.name] for each in self._auxiliary},
        }
        reported = {each.info.dataset_name: self._reported(each, ~halves[each.info.name]) for each in self._targets}
        return self._with_both_classes(self._spec("ood", "known", "all", fit, reported))

    def _leave_one_dataset_out(self, target: SplitContent) -> MetaModelSpec | str:
        name = target.info.dataset_name
        others = [each.info.name for each in [*self._targets, *self._auxiliary] if each is not target]
        if not others:
            return (
                f"ood/leave_one_dataset_out/{name}: no other OOD set to fit on; add one to data.ood, auxiliary or not"
            )
        fit = {split: self._every[split] for split in [FIT, *others]}
        return self._with_both_classes(
            self._spec("ood", "leave_one_dataset_out", name, fit, {name: self._reported(target)})
        )

    def _of_auxiliary(self) -> MetaModelSpec | str:
        if not self._auxiliary:
            return (
                "ood/auxiliary/all: no auxiliary OOD set to fit on; add one to data.ood, such as synthetic:mixup for "
                "images, synthetic:swapped_fields for vectors, tokens and text"
            )
        fit = {split: self._every[split] for split in [FIT, *(each.info.name for each in self._auxiliary)]}
        reported = {each.info.dataset_name: self._reported(each) for each in self._targets}
        return self._with_both_classes(self._spec("ood", "auxiliary", "all", fit, reported))

    def _in_dist_only(self) -> MetaModelSpec | str:
        reported = {each.info.dataset_name: self._reported(each) for each in self._targets}
        spec = self._spec("ood", "in_dist_only", "all", {FIT: self._correct(FIT)}, reported)
        left = int(spec.fit[FIT].sum())
        if left < 2:
            return f"{spec.label}: wanted at least 2 correctly classified samples of {FIT} to fit on, got {left}"
        return spec

    def _spec(
        self,
        task: Task,
        protocol: Protocol,
        name: str,
        fit: RowMasks,
        reported: Mapping[str, RowMasks],
        *,
        positive: RowMasks | None = None,
    ) -> MetaModelSpec:
        numbers = self._numbers
        contents = self._never | self._told_apart.mask(
            numbers[split][mask] for rows in reported.values() for split, mask in rows.items()
        )
        of_ood = contents | self._in_dist
        chosen = {split: mask & self._may_fit.get(split, True) for split, mask in fit.items()}
        copies = {
            split: mask & (of_ood if self._splits[split].info.kind == "ood" else contents)[numbers[split]]
            for split, mask in chosen.items()
        }
        left = {split: mask & ~copies[split] for split, mask in chosen.items()}
        own = [split for split, mask in left.items() if self._is_ood[split].any() and mask.any()]
        return MetaModelSpec(
            task=task,
            protocol=protocol,
            name=name,
            fit=left,
            positive=self._is_ood if positive is None else positive,
            reported=reported,
            duplicates=sum(int(mask.sum()) for mask in copies.values()),
            expected=[split for split in own if not self._splits[split].synthetic] if protocol in EXPECTING else (),
        )

    def _with_both_classes(self, spec: MetaModelSpec) -> MetaModelSpec | str:
        in_dist = int(spec.fit[FIT].sum())
        ood = sum(int(mask.sum()) for mask in spec.fit.values()) - in_dist
        if in_dist and ood:
            return spec
        return (
            f"{spec.label}: {in_dist} in-distribution and {ood} OOD samples to fit on "
            f"({spec.duplicates} were left out as copies of other samples); both kinds are needed"
        )

    def _correct(self, split: str) -> BoolArray:
        return self._splits[split].correct.fillna(False).to_numpy(dtype=bool)

    def _reported(self, target: SplitContent, rows: BoolArray | Literal[True] = True) -> RowMasks:
        """Rows of an OOD set, one of each content and none that is in the test split, beside the test samples."""
        return {TEST: self._every[TEST], target.info.name: rows & self._counts[target.info.name]}

    def _content(self, splits: Iterable[SplitContent]) -> BoolArray:
        """Mask of the contents that some splits hold."""
        return self._told_apart.mask(self._numbers[split.info.name] for split in splits)


class FitIdentities:
    """The identities of the fits of a run; tables are read and hashed once.

    Args:
        run: a finished run folder.
        found: the meta models that its configuration asks for.
    """

    def __init__(self, run: RunFolder, found: MetaModelSpecs) -> None:
        self._run = run
        self._specs = {spec.label: spec for spec in found.specs}
        self._common = found.common
        self._all = [*found.specs, *([found.common] if found.common is not None else [])]
        self._rows: dict[str, tuple[BoolArray, list[str]]] = {}  # which rows fit any model, and these as text
        self._tables: dict[str, str] = {}
        self._shared = [info.name for info in run.splits() if info.name in (FIT, BANK)]

    def of(self, spec: MetaModelSpec) -> dict[str, Any]:
        """The identity of a spec's fit: name; hashes of its samples, their kinds, weights and features; settings."""
        splits = [split for split, mask in spec.fit.items() if mask.any()]
        target = np.concatenate([spec.positive[split][spec.fit[split]] for split in splits])
        identity: dict[str, Any] = {
            "label": spec.label,
            "samples": {split: self._samples(split, spec) for split in splits},
            "positives": sha256(target.tobytes()),
            "expected": list(spec.expected),
            "features": {split: self._table(split) for split in dict.fromkeys([*self._shared, *splits])},
        }
        if spec.has_two_classes:
            sets = np.concatenate([[split] * int(spec.fit[split].sum()) for split in splits])
            identity["weights"] = sha256(balanced_weights(target, sets).tobytes())
            identity["meta"] = settings_of(self._run.config.meta, Influence.MODELS)
        if self._common is not None:
            # Axes and penalties come of these samples, and what a model of `in_dist_only` is judged by.
            shared = [split for split, mask in self._common.fit.items() if mask.any()]
            identity["common"] = {split: self._samples(split, self._common) for split in shared}
        return identity

    def noted(self, model: MetaModel, spec: MetaModelSpec) -> MetaModel:
        """The model of a spec with the identity of its fit in its notes."""
        return replace(model, notes={**model.notes, FITTED_ON: self.of(spec), FITTED_WITH: package_versions()})

    def is_current(self, label: str, model: MetaModel) -> bool:
        """Whether the same versions of packages would fit the model to the same samples with the same settings."""
        try:
            self.check(label, model)
        except EvaluationError:
            return False
        return "choice" in model.notes and model.notes.get(FITTED_WITH) == package_versions()

    def asks_for(self, label: str) -> bool:
        """Whether the configuration asks for a model of this name, `<task>/<protocol>/<name>`."""
        return label in self._specs

    def load(self, label: str, inputs: MetaInputs) -> MetaModel:
        """Reads a model of the run that was fitted on what would be fitted on now; see `check`.

        Args:
            label: `<task>/<protocol>/<name>`.
            inputs: what makes the inputs of the run's models.

        Raises:
            EvaluationError: it was fitted on other samples or with other settings; the message says what differs.
            StoreError: a file is missing or damaged.
        """
        model = MetaModel.load(self._run.meta_path / label, inputs)
        self.check(label, model)
        return model

    def check(self, label: str, model: MetaModel) -> None:
        """Makes sure that a model of the run was fitted on what would be fitted on now.

        Raises:
            EvaluationError: it was fitted on other samples or with other settings; the message says what differs.
        """
        folder = self._run.meta_path / label
        before = model.notes.get(FITTED_ON, {})
        found = differences(before, json.loads(json.dumps(self.of(self._specs[label]))))
        if found:
            raise EvaluationError(
                f"{folder}: this meta model was fitted with other samples, features or settings than the run has now "
                f"({some(found, 3)}), so it may have seen what is reported; run "
                f"`gradscore fit-meta {quote(str(self._run.path))}` again, with the settings that are given here by "
                "--set, if any"
            )

    def _samples(self, split: str, spec: MetaModelSpec) -> str:
        if split not in self._rows:
            fits = np.logical_or.reduce([each.fit[split] for each in self._all if split in each.fit])
            frame = self._run.read(split, columns=["sample_id", "content_hash"], rows=fits)
            rows = [json.dumps(row) for row in frame.itertuples(index=False, name=None)]
            self._rows[split] = fits, rows
        fits, rows = self._rows[split]
        chosen = (row for row, is_chosen in zip(rows, spec.fit[split][fits], strict=True) if is_chosen)
        return sha256("\n".join(chosen).encode())

    def _table(self, split: str) -> str:
        if split not in self._tables:
            self._tables[split] = self._run.table_sha256(split)
        return self._tables[split]
