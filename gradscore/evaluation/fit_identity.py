"""What a meta model was fitted with, so that it never scores samples it was fitted on.

Settings that decide which samples fit (`evaluate.seed`, `auxiliary`) can change after a fit. A fitted model therefore
carries the identity of its fit in its notes, and whatever uses it compares that with what would be fitted now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..data import BANK, FIT
from ..errors import EvaluationError
from ..meta import Inputs, MetaModel, balanced_weights
from ..store import RunFolder, differences, package_versions
from ..system import BoolArray, Influence, settings_of, sha256
from .protocols import MetaModelSpec, MetaModelSpecs

NOTE = "fitted_on"
"""The note of a meta model that holds the identity of its fit."""

FITTED_WITH = "fitted_with"
"""The note that holds the versions of packages a meta model was fitted with."""

LABEL = "label"
"""The entry of that identity which says what the model is for: `<task>/<protocol>/<name>`."""

_SHOWN = 3


class FitIdentities:
    """The identities of the fits of a run; tables are read and hashed once.

    Args:
        run: a finished run folder.
        found: the meta models that its configuration asks for.
    """

    def __init__(self, run: RunFolder, found: MetaModelSpecs) -> None:
        self._run = run
        self._specs = {spec.label: spec for spec in found.specs}
        self._common = found.common
        self._all = [*found.specs, *([found.common] if found.common is not None else [])]
        self._rows: dict[str, tuple[BoolArray, list[str]]] = {}  # which rows fit any model, and these as text
        self._tables: dict[str, str] = {}
        self._shared = [info.name for info in run.splits() if info.name in (FIT, BANK)]

    def of(self, spec: MetaModelSpec) -> dict[str, Any]:
        """The identity of a spec's fit: name; hashes of its samples, their kinds, weights and features; settings."""
        splits = [split for split, mask in spec.fit.items() if mask.any()]
        target = np.concatenate([spec.positive[split][spec.fit[split]] for split in splits])
        identity: dict[str, Any] = {
            LABEL: spec.label,
            "samples": {split: self._samples(split, spec) for split in splits},
            "positives": sha256(target.tobytes()),
            "features": {split: self._table(split) for split in dict.fromkeys([*self._shared, *splits])},
        }
        if spec.has_two_classes:
            sets = np.concatenate([[split] * int(spec.fit[split].sum()) for split in splits])
            identity["weights"] = sha256(balanced_weights(target, sets).tobytes())
            settings = settings_of(self._run.config.meta, Influence.MODELS)
            identity["meta"] = settings if spec.task == "ood" else {**settings, "ood": None}
        if self._common is not None:
            # Axes and penalties come of these samples, and what a model of `in_dist_only` is judged by.
            shared = [split for split, mask in self._common.fit.items() if mask.any()]
            identity["common"] = {split: self._samples(split, self._common) for split in shared}
        return identity

    def noted(self, model: MetaModel, spec: MetaModelSpec) -> MetaModel:
        """The model of a spec with the identity of its fit in its notes."""
        return replace(model, notes={**model.notes, NOTE: self.of(spec), FITTED_WITH: package_versions()})

    def is_current(self, label: str, model: MetaModel) -> bool:
        """Whether the same versions of packages would fit the model to the same samples with the same settings."""
        try:
            self.check(label, model)
        except EvaluationError:
            return False
        return model.notes.get(FITTED_WITH) == package_versions()

    def asks_for(self, label: str) -> bool:
        """Whether the configuration asks for a model of this name, `<task>/<protocol>/<name>`."""
        return label in self._specs

    def load(self, label: str, inputs: Inputs) -> MetaModel:
        """Reads a model of the run that was fitted on what would be fitted on now; see `check`.

        Args:
            label: `<task>/<protocol>/<name>`.
            inputs: what makes the inputs of the run's models.

        Raises:
            EvaluationError: it was fitted on other samples or with other settings; the message says what differs.
            StoreError: a file is missing or damaged.
        """
        model = MetaModel.load(self._run.meta_path / label, inputs)
        self.check(label, model)
        return model

    def check(self, label: str, model: MetaModel) -> None:
        """Makes sure that a model of the run was fitted on what would be fitted on now.

        Raises:
            EvaluationError: it was fitted on other samples or with other settings; the message says what differs.
        """
        folder = self._run.meta_path / label
        before = model.notes.get(NOTE)
        advice = f"run `gradscore fit-meta {self._run.path}` again"
        if not isinstance(before, Mapping):
            raise EvaluationError(f"{folder}: this meta model does not say what it was fitted on; {advice}")
        found = differences(before, json.loads(json.dumps(self.of(self._specs[label]))))
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise EvaluationError(
                f"{folder}: this meta model was fitted with other samples, features or settings than the run has now "
                f"({'; '.join(found[:_SHOWN])}{more}), so it may have seen what is reported; {advice}"
            )

    def _samples(self, split: str, spec: MetaModelSpec) -> str:
        if split not in self._rows:
            fits = np.logical_or.reduce([each.fit[split] for each in self._all if split in each.fit])
            frame = self._run.read(split, columns=["sample_id", "content_hash"], rows=fits)
            rows = [json.dumps(row) for row in frame.itertuples(index=False, name=None)]
            self._rows[split] = fits, rows
        fits, rows = self._rows[split]
        chosen = (row for row, is_chosen in zip(rows, spec.fit[split][fits], strict=True) if is_chosen)
        return sha256("\n".join(chosen).encode())

    def _table(self, split: str) -> str:
        if split not in self._tables:
            self._tables[split] = self._run.table_sha256(split)
        return self._tables[split]


def fit_label(model: MetaModel) -> str:
    """What a model says it was fitted for, `<task>/<protocol>/<name>`; empty if it does not say."""
    identity = model.notes.get(NOTE)
    return str(identity.get(LABEL, "")) if isinstance(identity, Mapping) else ""
