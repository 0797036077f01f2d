"""Meta models: from the gradient features of a sample to how likely its prediction is wrong, or the sample OOD."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from ..columns import feature_columns, logit_columns
from ..config import MetaConfig
from ..errors import EvaluationError, StoreError
from ..system import FloatArray
from .cross_validation import MAX_ITERATIONS, cross_validated, regression, rotation
from .files import read_model, write_model
from .inputs import SCORE_PREFIX, logarithmic, meta_inputs
from .scaling import LIMIT, RobustLogScaler

Kind = Literal["logistic", "distance", "combined"]

ENERGY = f"{SCORE_PREFIX}energy"

_ARRAYS: Mapping[Kind, set[str]] = {
    "logistic": {"floor", "centre", "spread", "coefficients", "intercept"},
    "distance": {"floor", "centre", "spread", "location", "precision"},
    "combined": {
        *("floor", "centre", "spread", "coefficients", "intercept", "location", "precision", "means", "scales")
    },
}


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """A fitted meta model.

    Attributes:
        kind: `logistic` (log-odds from a linear model), `distance` (from the ordinary samples), or `combined` (both
            and the energy; see `fit_combined_model`).
        columns: the columns of a feature table it was fitted on.
        inputs: the names of what it makes of them.
        arrays: everything that was fitted.
        notes: how it was fitted; plain values.
    """

    kind: Kind
    columns: list[str]
    inputs: list[str]
    arrays: Mapping[str, FloatArray]
    notes: Mapping[str, Any] = field(default_factory=dict)

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """Scores that never tie by rounding.

        They are log-odds (`logistic`), a squared Mahalanobis distance (`distance`), or a sum of standardised log-odds
        and what logarithmic distance and energy exceed their means by, in standard deviations (`combined`).

        Args:
            frame: a feature table with the columns the model was fitted on, others are ignored.

        Returns:
            (N,) float64, higher = more likely wrong or OOD.

        Raises:
            EvaluationError: the feature or logit columns differ, or a value is not finite.
        """
        scaled, energy = self.scaled(frame)
        if self.kind == "distance":
            return self.distance(scaled)
        # A sum per row, not a matrix product: the same sample gets the same bits in any company.
        odds = np.asarray((scaled * self.arrays["coefficients"]).sum(axis=1) + self.arrays["intercept"][0])
        return odds if self.kind == "logistic" else odds + self.excess(scaled, energy).sum(axis=1)

    def scaled(self, frame: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
        """The scaled inputs (N, D) of a feature table, and the energy (N,), zero without logits; as `decision`."""
        self._check_columns(frame)
        table = meta_inputs(frame)
        missing = [name for name in self.inputs if name not in table]
        if missing:
            raise EvaluationError(
                f"the meta model looks at {_listed(missing)}, which its columns do not give; run fit-meta again"
            )
        energy = table[ENERGY].to_numpy(dtype=np.float64) if ENERGY in table else np.zeros(len(table))
        return self._scaler().transform(table[self.inputs]), energy

    def distance(self, scaled: FloatArray) -> FloatArray:
        """Squared Mahalanobis distances (N,) of scaled inputs (N, D); for models that have them."""
        offsets = scaled - self.arrays["location"]
        return np.asarray(((offsets @ self.arrays["precision"]) * offsets).sum(axis=1))

    def excess(self, scaled: FloatArray, energy: FloatArray) -> FloatArray:
        """What logarithmic distance and energy exceed their means by, (N, 2), not negative; for combined models."""
        distance = np.log(np.maximum(self.distance(scaled), np.finfo(np.float64).tiny))
        standard = (np.column_stack([distance, energy]) - self.arrays["means"]) / self.arrays["scales"]
        return np.asarray(np.maximum(standard, 0.0))

    def strongest(self, k: int = 10) -> list[tuple[str, float]]:
        """The `k` inputs with the largest coefficients by magnitude, strongest first; none for a distance."""
        if self.kind == "distance":
            return []
        coefficients = self.arrays["coefficients"]
        order = np.argsort(-np.abs(coefficients), kind="stable")[:k]
        return [(self.inputs[place], float(coefficients[place])) for place in order if coefficients[place]]

    def save(self, folder: str | Path) -> None:
        """Writes the model to a folder, as arrays and JSON."""
        description = {"kind": self.kind, "columns": self.columns, "inputs": self.inputs, "notes": dict(self.notes)}
        write_model(Path(folder), self.arrays, description)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads a model; it scores every sample to the bit as before.

        Raises:
            StoreError: a file is missing or damaged.
        """
        arrays, description = read_model(Path(folder))
        kind: Kind | None = next((known for known in get_args(Kind) if known == description.get("kind")), None)
        lists = all(_are_names(description.get(key)) for key in ("columns", "inputs"))
        lists = lists and isinstance(description.get("notes", {}), dict)
        if kind is None or not lists or set(arrays) != _ARRAYS[kind]:
            raise StoreError(f"{folder}: the meta model is incomplete or of an unknown kind; run fit-meta again")
        width = len(description["inputs"])
        wanted = dict.fromkeys(arrays, (width,)) | {
            "intercept": (1,),
            "precision": (width, width),
            "means": (2,),
            "scales": (2,),
        }
        wrong = [name for name, values in arrays.items() if values.shape != wanted[name]]
        if wrong:
            raise StoreError(f"{folder}: array '{wrong[0]}' does not fit {width} inputs; run fit-meta again")
        return cls(
            kind=kind,
            columns=description["columns"],
            inputs=description["inputs"],
            arrays=arrays,
            notes=description.get("notes", {}),
        )

    def _scaler(self) -> RobustLogScaler:
        scaler = RobustLogScaler(logarithmic(self.inputs), LIMIT)
        scaler.n_features_in_ = len(self.inputs)
        scaler.floor_, scaler.centre_, scaler.spread_ = (self.arrays[name] for name in ("floor", "centre", "spread"))
        return scaler

    def _check_columns(self, frame: pd.DataFrame) -> None:
        got = _columns(frame)
        missing = [name for name in self.columns if name not in set(got)]
        unexpected = [name for name in got if name not in set(self.columns)]
        if missing or unexpected:
            raise EvaluationError(
                f"features differ from those the meta model was fitted on: missing {_listed(missing)}, "
                f"unexpected {_listed(unexpected)}; extract with the same settings, or run fit-meta again"
            )


def fit_meta_model(frame: pd.DataFrame, target: ArrayLike, weights: ArrayLike | None, config: MetaConfig) -> MetaModel:
    """Fits a scaler and a logistic regression whose strength is chosen by stratified cross-validation on log loss.

    Everything, the scaler included, is fitted anew in each fold; ties go to the stronger regularisation.

    Args:
        frame: a feature table, N rows.
        target: (N,) bool, True for wrong predictions or OOD samples.
        weights: (N,) not negative, or None for 1; scaled to a mean of 1.
        config: folds, seed and the strengths to choose from.

    Returns:
        The model; its notes say the strength and the log loss of each.

    Raises:
        EvaluationError: shapes that differ, only one class, nothing but constant features, or a value not finite.
    """
    truth = np.asarray(target).astype(bool)
    weight = np.ones(len(truth)) if weights is None else np.asarray(weights, dtype=np.float64)
    if truth.shape != (len(frame),) or weight.shape != truth.shape:
        raise EvaluationError(f"fit: {len(frame)} rows with a target {truth.shape} and weights {weight.shape}")
    if truth.all() or not truth.any():
        raise EvaluationError(f"fit: wanted samples of two classes, got {int(truth.sum())} positive of {len(truth)}")
    weight = weight / weight.mean()
    table = meta_inputs(frame)
    strengths = sorted(config.strengths)
    losses = cross_validated(table, truth, weight, strengths=strengths, config=config)
    strength = strengths[int(np.argmin(losses))] if losses else strengths[0]
    scaler = RobustLogScaler(logarithmic(list(table.columns)))
    if not scaler.fit(table, truth).spread_.any():
        raise EvaluationError("fit: every feature is constant; nothing to tell the samples apart by")
    pipeline = Pipeline([("scale", scaler), ("rotate", rotation()), ("regress", regression(strength))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the notes say it
        pipeline.fit(table, truth, regress__sample_weight=weight)
    fitted: LogisticRegression = pipeline.named_steps["regress"]
    axes: PCA = pipeline.named_steps["rotate"]
    # Both steps are linear, so one vector of coefficients of the scaled inputs says the same.
    coefficients = np.asarray(fitted.coef_[0] @ axes.components_, dtype=np.float64)
    intercept = np.asarray(fitted.intercept_ - coefficients @ axes.mean_, dtype=np.float64)
    return MetaModel(
        kind="logistic",
        columns=_columns(frame),
        inputs=list(table.columns),
        arrays={
            **_scaling_arrays(scaler),
            "coefficients": coefficients,
            "intercept": intercept,
        },
        notes={
            "strength": strength,
            "log_loss": dict(zip(map(str, strengths), losses, strict=True)) if losses else None,
            "converged": int(np.max(fitted.n_iter_)) < MAX_ITERATIONS,
            "n": len(truth),
            "n_positive": int(truth.sum()),
        },
    )


def fit_distance_model(frame: pd.DataFrame) -> MetaModel:
    """Fits a one-class model on ordinary samples alone: Mahalanobis distance with a shrunk covariance.

    Source: Ledoit and Wolf, 2004, for the shrinkage.

    Args:
        frame: a feature table of N >= 2 ordinary samples.

    Returns:
        The model; its notes say the shrinkage.

    Raises:
        EvaluationError: fewer than two rows, or a value that is not finite.
    """
    if len(frame) < 2:
        raise EvaluationError(f"fit: a distance needs at least 2 ordinary samples, got {len(frame)}")
    table = meta_inputs(frame)
    scaler = RobustLogScaler(logarithmic(list(table.columns)))
    estimate = LedoitWolf().fit(scaler.fit(table).transform(table))
    precision = np.asarray(estimate.precision_, dtype=np.float64)
    if not np.isfinite(precision).all() or not precision.any():
        raise EvaluationError(
            "fit: every feature of the ordinary samples is constant; nothing to measure a distance by"
        )
    return MetaModel(
        kind="distance",
        columns=_columns(frame),
        inputs=list(table.columns),
        arrays={**_scaling_arrays(scaler), "location": np.asarray(estimate.location_), "precision": precision},
        notes={"shrinkage": float(estimate.shrinkage_), "n": len(frame), "n_positive": 0},
    )


def balanced_weights(target: ArrayLike, sets: ArrayLike) -> FloatArray:
    """Weights by which both classes count the same, and within each class every one of its `sets` the same.

    Args:
        target: (N,) bool.
        sets: (N,) names of the data sets the samples come from.

    Returns:
        (N,) float64 with sum N.
    """
    pairs = pd.DataFrame({"target": np.asarray(target).astype(bool), "set": np.asarray(sets)})
    members = pairs.groupby(["target", "set"])["set"].transform("size")
    sets_of_class = pairs.groupby("target")["set"].transform("nunique")
    classes = pairs["target"].nunique()
    return np.asarray(len(pairs) / (members * sets_of_class * classes), dtype=np.float64)


def _scaling_arrays(scaler: RobustLogScaler) -> dict[str, FloatArray]:
    return {"floor": scaler.floor_, "centre": scaler.centre_, "spread": scaler.spread_}


def _columns(frame: pd.DataFrame) -> list[str]:
    return [*logit_columns(frame.columns), *feature_columns(frame.columns)]


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
