"""Logistic regression with a penalty for each coefficient, for many penalties of the same samples.

A matrix of second derivatives costs as much as twenty gradients or more. One serves many steps: those of L-BFGS, which
it starts from, correct it, and other penalties change nothing but its diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from ..system import BoolArray, FloatArray

MOST_STEPS = 1000
"""Steps of a fit at most; it takes 5 to 30 of them."""

TOLERANCE = 1e-14
"""How far the mean loss may be above its least where a fit ends, as its next step tells."""

_PATIENCE = 4
"""Steps in which what is left to gain has to fall to a tenth; else second derivatives are computed anew."""

_ROWS = 512
"""Rows that are weighted and multiplied at a time, while they are in the cache."""

_RIDGE = 1e-10
"""What is added to the diagonal of second derivatives, relative to it: inputs may be all but collinear."""

_ENOUGH, _SHORTEST = 1e-4, 1e-9
"""Share of the gain that the slope promises, which a step has to bring (Armijo 1966); else it is halved, down to the
second."""


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

        Source: Liu and Nocedal 1989, for L-BFGS.

        Args:
            penalties: (D,) above zero; the intercept has none.
        """
        x, ridge = self._x, np.append(penalties, 0.0) / self._total
        found, best, since = self._found, np.inf, 0
        past: list[_Past] = []
        odds = x @ found[:-1] + found[-1]
        loss, gradient = self._loss(odds, found, ridge), self._gradient(odds, found, ridge)
        factor = None if self._curved is None else _factor(self._curved, ridge)
        converged = False
        for _ in range(MOST_STEPS):
            if factor is None or since == _PATIENCE:
                self._curved = self._curvature(odds)
                factor, past, best = _factor(self._curved, ridge), [], np.inf
            step = -_inverse(factor, past, gradient)
            left = -float(gradient @ step)
            best, since = (left, 0) if left < best / 10 else (best, since + 1)
            converged = left / 2 <= TOLERANCE
            if converged:
                break
            along, length = x @ step[:-1] + step[-1], 1.0
            rounding = 16 * np.finfo(np.float64).eps * abs(loss)
            while True:
                new = self._loss(odds + length * along, found + length * step, ridge)
                if new <= loss - _ENOUGH * length * left + rounding or length < _SHORTEST:
                    break
                length /= 2
            found, odds, loss = found + length * step, odds + length * along, new
            before, gradient = gradient, self._gradient(odds, found, ridge)
            past.append(_Past(length * step, gradient - before))
        self._found = found
        return Linear(coefficients=found[:-1], intercept=float(found[-1]), converged=converged)

    def _loss(self, odds: FloatArray, found: FloatArray, ridge: FloatArray) -> float:
        return float(self._shares @ np.logaddexp(0.0, -self._signs * odds) + ridge @ found**2 / 2)

    def _gradient(self, odds: FloatArray, found: FloatArray, ridge: FloatArray) -> FloatArray:
        slopes = self._shares * (expit(odds) - self._target)
        return np.append(slopes @ self._x, slopes.sum()) + ridge * found

    def _curvature(self, odds: FloatArray) -> FloatArray:
        """Second derivatives (D + 1, D + 1) of the losses, the intercept last."""
        p = expit(odds)
        root = np.sqrt(self._shares * p * (1 - p))
        width = self._x.shape[1]
        found = np.zeros((width + 1, width + 1))
        for start in range(0, len(root), _ROWS):
            rows = slice(start, start + _ROWS)
            weighted = np.hstack([self._x[rows] * root[rows, None], root[rows, None]])
            found += weighted.T @ weighted
        return found


class _Past(NamedTuple):
    """A step, and by what it changed the gradient."""

    step: FloatArray
    change: FloatArray


def _factor(curved: FloatArray, ridge: FloatArray) -> Any:
    whole = curved + np.diag(_RIDGE * curved.diagonal() + ridge)
    return cho_factor(whole, overwrite_a=True, check_finite=False)


def _inverse(factor: Any, past: Sequence[_Past], gradient: FloatArray) -> FloatArray:
    """The gradient times the inverse of the second derivatives, as the factor and past steps tell."""
    rest, shares = gradient, []
    for step, change in reversed(past):
        shares.append(float(step @ rest) / float(step @ change))
        rest = rest - shares[-1] * change
    found: FloatArray = cho_solve(factor, rest, check_finite=False)
    for (step, change), share in zip(past, reversed(shares), strict=True):
        found = found + (share - float(change @ found) / float(step @ change)) * step
    return found
