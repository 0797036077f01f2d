"""The meta models of a run, fitted: what they have in common is found once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..config import MetaConfig
from ..meta import (
    LEAST_SETS,
    Choice,
    Inputs,
    MetaModel,
    Rows,
    add_stable_scores,
    choose_penalty,
    fit_logistic,
    fit_on_scores,
    fit_one_class,
    has_stable_scores,
    judge_sum,
    leading_axes,
    mean_area,
)
from ..system import FloatArray
from .preparation import Prepared
from .protocols import MetaModelSpec, RowMasks
from .scoring import baselines_of, fits_two_classes

_NO_AXES = np.empty((0, 0))


@dataclass(frozen=True)
class ModelFit:
    """A meta model, and models that see less, by the name of their score: what it has to beat."""

    model: MetaModel
    baselines: dict[str, MetaModel]


def rows_of(spec: MetaModelSpec, masks: RowMasks, prepared: Prepared) -> Rows:
    """The chosen samples of a spec."""
    splits = [split for split, mask in masks.items() if mask.any()]
    width = len(prepared.inputs.names)
    parts = [prepared.scaled(split, masks[split]) for split in splits]
    return Rows(
        scaled=np.concatenate(parts) if parts else np.empty((0, width)),
        target=np.concatenate([np.zeros(0, dtype=bool), *(spec.positive[split][masks[split]] for split in splits)]),
        sets=np.concatenate([np.zeros(0, dtype="<U1"), *([split] * int(masks[split].sum()) for split in splits)]),
    )


class ModelFits:
    """Fits the meta models of a run.

    Axes of the gradient inputs are found, and penalties of OOD models chosen, on `in_dist.fit` and auxiliary sets,
    where there are at least three of these: nothing of it has seen what any model reports.

    Args:
        common: the spec of the samples that all OOD models of the run have in common, if there are such.
        prepared: the inputs of its samples.
        config: the settings.
    """

    def __init__(self, common: MetaModelSpec | None, prepared: Prepared, config: MetaConfig) -> None:
        self._prepared, self._config, self._spec_in_common = prepared, config, common
        self._axes: FloatArray | None = None
        self._choices: dict[str, Choice] = {}
        self._areas: list[tuple[float, float] | None] = []

    @cached_property
    def _common(self) -> Rows | None:
        """The samples in common, if there are enough auxiliary sets among them to choose by."""
        spec = self._spec_in_common
        rows = None if spec is None else rows_of(spec, spec.fit, self._prepared)
        return rows if rows is not None and len(np.unique(rows.sets[rows.target])) >= LEAST_SETS else None

    @property
    def inputs(self) -> Inputs:
        """What makes the inputs."""
        return self._prepared.inputs

    def fit(self, spec: MetaModelSpec) -> ModelFit:
        """Fits the model of a spec and those it has to beat.

        Raises:
            EvaluationError: samples of one class only, or too few of them.
        """
        rows = rows_of(spec, spec.fit, self._prepared)
        if not fits_two_classes(spec):
            model = fit_one_class(self.inputs, rows.scaled)
            return ModelFit(_with_notes(model, self._judged(model)), {})
        axes = self._axes_of(rows)
        chosen = self._choice(spec, rows, axes, None)
        model = fit_logistic(self.inputs, rows, chosen.penalty, axes=axes)
        notes = chosen.notes()
        if spec.task == "ood" and has_stable_scores(self.inputs) and self._config.ood != "logistic":
            areas = self._judged_sum(rows, chosen, axes)
            if self._config.ood == "sum" or (areas is not None and areas[1] > areas[0]):
                model = add_stable_scores(model, rows.scaled[~rows.target])
                notes["judged"] = None if areas is None else areas[1]
        return ModelFit(_with_notes(model, notes), self._baselines(spec, rows))

    def _judged(self, model: MetaModel) -> dict[str, Any]:
        """How well a model that has seen ordinary samples alone finds auxiliary sets."""
        common = self._common
        if common is None:
            return {}
        area = mean_area(model.of_scaled(common.scaled), common.target, common.sets)
        return {"judged_by": "sets", "judged": area}

    def _baselines(self, spec: MetaModelSpec, rows: Rows) -> dict[str, MetaModel]:
        return {
            name: fit_on_scores(self.inputs, rows, self._choice(spec, rows, _NO_AXES, names).penalty, names=names)
            for name, names in baselines_of(spec, self.inputs).items()
        }

    def _axes_of(self, rows: Rows) -> FloatArray:
        places = np.flatnonzero(self.inputs.of_gradients)
        if self._common is None:
            return leading_axes(rows.scaled[:, places])
        if self._axes is None:
            self._axes = leading_axes(self._common.scaled[:, places])
        return self._axes

    def _choice(self, spec: MetaModelSpec, rows: Rows, axes: FloatArray, names: list[str] | None) -> Choice:
        """The penalties; those of OOD models are chosen once where auxiliary sets are enough to choose them."""
        common = self._common if spec.task == "ood" else None
        if common is None:
            return choose_penalty(self.inputs, rows, self._config, axes=axes, names=names)
        key = ",".join(names or ["all"])
        if key not in self._choices:
            self._choices[key] = choose_penalty(self.inputs, common, self._config, axes=axes, names=names)
        return self._choices[key]

    def _judged_sum(self, rows: Rows, chosen: Choice, axes: FloatArray) -> tuple[float, float] | None:
        """See `judge_sum`; once for all models where auxiliary sets are enough to judge it."""
        if self._common is None:
            return judge_sum(self.inputs, rows, chosen.penalty, self._config, axes=axes)
        if not self._areas:
            self._areas.append(judge_sum(self.inputs, self._common, chosen.penalty, self._config, axes=axes))
        return self._areas[0]


def _with_notes(model: MetaModel, notes: dict[str, Any]) -> MetaModel:
    return replace(model, notes={**model.notes, **notes})
