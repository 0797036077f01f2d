"""What a check of a model tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

OF_SAMPLES = "samples of "
"""Start of topics that are about the samples of a split, whose name follows."""

Severity = Literal["problem", "warning", "note"]
"""What a remark means for the scores. "problem": they would be meaningless, or there would be none. "warning": they are
right, but probably not what is wanted. "note": good to know."""


@dataclass(frozen=True)
class Remark:
    """One thing to know about a model.

    Attributes:
        severity: how bad it is.
        topic: what it is about, in a few words that stay the same from model to model.
        message: what was found, where, and what to do.
    """

    severity: Severity
    topic: str
    message: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.severity}: {self.topic}: {self.message}"


problem, warning, note = (partial(Remark, severity) for severity in get_args(Severity))


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found.

    Attributes:
        remarks: problems first, then warnings, then notes.
        coverage: for every parameter that was looked at, how its gradients are computed: "rule", "parameter-side
            product", "reference", "unused" or "frozen"; empty where a problem made it impossible to tell.
    """

    remarks: tuple[Remark, ...]
    coverage: dict[str, str]

    @classmethod
    def of(cls, remarks: Iterable[Remark], coverage: dict[str, str]) -> Diagnosis:
        """Sorts the remarks by severity."""
        order = get_args(Severity)
        return cls(tuple(sorted(remarks, key=lambda remark: order.index(remark.severity))), coverage)

    @property
    def usable(self) -> bool:
        """False if scores of this model would be meaningless, or cannot be had of samples that are wanted."""
        return not self._problems

    @property
    def is_of_samples(self) -> bool:
        """Whether all problems are with samples of some split: scores of other samples would mean something."""
        return all(remark.topic.startswith(OF_SAMPLES) for remark in self._problems)

    @property
    def _problems(self) -> list[Remark]:
        return [remark for remark in self.remarks if remark.severity == "problem"]
