"""Meta models: from the inputs of a sample to how likely its prediction is wrong, or the sample OOD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd

from ..errors import StoreError
from ..system import FloatArray, product
from .files import read_model, write_model
from .inputs import Inputs

Kind = Literal["logistic", "sum", "one_class"]

_LINEAR = {"coefficients", "intercept"}
_DISTANCE = {"axes", "location", "precision", "logarithm"}
_ARRAYS: Mapping[Kind, set[str]] = {"logistic": _LINEAR, "sum": _LINEAR, "one_class": _LINEAR | _DISTANCE}


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """A fitted meta model.

    Attributes:
        kind: `logistic` (log-odds), `sum` (standardised log-odds and scores that do not extrapolate) or `one_class`
            (standardised scores and a distance of gradients, for which no positive sample was seen).
        inputs: what makes its inputs, D of them.
        arrays: everything else that was fitted: `coefficients` (D,) and `intercept` (1,) of a linear function of the
            scaled inputs, and for `one_class` `axes` (A, D), `location` (A,) and `precision` (A, A) of a squared
            Mahalanobis distance, with the mean and the spread of its logarithm, `logarithm` (2,).
        notes: how it was fitted; plain values.
    """

    kind: Kind
    inputs: Inputs
    arrays: Mapping[str, FloatArray]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shift(self) -> float:
        """What to add to log-odds for probabilities at the prevalence of the fit; see `prevalence_shift`."""
        return float(self.notes["shift"])

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """Scores of the rows of a feature table; see `of_scaled`.

        Args:
            frame: a feature table with the columns that were fitted on.

        Returns:
            (N,) float64, higher = more likely wrong or OOD.

        Raises:
            EvaluationError: the columns differ, or a value is not finite.
        """
        return self.of_scaled(self.inputs.scaled(frame))

    def of_scaled(self, scaled: FloatArray) -> FloatArray:
        """Scores (N,) of scaled inputs (N, D) that never tie by rounding, higher = more likely wrong or OOD.

        They are log-odds (`logistic`), or a sum of parts in standard deviations of ordinary samples.
        """
        # A sum per row, not BLAS: the same sample gets the same bits in any company.
        linear = np.asarray((scaled * self.arrays["coefficients"]).sum(axis=1) + self.arrays["intercept"][0])
        return linear if self.kind != "one_class" else linear + self.distance(scaled)

    def distance(self, scaled: FloatArray) -> FloatArray:
        """The logarithm of the distance (N,) of scaled inputs (N, D), standardised; for `one_class`."""
        mean, spread = self.arrays["logarithm"]
        return np.asarray((np.log(self.squared_distances(scaled)) - mean) / spread)

    def squared_distances(self, scaled: FloatArray) -> FloatArray:
        """Squared Mahalanobis distances (N,) of scaled inputs (N, D) from ordinary ones; for `one_class`."""
        offsets = product(scaled, self.arrays["axes"].T) - self.arrays["location"]
        squared = (product(offsets, self.arrays["precision"]) * offsets).sum(axis=1)
        return np.asarray(np.maximum(squared, np.finfo(np.float64).tiny))

    def strongest(self, k: int = 10) -> list[tuple[str, float]]:
        """The `k` inputs with the largest coefficients by magnitude, strongest first; none for `one_class`.

        For `sum`, the coefficients are those of the whole sum: of the standardised log-odds, and 1 over the spread of
        each score that was added.
        """
        if self.kind == "one_class":
            return []
        coefficients = self.arrays["coefficients"]
        order = np.argsort(-np.abs(coefficients), kind="stable")[:k]
        return [(self.inputs.names[place], float(coefficients[place])) for place in order if coefficients[place]]

    def save(self, folder: str | Path) -> None:
        """Writes the model to a folder, as arrays and JSON, without what makes its inputs."""
        description = {"kind": self.kind, "inputs": self.inputs.fingerprint, "notes": dict(self.notes)}
        write_model(Path(folder), self.arrays, description)

    @classmethod
    def load(cls, folder: str | Path, inputs: Inputs) -> Self:
        """Reads a model; it scores every sample to the bit as before.

        Args:
            folder: where it was saved.
            inputs: what made its inputs when it was fitted.

        Raises:
            StoreError: a file is missing or damaged, or the model does not fit the inputs.
        """
        arrays, description = read_model(Path(folder))
        kind: Kind | None = next((known for known in get_args(Kind) if known == description.get("kind")), None)
        notes = description.get("notes", {})
        if kind is None or set(arrays) != _ARRAYS[kind] or not isinstance(notes, dict):
            raise StoreError(f"{folder}: the meta model is incomplete or of an unknown kind; run fit-meta again")
        shift = notes.get("shift")
        if kind == "logistic" and not (isinstance(shift, float | int) and np.isfinite(shift)):
            raise StoreError(f"{folder}: wanted a number as 'shift' in the notes, got {shift!r}; run fit-meta again")
        if any(values.dtype != np.float64 for values in arrays.values()):
            raise StoreError(f"{folder}: wanted arrays of float64; run fit-meta again")
        if description.get("inputs") != inputs.fingerprint:
            raise StoreError(
                f"{folder}: the meta model was fitted on other inputs than lie beside it; run fit-meta again"
            )
        width = len(inputs.names)
        axes = len(arrays.get("axes", ()))
        wanted = {
            "coefficients": (width,),
            "intercept": (1,),
            "axes": (axes, width),
            "location": (axes,),
            "precision": (axes, axes),
            "logarithm": (2,),
        }
        wrong = [name for name, values in arrays.items() if values.shape != wanted[name]]
        if wrong:
            raise StoreError(f"{folder}: array '{wrong[0]}' does not fit {width} inputs; run fit-meta again")
        return cls(kind=kind, inputs=inputs, arrays=arrays, notes=notes)
