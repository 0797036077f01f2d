"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

OF_SAMPLES = "samples of "
"""Start of topics that are about the samples of a split, whose name follows."""

SHOWN = 4
"""At most so many names are listed in a message."""


class Severity(StrEnum):
    """What a finding means for the scores.

    `PROBLEM`: they would be meaningless, or there would be none. `WARNING`: they are right, but probably not what is
    wanted. `NOTE`: good to know.
    """

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
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


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found.

    Attributes:
        findings: problems first, then warnings, then notes.
        coverage: for every parameter that was looked at, how its gradients are computed: "rule", "parameter-side
            product", "reference", "unused" or "frozen"; empty where a problem made it impossible to tell.
    """

    findings: tuple[Finding, ...]
    coverage: dict[str, str]

    @classmethod
    def of(cls, findings: Iterable[Finding], coverage: dict[str, str]) -> Diagnosis:
        """Sorts the findings by severity."""
        order = list(Severity)
        return cls(tuple(sorted(findings, key=lambda finding: order.index(finding.severity))), coverage)

    @property
    def usable(self) -> bool:
        """False if scores of this model would be meaningless, or cannot be had of samples that are wanted."""
        return not self._problems

    @property
    def is_of_samples(self) -> bool:
        """Whether all problems are with samples of some split: scores of other samples would mean something."""
        return all(finding.topic.startswith(OF_SAMPLES) for finding in self._problems)

    @property
    def _problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is Severity.PROBLEM]


def problem(topic: str, message: str) -> Finding:
    """A finding that makes scores meaningless, or impossible."""
    return Finding(Severity.PROBLEM, topic, message)


def warning(topic: str, message: str) -> Finding:
    """A finding that leaves scores right, but probably not what is wanted."""
    return Finding(Severity.WARNING, topic, message)


def note(topic: str, message: str) -> Finding:
    """A finding that is good to know."""
    return Finding(Severity.NOTE, topic, message)


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
