"""The splits of a run: what each is called, what it is for, and where its samples come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .settings import DataConfig, DatasetConfig
from .sources import kind_of

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
        """What the set is called in reports: the name of an OOD or shifted set without its kind."""
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
    found: list[tuple[SplitInfo, DatasetConfig]] = [(SplitInfo(FIT, FIT), data.in_dist.fit)]
    if data.in_dist.test is not None:
        found.append((SplitInfo(TEST, TEST), data.in_dist.test))
    if data.in_dist.calibration is not None:
        found.append((SplitInfo(CALIBRATION, CALIBRATION), data.in_dist.calibration))
    if data.in_dist.bank is not None:
        found.append((SplitInfo(BANK, BANK), data.in_dist.bank))
    found += [(SplitInfo(f"ood.{each.name}", "ood", each.group, each.auxiliary), each) for each in data.ood]
    found += [(SplitInfo(f"shifted.{each.name}", "shifted"), each) for each in data.shifted]
    return {info.name: (info, spec) for info, spec in found}


def base_split(info: SplitInfo, spec: DatasetConfig) -> str | None:
    """The split of whose images a split is made; None where its source has images of its own."""
    kind = kind_of(spec.source)
    if kind is None or not kind.made_of_others:
        return None
    return {"ood": FIT, "shifted": TEST}.get(info.kind)
