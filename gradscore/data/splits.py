"""The section `data` of a configuration, and the splits that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..notices import Notice
from ..system import (
    Arguments,
    Elsewhere,
    InFeatures,
    InReport,
    NotNegative,
    Positive,
    Section,
    Seed,
    Slug,
    anchored,
    as_address,
    as_written,
    closest,
    is_address,
    without_repeats,
)
from .sources import kind_of
from .sources.raw_samples import Raw, SampleSource, is_image
from .sources.synthetic import SYNTHETIC, auto_kinds, mostly_copies

MOST_SYNTHETIC = 1000
"""Samples of a set that is made without being asked for in `data.ood`; more of them change no fit by much."""

LEAST_SETS = 3
"""With at least so many OOD sets in a fit, penalties are judged by sets that a fit has not seen."""

HOLDOUT = 0.25
"""Share of the samples to fit on that is held out, at random, to set thresholds where no other samples do."""


def anchored_source(source: str, info: ValidationInfo) -> str:
    """A data source with the path of a file or folder made absolute."""
    name, _, rest = source.partition(":")
    as_written(rest)
    kind = None if not rest or is_address(rest) else kind_of(source)
    if kind is None:
        return source
    file, _, function = rest.rpartition(":")
    if kind.is_code and file.endswith(".py"):
        return f"{name}:{anchored(Path(file), info)}:{function}"
    return f"{name}:{anchored(Path(rest), info)}" if kind.is_path else source


def _names_or_file(names: list[str] | Path | None, info: ValidationInfo) -> list[str] | Path | None:
    return anchored(names, info) if isinstance(names, Path) else names


ClassName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]
"""Folders may be called by numbers, which YAML reads as such."""


def _number_or_name(label: Any) -> Any:
    if isinstance(label, bool | float):
        raise ValueError(f"wanted a number or a name, got {label!r}; write quotes around a name that looks like this")
    return label


def _in_int64(label: int | str) -> int | str:
    if isinstance(label, int) and not -(2**63) <= label < 2**63:
        raise ValueError(f"{label} is too large for a class; labels are counted from 0")
    return label


Label = Annotated[int | str, BeforeValidator(_number_or_name), AfterValidator(_in_int64)]
"""A label of a source, or a class of the network: its number, or its name."""


def _names_of_kinds(kinds: Any) -> Any:
    if all(isinstance(kind, str) for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])):
        return kinds
    raise ValueError(
        f"wanted 'auto' or a list of kinds ({', '.join(SYNTHETIC)}); a set of your own is one of data.ood with "
        "auxiliary: true"
    )


def _synthetic_kinds(kinds: str | list[str]) -> str | list[str]:
    if kinds == "auto":
        return kinds
    if isinstance(kinds, str):
        raise ValueError(f"wanted 'auto' or a list of kinds, got {kinds!r}")
    for kind in kinds:
        if kind not in SYNTHETIC:
            raise ValueError(f"no synthetic set {kind!r}; {closest(kind, SYNTHETIC)}")
    return without_repeats(kinds)


SyntheticKinds = Annotated[str | list[str], BeforeValidator(_names_of_kinds), AfterValidator(_synthetic_kinds)]

ClassNameList = Annotated[list[ClassName] | Path | None, AfterValidator(_names_or_file)]

FILL_IN = "fill-in"
"""Stands in a first configuration where something could not be found out; no setting accepts it."""


DataSource = Annotated[str, AfterValidator(anchored_source)]


class SelectConfig(Section):
    """Which samples of a source: by class, content hash and lot, then `start` to `stop`, then `count` at random."""

    classes: InFeatures[list[Label] | None] = None
    """Only samples with these labels, as the source counts them or by name, before `label_map`."""
    count: InFeatures[Positive | None] = None
    """So many of the others, drawn at random with `seed`."""
    start: InFeatures[NotNegative | None] = None
    """First position, among those that `classes`, `hash` and `lot` leave."""
    stop: InFeatures[NotNegative | None] = None
    """Position after the last one."""
    hash: InFeatures[tuple[float, float] | None] = None
    """Only samples whose content has a hash in [low, high) of 0 to 1: [0, 0.5] and [0.5, 1] are halves without a sample
    in common."""
    lot: InFeatures[tuple[float, float] | None] = None
    """A random part: samples whose random number, by `seed` and position, is in [low, high) of 0 to 1. [0, 0.75] and
    [0.75, 1] are three quarters and one; copies of a sample may be in both."""
    seed: InFeatures[Seed] = 0
    """Of the random choices of `count` and `lot`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, share in (("hash", self.hash), ("lot", self.lot)):
            if share is not None and not 0 <= share[0] < share[1] <= 1:
                raise ValueError(f"{name} must be an interval [low, high) with 0 <= low < high <= 1, got {list(share)}")
        if self.stop is not None and self.stop <= (self.start or 0):
            raise ValueError(f"stop ({self.stop}) must be greater than start ({self.start or 0})")
        return self


class DatasetConfig(Section):
    """A set of samples: where they come from, which of them, and how its labels map to the model's classes.

    Labels and classes are numbers, or names where there are any.
    """

    source: InFeatures[DataSource]
    """Where the samples come from ([all kinds](data.md))."""
    arguments: InFeatures[Arguments] = {}
    """Settings of the source."""
    select: SelectConfig = SelectConfig()
    """Which samples of the source."""
    label_map: InFeatures[dict[Label, Label] | None] = None
    """Class of the network for every label of the source, numbers or names: {0: 1, 1: 0}."""

    @field_validator("arguments")
    @classmethod
    def _anchor_root(cls, arguments: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        root = as_written(arguments.get("root"))
        return {**arguments, "root": as_address(anchored(Path(root), info))} if isinstance(root, str) else arguments


class OodConfig(DatasetConfig):
    """A named set of out-of-distribution samples; an `auxiliary` one joins the fits and is left out of the headline."""

    name: InReport[Slug]
    """What the set is called in tables and reports."""
    group: InReport[Slug | None] = None
    """Also reported with others of the group: `near` or `far`, say."""
    auxiliary: InReport[bool] = False
    """Joins the fits and is not reported."""

    @field_validator("group")
    @classmethod
    def _not_of_all(cls, group: str | None) -> str | None:
        if group == "all":
            raise ValueError("'all' are the sets of all groups together: give another name, such as near or far")
        return group

    @field_validator("source")
    @classmethod
    def _of_other_classes(cls, source: str) -> str:
        kind = kind_of(source)
        if kind is not None and kind.same_classes:
            raise ValueError(f"{source} holds the classes of the model, so it is not OOD: name it in data.shifted")
        return source


class ShiftedConfig(DatasetConfig):
    """A named set of in-distribution classes under covariate shift, labelled; reported by itself, never fitted on.

    `corrupted:<kind>` makes one of the in-distribution test samples (`arguments: {severity: 3}`).
    """

    name: InReport[Slug]
    """What the set is called in tables and reports."""


class InDistConfig(Section):
    """The in-distribution samples to fit on, to report on, to set thresholds with, and to compare others with.

    Without `calibration`, thresholds are set with the `test` samples, which then say nothing about the thresholds.
    `test` must be given; an explicit null means that nothing is reported: such a run is fitted and bundled alone.
    """

    fit: DatasetConfig
    """Labelled samples to fit on; must not have trained the network."""
    test: DatasetConfig | None
    """Labelled samples to report on; none is among `fit`. Null reports nothing."""
    calibration: DatasetConfig | None = None
    """Labelled samples to set thresholds with; by default those of `test`."""
    bank: DatasetConfig | None = None
    """Samples like those that trained the network, which others are compared with."""


class DataConfig(Section):
    """All sets of samples of a run."""

    in_dist: InDistConfig
    """Samples of the network's classes."""
    class_names: InReport[ClassNameList] = None
    """Names of the classes in the order of the outputs: a list, or a file with one on each line (or JSON)."""
    ood: list[OodConfig] = []
    """Samples that are none of these classes."""
    auxiliary: Elsewhere[SyntheticKinds] = "auto"
    """Auxiliary OOD sets that are made of up to 1,000 samples of in_dist.fit each. `auto` makes `rotate90`, `mixup`,
    `cutmix`, `jigsaw` and `permuted_pixels` of images; where no set of `ood` is auxiliary, the kinds of `synthetic:`
    for numbers, tokens or text, except kinds whose samples would mostly be exact copies. `[]` makes none."""
    shifted: list[ShiftedConfig] = []
    """Labelled samples of these classes that look different; reported by themselves."""

    @field_validator("ood", "shifted")
    @classmethod
    def _distinct(cls, sets: list[Any]) -> list[Any]:
        without_repeats([entry.name for entry in sets])
        return sets

    @model_validator(mode="after")
    def _auxiliary_beside_ood(self) -> Self:
        without_repeats(
            [each.name for each in self.ood] + [each for each in self.auxiliary if self.auxiliary != "auto"]
        )
        return self

    @model_validator(mode="after")
    def _reported_beside_test(self) -> Self:
        reported = [entry.name for entry in self.ood if not entry.auxiliary] + [entry.name for entry in self.shifted]
        if self.in_dist.test is None and reported:
            raise ValueError(
                f"in_dist.test is null, so nothing is reported, and {reported[0]} would be: give in_dist.test, or mark "
                "OOD sets as auxiliary and remove shifted ones"
            )
        return self


def with_auxiliary(
    data: DataConfig,
    sample: Raw | None,
    *,
    base: SampleSource | None,
    samples: int | None,
    seed: int,
    has_classes: bool,
) -> tuple[DataConfig, list[str]]:
    """The settings with an entry of `ood` for each auxiliary set that is made; later ones change nothing.

    Args:
        data: the settings.
        sample: one of `in_dist.fit` before preprocessing, which says what can be made of them; None where none can be
            read.
        base: those of them that are at hand, as a source; kinds of which most would be copies of these are left out.
        samples: how many there are; None where that is not known.
        seed: of the random choices.
        has_classes: whether labels tell at least two classes apart, as some sets need.

    Returns:
        The settings, and sentences on kinds that were left out, and on where there are few.
    """
    kinds: Sequence[str] = data.auxiliary
    notices: list[str] = []
    if kinds == "auto":
        # Numbers with one value moved may be ordinary ones, and blur what a set of somebody's shows; images may not.
        is_wanted = sample is not None and (is_image(sample) or not any(each.auxiliary for each in data.ood))
        found = auto_kinds(sample) if sample is not None and is_wanted else ()
        known = {each.source for each in data.ood} | {f"synthetic:{each.name}" for each in data.ood}
        found = tuple(kind for kind in found if f"synthetic:{kind}" not in known)
        kinds = [kind for kind in found if has_classes or SYNTHETIC[kind].beside != "other class"]
        copies = {} if base is None else mostly_copies(kinds, base, seed=seed)
        kinds = [kind for kind in kinds if kind not in copies]
        if copies:
            named = ", ".join(f"{kind} ({share:.0%})" for kind, share in copies.items())
            notices = [f"auxiliary sets that are not made, as most would be copies of samples of {FIT}: {named}"]
        names = [*(each.name for each in data.ood if each.auxiliary), *kinds]
        if kinds and len(names) < LEAST_SETS:
            text = (
                f"few auxiliary sets can be made of such samples, {' and '.join(names)} alone: penalties and alarms "
                f"are chosen by {LEAST_SETS} or more, so give OOD sets of your own (data.ood, in Python fit(ood=...))"
            )
            notices.append(Notice(text, "caution"))
        if kinds and isinstance(sample, Mapping) and any(np.ndim(each) == 3 for each in sample.values()):
            notices.append(
                "auxiliary sets are made of each array by its name as of numbers; where one is an image, give images "
                "and labels as a pair, or OOD sets of your own (data.ood, in Python fit(ood=...))"
            )
    select = SelectConfig(count=MOST_SYNTHETIC if samples is None or samples > MOST_SYNTHETIC else None)
    made = [OodConfig(name=kind, source=f"synthetic:{kind}", auxiliary=True, select=select) for kind in kinds]
    return data.model_copy(update={"ood": [*data.ood, *made], "auxiliary": []}), notices


FIT: Final = "in_dist.fit"
"""The in-distribution samples that fit meta models."""

TEST: Final = "in_dist.test"
"""The in-distribution samples that are reported on."""

CALIBRATION: Final = "in_dist.calibration"
"""The in-distribution samples that set thresholds, if there are any of their own."""

BANK: Final = "in_dist.bank"
"""Samples such as those that trained the classifier, if they are given: looked at forward only, never fitted on."""

SplitKind = Literal["in_dist.fit", "in_dist.test", "in_dist.calibration", "in_dist.bank", "ood", "shifted"]


@dataclass(frozen=True)
class SplitInfo:
    """A split: its name, what it is for, and for OOD sets their group and whether they are auxiliary."""

    name: str
    kind: SplitKind
    group: str | None = None
    auxiliary: bool = False

    @property
    def dataset_name(self) -> str:
        """Name of the set in reports: that of an OOD or shifted set without its kind."""
        return self.name.partition(".")[2] if self.kind in ("ood", "shifted") else self.name

    @property
    def is_reported_ood(self) -> bool:
        """Whether this is an OOD set that is reported on, not an auxiliary one."""
        return self.kind == "ood" and not self.auxiliary

    @property
    def is_reported(self) -> bool:
        """Whether there are figures of this split."""
        return self.kind in (TEST, "shifted") or self.is_reported_ood


def planned_splits(data: DataConfig) -> dict[str, tuple[SplitInfo, DatasetConfig]]:
    """The splits that a configuration asks for, by name.

    Fit; test, calibration and bank if there are any; then OOD and shifted sets as configured.
    """
    own: dict[SplitKind, DatasetConfig | None] = {
        FIT: data.in_dist.fit,
        TEST: data.in_dist.test,
        CALIBRATION: data.in_dist.calibration,
        BANK: data.in_dist.bank,
    }
    found = [(SplitInfo(name, name), spec) for name, spec in own.items() if spec is not None]
    found += [(SplitInfo(f"ood.{each.name}", "ood", each.group, each.auxiliary), each) for each in data.ood]
    found += [(SplitInfo(f"shifted.{each.name}", "shifted"), each) for each in data.shifted]
    return {info.name: (info, spec) for info, spec in found}


def base_split(info: SplitInfo, spec: DatasetConfig) -> str | None:
    """The split of whose samples a split is made; None where its source has samples of its own."""
    kind = kind_of(spec.source)
    if kind is None or not kind.made_of_others:
        return None
    return {"ood": FIT, "shifted": TEST}.get(info.kind)
