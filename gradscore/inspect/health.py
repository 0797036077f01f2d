"""Findings while a model trains: looked for at some steps, said once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from torch import nn

from .finding import Finding
from .findings import diagnose
from .quantities.quantity import Schedule
from .vitals import Vitals

AT_ONCE = frozenset({"bad input", "bad weight", "bad output", "wrong scale", "frozen", "exploding", "saturated"})
"""Kinds that are believed when they are seen first. Others have to be there at two looks in a row: branches that begin
at zero get no gradient in the first step, and with float16 a gradient now and then is not finite."""


class HealthWarning(UserWarning):
    """Something is not well with a model that trains."""


class Health:
    """Looks at some steps of training, and remembers what is not well.

    Args:
        model: what trains.
        layers: its layers without submodules, by name.
        parameters: its parameters, by name.
        schedule: the steps that are looked at.

    Attributes:
        found: findings with the step at which each was seen first; each cause once.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        schedule: Schedule,
    ) -> None:
        self.found: list[Finding] = []
        self._parameters, self._schedule = parameters, schedule
        self._vitals = Vitals(model, layers)
        self._suspected: set[tuple[str, str]] = set()
        self._step, self._looks = -1, False

    def attach(self, stack: ExitStack) -> None:
        """Registers hooks, which the stack removes."""
        self._vitals.attach(stack)

    def start_step(self, step: int) -> None:
        """Ends the look at the step before, and begins one at this step if it is due."""
        self.conclude()
        if self._schedule(step):
            self._vitals.forget()
            self._vitals.active = self._looks = True
            self._step = step

    def conclude(self) -> None:
        """Ends a look: what it shows is remembered and, where it is new, said in a `HealthWarning`."""
        if not self._looks:
            return
        self._vitals.active = self._looks = False
        if not self._vitals.samples:
            return
        seen = diagnose(self._vitals, self._parameters)
        known = {(each.kind, each.layer) for each in self.found}
        for finding in seen:
            key = finding.kind, finding.layer
            if key not in known and (finding.kind in AT_ONCE or key in self._suspected):
                self.found.append(replace(finding, step=self._step))
                warnings.warn(str(self.found[-1]), HealthWarning, stacklevel=2)
        self._suspected = {(each.kind, each.layer) for each in seen}

    def pause(self, paused: bool) -> None:
        """Looks at nothing from here on, or goes on with the look at this step."""
        self._vitals.active = self._looks and not paused
