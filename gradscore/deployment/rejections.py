"""What a bundle rejects of the samples that its run reports: at its own thresholds, all detectors together.

None of them fitted what decides: of an OOD set that did (protocol `known`), the other half counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..data import CALIBRATION, TEST
from ..evaluation import MetaModelSpecs, places_of_models
from ..store import RunFolder
from ..system import BoolArray
from .bundle import RIGHT, WRONG, Rejections
from .calibration import CalibratedScore, ScoreInputs

ROWS_AT_A_TIME = 2**16


def measured_rejections(
    run: RunFolder, detectors: Mapping[str, CalibratedScore], specs: MetaModelSpecs, *, protocol: str | None
) -> list[Rejections]:
    """What is rejected of the samples that a run reports.

    Args:
        run: a finished run folder.
        detectors: by name.
        specs: of the run, which say what fitted.
        protocol: of the OOD model; None without one.

    Returns:
        Of OOD sets, of wrong predictions, and of good samples unless they set the thresholds.
    """
    splits = {info.name: info for info in run.splits()}
    label = places_of_models(protocol).get("ood")
    reported = next((spec.reported for spec in specs.specs if spec.label == label), {})
    found = []
    for name, info in splits.items():
        if info.is_reported_ood:
            fires = _fires(run, name, detectors)
            fires = fires[reported.get(info.dataset_name, {}).get(name, np.full(len(fires), fill_value=True))]
            found.append(_counted(info.dataset_name, fires, group=info.group))
    if TEST in splits:
        fires, correct = _fires(run, TEST, detectors), run.read(TEST, ["correct"])["correct"]
        right, wrong = (np.asarray(correct.eq(each).fillna(False), dtype=np.bool_) for each in (True, False))
        found += [_counted(WRONG, fires[wrong]), *([_counted(RIGHT, fires[right])] if CALIBRATION in splits else [])]
    return [each for each in found if each.samples]


def _fires(run: RunFolder, split: str, detectors: Mapping[str, CalibratedScore]) -> BoolArray:
    """Which samples (N,) of a split any detector rejects."""
    inputs = next(iter(detectors.values())).model.inputs
    found = []
    for rows in run.blocks(split, rows=ROWS_AT_A_TIME):
        scores = ScoreInputs(inputs, rows)
        found.append(np.any([scores.by(each.model) > each.threshold.value for each in detectors.values()], axis=0))
    return np.concatenate(found)


def _counted(what: str, fires: BoolArray, *, group: str | None = None) -> Rejections:
    return Rejections(what=what, group=group, rejected=int(fires.sum()), samples=len(fires))
