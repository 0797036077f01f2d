"""A meta model for OOD that does not trust its linear part where nothing was seen: a sum with two one-class scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.covariance import LedoitWolf

from ..config import MetaConfig
from ..errors import EvaluationError
from ..system import FloatArray
from .models import ENERGY, MetaModel, fit_meta_model


def fit_combined_model(
    frame: pd.DataFrame, target: ArrayLike, weights: ArrayLike | None, config: MetaConfig
) -> MetaModel:
    """Fits log-odds, and adds what a distance from the ordinary samples and the energy say beyond the usual.

    The three parts are standardised on ordinary samples; of distance (its logarithm) and energy only what lies above
    the mean counts, so that neither can clear a sample that the linear part suspects. To standardise it, every ordinary
    sample is measured with a distance fitted on the other half of them.

    Args:
        frame: a feature table, N rows, with logits.
        target: (N,) bool, True for OOD samples.
        weights: as for `fit_meta_model`.
        config: as for `fit_meta_model`.

    Returns:
        The model; its linear part as `fit_meta_model` gives it, in units of the spread of ordinary samples.

    Raises:
        EvaluationError: as `fit_meta_model`; fewer than four ordinary samples, no logits, or a part without spread.
    """
    linear = fit_meta_model(frame, target, weights, config)
    if ENERGY not in linear.inputs:
        raise EvaluationError("fit: a combined meta model needs the logits; extract them, or set meta.kind=logistic")
    ordinary = frame[~np.asarray(target).astype(bool)]
    if len(ordinary) < 4:
        raise EvaluationError(f"fit: a combined meta model needs at least 4 ordinary samples, got {len(ordinary)}")
    scaled, energy = linear.scaled(ordinary)
    estimate = LedoitWolf().fit(scaled)
    odds = linear.decision(ordinary)
    parts = np.column_stack([odds, _held_out(scaled), energy])
    means, scales = parts.mean(axis=0), parts.std(axis=0)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise EvaluationError(
            "fit: ordinary samples do not differ in log-odds, distance or energy; use meta.kind=logistic"
        )
    return replace(
        linear,
        kind="combined",
        arrays={
            **linear.arrays,
            "coefficients": linear.arrays["coefficients"] / scales[0],
            "intercept": (linear.arrays["intercept"] - means[0]) / scales[0],
            "location": np.asarray(estimate.location_),
            "precision": np.asarray(estimate.precision_),
            "means": means[1:],
            "scales": scales[1:],
        },
        notes={**linear.notes, "shrinkage": float(estimate.shrinkage_)},
    )


def _held_out(scaled: FloatArray) -> FloatArray:
    """Logarithm of every sample's squared distance (N,) from the other half of the samples, every second one."""
    found = np.empty(len(scaled))
    for start in (0, 1):
        estimate = LedoitWolf().fit(scaled[1 - start :: 2])
        offsets = scaled[start::2] - estimate.location_
        squared = ((offsets @ estimate.precision_) * offsets).sum(axis=1)
        found[start::2] = np.log(np.maximum(squared, np.finfo(np.float64).tiny))
    return found
