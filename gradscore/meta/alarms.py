"""Inputs that raise alarms beside a meta model: which these are, and what each counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..baselines import OVER_AUGMENTATIONS
from ..system import FloatArray, product
from .fitting import LEAST_SLOPE, log_odds_of
from .inputs import BASELINE_PREFIX, MetaInputs
from .models import MetaModel
from .placements import mean_area, set_areas
from .rarity import Rarity
from .training_set import Fold, TrainingSet

SHARES = tuple(2.0**-halvings for halvings in range(7))
"""What alarms may count of what their errors give them."""

EXPECTED_WEIGHT = 0.5
"""What an alarm of expected kinds counts, where the model's own score counts 1 (docs/meta-model.md)."""

OWN = "own"
"""Stands for the model's own score among names of baselines."""

EXPECTED = "expected"
"""The note that holds the penalties of a model's alarm of expected kinds, where it has one."""

DISTANCES = ("unit_mahalanobis", "mahalanobis", "relative_mahalanobis", "fdbd")
"""Baselines that raise alarms beside a model: distances from classes, which grow in every direction."""


def alarms_in(inputs: MetaInputs, names: Iterable[str] = DISTANCES) -> dict[str, int]:
    """Places of the inputs that raise alarms beside a model, over augmentations where there are some, by baseline."""
    plain = {name: f"{BASELINE_PREFIX}{name}" for name in names}
    wanted = {name: (f"{each}{OVER_AUGMENTATIONS}", each) for name, each in plain.items()}
    found = {name: [each for each in both if each in inputs.names] for name, both in wanted.items()}
    return {name: inputs.names.index(there[0]) for name, there in found.items() if there}


def alarm_weights(inputs: MetaInputs, left_out: LeftOutSets | None) -> dict[str, float]:
    """What a model's own score and the inputs that raise alarms count, by how well they find sets that were left out.

    How much a score errs gives its weight (`weights_of`). Then all alarms count the largest of `SHARES` of theirs whose
    AUROC is within one standard error of the best: where distances tell less than the model, they cost near sets. That
    the model was right about all left-out sets does not show that it always will be, so no share is zero.

    Source: Breiman et al. 1984, for the rule of one standard error.

    Args:
        inputs: what made the inputs.
        left_out: what the model says of left-out sets; None where there were none: all count the same.
    """
    places = alarms_in(inputs)
    if left_out is None:
        return dict.fromkeys([OWN, *places], 1.0)
    rows = left_out.rows
    places = {
        name: place for name, place in places.items() if left_out.differ([rows.scaled[:, place]] * len(left_out.folds))
    }
    errors = {name: 1 - mean_area(rows.scaled[:, place], rows.target, rows.sets) for name, place in places.items()}
    weights = weights_of({OWN: 1 - float(left_out.areas({}, {OWN: 1.0}).mean()), **errors})
    of_share = {
        share: {name: weight * (1.0 if name == OWN else share) for name, weight in weights.items()} for share in SHARES
    }
    areas = {share: left_out.areas(places, each) for share, each in of_share.items()}
    best = max(areas.values(), key=np.mean)
    behind = {share: best - each for share, each in areas.items()}
    chosen = max(share for share, each in behind.items() if each.mean() <= each.std(ddof=1) / np.sqrt(len(each)))
    return of_share[chosen]


def add_alarms(
    model: MetaModel, rows: TrainingSet, weights: Mapping[str, float], expected: MetaModel | None = None
) -> MetaModel:
    """Lets inputs raise alarms beside a model, see `Rarity`; its score stays log-odds where there are positives.

    Args:
        model: without alarms.
        rows: the samples that it was fitted on.
        weights: as `alarm_weights` gives them.
        expected: a model of the OOD sets whose kinds are expected, which raises alarms as well.

    Returns:
        The model; as it was where no input raises alarms, or all in-distribution samples have one score.
    """
    in_dist, own_of_all = rows.scaled[~rows.target], model.compared(rows.scaled)[0]
    own = own_of_all[~rows.target]
    places = {name: place for name, place in alarms_in(model.inputs).items() if name in weights}
    places = {name: place for name, place in places.items() if np.ptp(in_dist[:, place]) > 0}
    linear = np.empty((0, in_dist.shape[1])) if expected is None else expected.arrays["coefficients"][None]
    linear = linear[np.ptp(product(in_dist, linear.T), axis=0) > 0]
    if not (places or len(linear)) or not np.ptp(own) > 0:
        return model
    counts = [weights[name] for name in (OWN, *places)] + [EXPECTED_WEIGHT] * len(linear)
    alarms = Rarity.fit(own, in_dist, np.array(list(places.values()), int), np.array(counts), linear=linear)
    notes = {**model.notes, "alarms": dict(weights)}
    if expected is not None:
        notes[EXPECTED] = expected.notes["penalties"]
    if rows.target.any():
        found = log_odds_of(alarms.sum(own_of_all, rows.scaled), rows.target, rows.sets, least=LEAST_SLOPE)
        if found is None:
            return model
        line, notes["shift"] = found
        alarms = replace(alarms, line=np.array(line))
    return replace(model, arrays={**model.arrays, **alarms.arrays()}, notes=notes)


@dataclass(frozen=True, kw_only=True)
class LeftOutSets:
    """What fits say of OOD sets that they have not seen.

    Attributes:
        rows: samples, N of them.
        folds: places of those that fit and of those that are held out, of each fold.
        odds: (N,) log-odds by the fit of each fold.
    """

    rows: TrainingSet
    folds: list[Fold]
    odds: list[FloatArray]

    def differ(self, scores: Sequence[FloatArray]) -> bool:
        """Whether scores (N,), one array for each fold, are not the same for all in-distribution samples that fit."""
        return all(np.ptp(each[self._in_dist(fit)]) > 0 for (fit, _), each in zip(self.folds, scores, strict=True))

    def areas(self, places: Mapping[str, int], weights: Mapping[str, float]) -> FloatArray:
        """The AUROC (S,) of each set, where inputs at `places` raise alarms beside the log-odds; see `Rarity`."""
        found: list[float] = []
        counts = np.array([weights[name] for name in (OWN, *places)])
        scaled = self.rows.scaled[:, np.array(list(places.values()), int)]
        for (fit, held_out), odds in zip(self.folds, self.odds, strict=True):
            in_dist = self._in_dist(fit)
            alarms = Rarity.fit(odds[in_dist], scaled[in_dist], np.arange(len(places)), counts)
            scores = alarms.sum(odds[held_out], scaled[held_out])
            found.extend(set_areas(scores, self.rows.target[held_out], self.rows.sets[held_out]).values())
        return np.array(found)

    def _in_dist(self, fit: NDArray[np.intp]) -> NDArray[np.intp]:
        return fit[~self.rows.target[fit]]


def weights_of(errors: Mapping[str, float]) -> dict[str, float]:
    """What each of several scores counts: one that errs twice as often as the best counts an eighth.

    Args:
        errors: 1 - AUROC of each for samples that nothing was fitted on; the same for all where that is not known.

    Returns:
        Weights of at most 1 by name.
    """
    known = {name: max(error, _LEAST_ERROR) for name, error in errors.items()}
    least = min(known.values())
    return {name: (least / error) ** 3 for name, error in known.items()}


_LEAST_ERROR = 1e-3
