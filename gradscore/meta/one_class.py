"""Fitting a meta model that has seen in-distribution samples alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import EvaluationError
from ..system import FloatArray, product
from .alarms import DISTANCES, OWN, alarms_in
from .fitting import leading_axes
from .inputs import MetaInputs
from .models import MetaModel
from .rarity import Rarity
from .training_set import drawn

_ONE_CLASS = {OWN: 2.0, **dict.fromkeys(DISTANCES, 1.0), "energy": 0.5, "ash": 0.5}
"""What scores count for a model that has seen in-distribution samples alone. Energy and ASH say much the same."""

_POWER = 0.5
"""Of tail probabilities there: between their harmonic mean and Fisher's sum of logarithms."""

_LEAST_VARIANCE = 1e-6
"""Axes with less of the largest variance are stretched no further."""

MOST_KEPT = 5000
"""In-distribution samples that such a model keeps at most, drawn at random of more."""


def fit_one_class(inputs: MetaInputs, in_dist: FloatArray) -> MetaModel:
    """Fits a model that has seen in-distribution samples alone: the nearest of them by gradients, and alarms.

    Its own score is the logarithm of the distance to the nearest of them along the leading axes of the gradient inputs,
    each divided by the fourth root of its variance: halfway between inputs as they are and whitened ones. Energy, ASH
    and distances raise alarms beside it, see `MetaModel.compared` and `Rarity`.

    Source: Ledoit and Wolf 2004, for the shrinkage of the variances.

    Args:
        inputs: what made the inputs.
        in_dist: (N, D) scaled inputs of in-distribution samples, N >= 4.

    Raises:
        EvaluationError: fewer samples, or samples that do not differ.
    """
    from sklearn.covariance import LedoitWolf

    if len(in_dist) < 4:
        raise EvaluationError(f"fit: a distance needs at least 4 in-distribution samples, got {len(in_dist)}")
    gradients = in_dist[:, inputs.of_gradients]
    if not np.ptp(gradients, axis=0).any():
        raise EvaluationError(
            "fit: every feature of the in-distribution samples is constant; nothing to measure a distance by"
        )
    axes = leading_axes(gradients)
    estimate = LedoitWolf().fit(gradients @ axes.T)
    variances, frame = np.linalg.eigh(estimate.covariance_)
    whole = np.zeros((len(axes), len(inputs.names)))
    whole[:, inputs.of_gradients] = frame.T @ axes
    places = {name: place for name, place in alarms_in(inputs, _ONE_CLASS).items() if np.ptp(in_dist[:, place]) > 0}
    weights, raising = {name: _ONE_CLASS[name] for name in (OWN, *places)}, np.array(list(places.values()), int)
    kept = drawn(len(in_dist), MOST_KEPT)
    stretch = np.maximum(variances, _LEAST_VARIANCE * variances.max()) ** -0.25
    arrays = {
        "axes": whole,
        "stretch": stretch,
        "in_dist": (product(in_dist[kept], whole.T) * stretch).astype(np.float32).astype(np.float64),
        "levels": in_dist[kept][:, raising],
    }
    model = MetaModel(
        kind="one_class",
        inputs=inputs,
        arrays=arrays,
        notes={"shrinkage": float(estimate.shrinkage_), "alarms": weights, "n": len(in_dist), "n_positive": 0},
    )
    own, usual = model.compared(in_dist)
    if not np.ptp(own) > 0:
        raise EvaluationError(
            "fit: in-distribution samples do not differ in their distance from each other; add samples"
        )
    alarms = Rarity.fit(own, in_dist, raising, np.array([*weights.values()]), usual=usual, power=_POWER)
    return replace(model, arrays={**arrays, **alarms.arrays()})
