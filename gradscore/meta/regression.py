"""Logistic regression with a penalty for each coefficient, for many penalties of the same samples.

A matrix of second derivatives costs as much as twenty gradients or more, and one serves many fits: other penalties
change nothing but its diagonal. In the coordinates that it makes round, SciPy's L-BFGS needs ten to twenty gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit

from ..system import BoolArray, FloatArray

MOST_ROUNDS = 50
"""How often a fit begins anew with second derivatives where it stands; few do."""

_STEPS = 15
"""Steps before second derivatives are computed anew."""

_GAIN, _SLOPE = 1e-16, 1e-9
"""A fit ends where a step lowers the mean loss by less than the first, or no slope is above the second."""

_FLAT = 1e-6
"""Slopes up to this are rounding, where no step lowers the loss."""

_ROWS = 512
"""Rows that are weighted and multiplied at a time, while they are in the cache."""

_RIDGE = 1e-10
"""What is added to the diagonal of second derivatives, relative to it: inputs may be all but collinear."""


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Log-odds that are linear in D inputs.

    Attributes:
        coefficients: (D,) of the inputs.
        intercept: what is added.
        converged: whether the fit came to its end.
    """

    coefficients: FloatArray
    intercept: float
    converged: bool

    def odds(self, x: FloatArray) -> FloatArray:
        """The log-odds (N,) of inputs (N, D)."""
        return np.asarray(x @ self.coefficients + self.intercept)


class Regression:
    """Fits log-odds to the same samples again and again; each fit goes on from the one before.

    Args:
        x: (N, D) their inputs.
        target: (N,) True for positives; both classes are there.
        weights: (N,) what they count.
    """

    def __init__(self, x: FloatArray, target: BoolArray, weights: FloatArray) -> None:
        self._x, self._target, self._total = x, target, weights.sum()
        self._signs, self._shares = np.where(target, 1.0, -1.0), weights / self._total
        self._found = np.zeros(x.shape[1] + 1)
        self._curved: FloatArray | None = None

    def fit(self, penalties: FloatArray) -> Linear:
        """The least sum of weighted log losses and of half of penalty x coefficient squared.

        Args:
            penalties: (D,) above zero; the intercept has none.
        """
        ridge = np.append(penalties, 0.0) / self._total
        converged = False
        for _ in range(MOST_ROUNDS):
            if self._curved is None:
                self._curved = self._curvature(self._found)
            added = _RIDGE * self._curved.diagonal() + ridge
            added[-1] += _RIDGE  # where all samples are told apart, nothing else is left of it
            root = cholesky(self._curved + np.diag(added), check_finite=False)

            def loss(place: FloatArray, root: FloatArray = root) -> tuple[float, FloatArray]:
                value, slopes = self._loss(solve_triangular(root, place, check_finite=False), ridge)
                return value, solve_triangular(root, slopes, trans=1, check_finite=False)

            end = minimize(
                loss,
                root @ self._found,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": _STEPS, "maxcor": _STEPS, "ftol": _GAIN, "gtol": _SLOPE},
            )
            self._found = solve_triangular(root, end.x, check_finite=False)
            converged = bool(end.success or np.abs(end.jac).max() < _FLAT)
            if converged:
                break
            self._curved = None
        return Linear(coefficients=self._found[:-1], intercept=float(self._found[-1]), converged=converged)

    def _loss(self, found: FloatArray, ridge: FloatArray) -> tuple[float, FloatArray]:
        """The mean loss with coefficients and intercept (D + 1,), and its slopes."""
        odds = self._x @ found[:-1] + found[-1]
        slopes = self._shares * (expit(odds) - self._target)
        loss = self._shares @ np.logaddexp(0.0, -self._signs * odds) + ridge @ found**2 / 2
        return float(loss), np.append(slopes @ self._x, slopes.sum()) + ridge * found

    def _curvature(self, found: FloatArray) -> FloatArray:
        """Second derivatives (D + 1, D + 1) of the losses, the intercept last."""
        p = expit(self._x @ found[:-1] + found[-1])
        root = np.sqrt(self._shares * p * (1 - p))
        width = self._x.shape[1]
        curved = np.zeros((width + 1, width + 1))
        for start in range(0, len(root), _ROWS):
            rows = slice(start, start + _ROWS)
            weighted = np.hstack([self._x[rows] * root[rows, None], root[rows, None]])
            curved += weighted.T @ weighted
        return curved
