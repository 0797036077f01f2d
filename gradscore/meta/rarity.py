"""One score of several, by how rare the value of each is among in-distribution samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..system import FloatArray, IntArray, product

KNOTS = 64
"""Tail probabilities at which values are kept; in between, logarithms are linear in the value."""

_UPPER = 0.1
"""Share of the samples whose mean excess is the scale of the exponential tail beyond all samples."""

_PREFIX = "alarms/"


@dataclass(frozen=True, kw_only=True)
class Rarity:
    """One score of several: how rare each is among in-distribution samples, where any may raise the alarm.

    A regression trusts its coefficients far from all it has seen, and its sum drowns one score that speaks alone. The
    logarithm of the sum of weight / tail probability does neither: it follows whichever is rarest. It is minus that of
    the harmonic mean of p-values (Wilson 2019), with tails that go on beyond the samples.

    Attributes:
        places: (P - 1 - R,) of the inputs that raise alarms beside the model's own score.
        weights: (P,) what each counts, that of the own score first.
        knots: (P, K) values that fewer and fewer in-distribution samples reach, ascending.
        rarity: (K,) minus the logarithm of the share that reaches them, times the power.
        scales: (P,) of the exponential tails beyond the last, over the power.
        line: (2,) slope and intercept that make log-odds of the sum.
        linear: (R, D) coefficients of functions of the inputs that raise alarms as well, the last R of P parts.
    """

    places: IntArray
    weights: FloatArray
    knots: FloatArray
    rarity: FloatArray
    scales: FloatArray
    line: FloatArray
    linear: FloatArray

    @classmethod
    def fit(
        cls,
        own: FloatArray,
        scaled: FloatArray,
        places: IntArray,
        weights: FloatArray,
        *,
        usual: FloatArray | float = 0.0,
        power: float = 1.0,
        linear: FloatArray | None = None,
    ) -> Self:
        """Learns tails from in-distribution samples.

        Args:
            own: (N,) scores of the model, of samples that do not all have the same.
            scaled: (N, D) their scaled inputs.
            places: (P - 1 - R,) of the inputs that raise alarms, none of them constant.
            weights: (P,) see the class.
            usual: (N, P - 1 - R) what is subtracted from these inputs; see `raised`.
            power: of the tail probabilities, 1 or less: the nearer to zero, the more all scores count together.
            linear: (R, D) see the class; none of these functions is constant.
        """
        linear = np.empty((0, scaled.shape[1])) if linear is None else linear
        values = _values(own, scaled, places, usual, linear)
        shares = np.geomspace(1.0, 1 / (len(values) + 1), KNOTS)
        knots = np.quantile(values, 1 - shares, axis=0).T
        start = np.quantile(values, 1 - _UPPER, axis=0)
        excess = [column[column > limit] - limit for column, limit in zip(values.T, start, strict=True)]
        scales = [each.mean() if len(each) else spread for each, spread in zip(excess, values.std(axis=0), strict=True)]
        return cls(
            places=places,
            weights=weights,
            knots=knots,
            rarity=-power * np.log(shares),
            scales=np.array(scales) / power,
            line=np.array([1.0, 0.0]),
            linear=linear,
        )

    def raised(self, own: FloatArray, scaled: FloatArray, usual: FloatArray | float = 0.0) -> FloatArray:
        """(N, P) the logarithm of weight / tail probability of each, the latter to the power.

        Args:
            own: (N,) scores of the model.
            scaled: (N, D) inputs.
            usual: (N, P - 1 - R) what of those that raise alarms is usual for each sample.
        """
        values = _values(own, scaled, self.places, usual, self.linear)
        found = [np.log(weight) + self._rarities(part, values[:, part]) for part, weight in enumerate(self.weights)]
        return np.stack(found, axis=1)

    def sum(self, own: FloatArray, scaled: FloatArray, usual: FloatArray | float = 0.0) -> FloatArray:
        """(N,) log-odds: the line of the logarithm of the sum of what `raised` gives."""
        raised = self.raised(own, scaled, usual)
        loudest = raised.max(axis=1)
        whole = loudest + np.log(np.exp(raised - loudest[:, None]).sum(axis=1))
        return np.asarray(self.line[0] * whole + self.line[1])

    def arrays(self) -> dict[str, FloatArray]:
        """The attributes, to be stored with those of a model."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {f"{_PREFIX}{name}": np.asarray(values, dtype=np.float64) for name, values in found.items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, FloatArray]) -> Self | None:
        """Those among the arrays of a model; None where it has none."""
        found = {name.removeprefix(_PREFIX): values for name, values in arrays.items() if name.startswith(_PREFIX)}
        if not found:
            return None
        places = np.asarray(found.pop("places"), dtype=np.int64)
        return cls(places=places, **found)

    def _rarities(self, part: int, values: FloatArray) -> FloatArray:
        """Minus the logarithm of the share of in-distribution samples that reach values (N,)."""
        knots = self.knots[part]
        before = np.clip(np.searchsorted(knots, values, side="left") - 1, 0, len(knots) - 2)  # of ties the commonest
        width = knots[before + 1] - knots[before]
        way = np.divide(values - knots[before], width, out=np.zeros_like(values), where=width > 0)
        within = self.rarity[before] + np.clip(way, 0.0, 1.0) * (self.rarity[before + 1] - self.rarity[before])
        outside = np.maximum(values - knots[-1], 0.0) + np.minimum(values - knots[0], 0.0)
        return np.asarray(within + outside / self.scales[part])


def _values(
    own: FloatArray, scaled: FloatArray, places: IntArray, usual: FloatArray | float, linear: FloatArray
) -> FloatArray:
    """(N, P) the scores of which any may raise the alarm."""
    return np.column_stack([own, scaled[:, places] - usual, product(scaled, linear.T)])
