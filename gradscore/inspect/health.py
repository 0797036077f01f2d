"""Findings while a model trains: looked for at some steps, said once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from torch import nn

from .finding import Finding
from .findings import diagnose
from .influence import confirmed, matters
from .quantities.quantity import MODEL, Schedule
from .vitals import Vitals

AT_ONCE = frozenset({"bad input", "bad weight", "bad output", "wrong scale", "frozen", "exploding", "saturated"})
"""Kinds that are believed when they are seen first. Others have to be there at two looks in a row: branches that begin
at zero get no gradient in the first step, and with float16 a gradient now and then is not finite."""


NO_NUMBERS = frozenset({"bad weight", "bad output", "bad gradient"})
"""Kinds that are no news once a weight is no number: all others follow."""


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

    def begin_pass(self, inputs: object) -> None:
        """See `Vitals.begin_pass`."""
        self._vitals.begin_pass(inputs)

    def end_pass(self, outputs: object) -> None:
        """See `Vitals.end_pass`."""
        self._vitals.end_pass(outputs)

    def conclude(self) -> None:
        """Ends a look: what it shows is remembered and, where it is new, said in a `HealthWarning`."""
        if not self._looks:
            return
        self._vitals.active = self._looks = False
        if not self._vitals.samples:
            return
        seen = diagnose(self._vitals, self._parameters)
        if any((each.kind, each.layer) in self._suspected for each in seen if each.kind == "dead layer"):
            seen = confirmed(self._vitals, self._parameters, self._matters)
        self._vitals.let_go()
        known = {(each.kind, each.layer) for each in self.found}
        for finding in seen:
            key = finding.kind, finding.layer
            if finding.kind in NO_NUMBERS and any(kind == "bad weight" for kind, _ in known):
                continue
            if key not in known and (finding.kind in AT_ONCE or key in self._suspected):
                self.found.append(replace(finding, step=self._step))
                warnings.warn(str(self.found[-1]), HealthWarning, stacklevel=2)
        self._suspected = {(each.kind, each.layer) for each in seen}

    def pause(self, paused: bool) -> None:
        """Looks at nothing from here on, or goes on with the look at this step."""
        self._vitals.active = self._looks and not paused

    def _matters(self, site: str) -> bool:
        """Whether outputs depend on those of a layer, tried on a copy; they do unless the trial says otherwise."""
        calls = self._vitals.calls
        root = next((name for name in (MODEL, site.partition(".")[0]) if name in calls), None)
        if ("dead layer", site) not in self._suspected or root in (None, site):
            return True
        name = "" if root == MODEL else root
        inputs, named = calls[root]
        try:
            double = copy.deepcopy(self._vitals.model.get_submodule(name)).eval()
            return matters(double, site.removeprefix(f"{name}."), lambda: double(*inputs, **named))
        except Exception:  # noqa: BLE001  whatever a model does that is run once more, training goes on
            return True
