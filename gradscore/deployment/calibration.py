"""From meta models and calibration samples to detectors whose joint false-alarm rate is bounded.

The promise: of new in-distribution samples that are predicted right, at most a share alpha is rejected, on average over
calibrations. Every detector is calibrated on the calibration samples that are predicted right, with an equal part of
alpha; given how many these are, they and a new one that is predicted right are exchangeable, so each detector rejects
at most its part (see `conformal`), and together they reject at most alpha.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..data import CALIBRATION, FIT, TEST
from ..errors import EvaluationError
from ..meta import MetaModel
from ..store import RunFolder
from .bundle import Detector
from .conformal import threshold
from .single_score import SingleScore


def calibration_frame(run: RunFolder) -> tuple[pd.DataFrame, list[str]]:
    """The calibration samples of a run that are predicted right, and what their user should know.

    Raises:
        EvaluationError: see `labelled_calibration_frame`.
        StoreError: the run is not finished or damaged.
    """
    frame, notices = labelled_calibration_frame(run)
    return predicted_right(frame), notices


def predicted_right(frame: pd.DataFrame) -> pd.DataFrame:
    """The labelled samples of a feature table that are predicted right."""
    return frame[frame["correct"].to_numpy(dtype=bool)].reset_index(drop=True)


def labelled_calibration_frame(run: RunFolder) -> tuple[pd.DataFrame, list[str]]:
    """The calibration samples of a run that have a label, and what their user should know.

    Each content counts once: copies have one score, so they would stand for draws that were never made.

    Raises:
        EvaluationError: all calibration samples are copies of samples of the fit, or none has a label, so that none is
            known to be predicted right.
        StoreError: the run is not finished or damaged.
    """
    there = {info.name for info in run.splits()}
    split = CALIBRATION if CALIBRATION in there else TEST
    if split not in there:
        raise EvaluationError(
            f"{run.path}: neither data.in_dist.calibration nor data.in_dist.test is set, and thresholds are calibrated "
            "on such samples; give one of them, and extract again"
        )
    frame, notices = run.read(split), []
    if split == TEST:
        notices.append(
            f"calibrated on samples of {TEST}, since data.in_dist.calibration is not set: use other samples to measure "
            "how often it rejects"
        )
    else:
        copies = frame["content_hash"].isin(run.read(FIT, columns=["content_hash"])["content_hash"])
        frame = frame[~copies]
        if copies.any():
            notices.append(f"{int(copies.sum())} calibration samples were left out as copies of samples of {FIT}")
        if copies.any() and copies.all():
            raise EvaluationError(
                f"{run.path}: all {len(copies)} samples of {split} are copies of samples of {FIT}, and thresholds that "
                f"hold for new samples need samples that fitted nothing; give others as data.{split}, and extract again"
            )
    labelled = frame["correct"].notna()
    if not labelled.any():
        raise EvaluationError(
            f"{run.path}: none of the {len(frame)} samples of {split} has a label, so it is unknown which are "
            "predicted right, and thresholds are calibrated on those; give labelled samples as "
            "data.in_dist.calibration, and extract again"
        )
    if not labelled.all():
        notices.append(
            f"{int((~labelled).sum())} of {len(frame)} calibration samples were left out because they have no label: "
            "the bound of the rate holds for new samples like those that have one"
        )
    frame = frame[labelled]
    again = frame["content_hash"].duplicated()
    if again.any():
        notices.append(
            f"{int(again.sum())} of {len(frame)} calibration samples were left out as copies of other calibration "
            "samples: a threshold needs samples that were drawn one by one"
        )
        frame = frame[~again]
    return frame, notices


def calibrated(
    models: Mapping[str, tuple[MetaModel | SingleScore, str]], right: pd.DataFrame, *, alpha: float
) -> dict[str, Detector]:
    """Detectors that together reject at most a share `alpha` of the samples that are predicted right.

    Args:
        models: the meta model of each detector, or its single score, and its protocol.
        right: the feature table of the calibration samples that are predicted right.
        alpha: bound of the rate, on average over calibrations.

    Raises:
        EvaluationError: `alpha` is out of range, or there are too few samples for it; the message says how many are
            needed.
    """
    return {
        name: _calibrated(name, model, protocol, right=right, alpha=alpha / len(models))
        for name, (model, protocol) in models.items()
    }


def _calibrated(
    name: str, model: MetaModel | SingleScore, protocol: str, *, right: pd.DataFrame, alpha: float
) -> Detector:
    scores = np.sort(model.decision(right))
    try:
        limit = threshold(scores, alpha)
    except EvaluationError as error:
        raise EvaluationError(
            f"detector '{name}', calibrated on correctly predicted in-distribution samples: {error}"
        ) from None
    return Detector(model=model, protocol=protocol, calibration=scores, threshold=limit)
