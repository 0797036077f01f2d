"""A baseline in the place of a meta model, for those whose report says that it does better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from ..errors import BundleError
from ..meta import Inputs, MetaModel
from ..system import FloatArray, closest

PROTOCOL = "baseline"
"""Stands for the protocol of a detector that no meta model decides."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A score of the table of an evaluation, such as `energy` or `knn`.

    Attributes:
        name: its name there.
        inputs: what makes it; it was fitted with the meta models.
    """

    name: str
    inputs: Inputs
    kind: Literal["score"] = "score"

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """The scores (N,) of the rows of a feature table, higher = more likely wrong or OOD."""
        return self.inputs.score_table(frame)[self.name].to_numpy(dtype=np.float64)


class Seen:
    """What detectors look at: the inputs of meta models, and baselines; each is computed when it is asked for."""

    def __init__(self, inputs: Inputs, frame: pd.DataFrame) -> None:
        self._inputs, self._frame = inputs, frame

    @cached_property
    def table(self) -> pd.DataFrame:
        """All baselines by name, one row for each sample."""
        return self._inputs.score_table(self._frame)

    @cached_property
    def scaled(self) -> FloatArray:
        """The inputs (N, D) of meta models."""
        return self._inputs.scaled(self._frame, self.table)

    def by(self, model: MetaModel | Baseline) -> FloatArray:
        """The scores (N,) by a meta model or a baseline."""
        if isinstance(model, Baseline):
            return self.table[model.name].to_numpy(dtype=np.float64)
        return model.of_scaled(self.scaled)


def wanted_scores(given: Iterable[str], inputs: Inputs, detectors: Iterable[str]) -> Mapping[str, Baseline]:
    """The baseline of each detector that is to have one.

    Args:
        given: names of scores for all detectors, or `<detector>=<name>` for one.
        inputs: what makes the scores.
        detectors: the detectors there are.

    Raises:
        BundleError: no such score or detector, or two for one detector.
    """
    found: dict[str, Baseline] = {}
    known, every = inputs.scores.names, tuple(detectors)
    for text in given:
        detector, equals, name = text.rpartition("=")
        if equals and detector not in every:
            raise BundleError(f"score {text}: no detector {detector!r}; wanted NAME or one of {', '.join(every)}=NAME")
        if name not in known:
            raise BundleError(f"score {text}: this run has no score {name!r}; {closest(name, known)}")
        for each in (detector,) if equals else every:
            if each in found:
                raise BundleError(f"score {text}: '{each}' has the score {found[each].name} already; give one for each")
            found[each] = Baseline(name=name, inputs=inputs)
    return found
