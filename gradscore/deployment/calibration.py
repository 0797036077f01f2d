"""From meta models and calibration samples to detectors whose joint false-alarm rate is bounded.

The promise: of new in-distribution samples that are predicted right, at most a share alpha is rejected, on average over
calibrations. Every detector is calibrated on the calibration samples that are predicted right, with an equal part of
alpha; given how many these are, they and a new one that is predicted right are exchangeable, so each detector rejects
at most its part (see `conformal`), and together they reject at most alpha.

Copies among the calibration samples mean one of two things. New samples come again as often (blank images, rows of a
few categories): then all samples are exchangeable with a new one, and those without copies are not. Or somebody put the
same samples in twice: then it is the other way round. Nothing tells which, so detectors are calibrated for both; for a
mixture of the two nothing is promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data import CALIBRATION, FIT, TEST
from ..errors import EvaluationError
from ..meta import MetaModel
from ..store import RunFolder
from ..system import FloatArray
from .baseline import Baseline
from .bundle import Detector
from .conformal import threshold


@dataclass(frozen=True, kw_only=True)
class CalibrationSamples:
    """The calibration samples of a run that have a label.

    Attributes:
        apart: their feature table, each content once and none that is also among those that fit.
        whole: the feature table of all of them.
        notices: what their user should know.
    """

    apart: pd.DataFrame
    whole: pd.DataFrame
    notices: list[str]


def predicted_right(frame: pd.DataFrame) -> pd.DataFrame:
    """The labelled samples of a feature table that are predicted right."""
    return frame[frame["correct"].to_numpy(dtype=bool)].reset_index(drop=True)


def calibration_samples(run: RunFolder) -> CalibrationSamples:
    """The calibration samples of a run that have a label.

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
    fits = pd.Series(data=False, index=frame.index)
    if split == TEST:
        notices.append(
            f"calibrated on samples of {TEST}, since data.in_dist.calibration is not set: use other samples to measure "
            "how often it rejects"
        )
    else:
        fits = frame["content_hash"].isin(run.read(FIT, columns=["content_hash"])["content_hash"])
        if fits.any() and fits.all():
            raise EvaluationError(
                f"{run.path}: all {len(fits)} samples of {split} are copies of samples of {FIT}, and thresholds that "
                f"hold for new samples need samples that fitted nothing; give others as data.{split}, and extract again"
            )
    labelled = frame["correct"].notna()
    if not (labelled & ~fits).any():
        raise EvaluationError(
            f"{run.path}: none of the {int((~fits).sum())} samples of {split} has a label, so it is unknown which are "
            "predicted right, and thresholds are calibrated on those; give labelled samples as "
            "data.in_dist.calibration, and extract again"
        )
    if not labelled.all():
        notices.append(
            f"{int((~labelled).sum())} of {len(frame)} calibration samples were left out because they have no label: "
            "the bound of the rate holds for new samples like those that have one"
        )
    whole = frame[labelled]
    apart = whole[~fits[labelled]].drop_duplicates("content_hash")
    if len(apart) < len(whole):
        notices.append(
            f"{len(whole) - len(apart)} of {len(whole)} calibration samples are copies of others, or of samples of "
            f"{FIT}: thresholds are those that hold with and without them, whether new samples come again as often or "
            "not"
        )
    return CalibrationSamples(apart=apart, whole=whole, notices=notices)


def calibrated(
    models: Mapping[str, tuple[MetaModel | Baseline, str]],
    right: pd.DataFrame,
    *,
    whole: pd.DataFrame | None = None,
    alpha: float,
) -> dict[str, Detector]:
    """Detectors that together reject at most a share `alpha` of the samples that are predicted right.

    Args:
        models: the meta model of each detector, or its baseline, and its protocol.
        right: the feature table of the calibration samples that are predicted right, each content once.
        whole: that of all that are predicted right, where some contents are there several times.
        alpha: bound of the rate, on average over calibrations.

    Raises:
        EvaluationError: `alpha` is out of range, or there are too few samples for it; the message says how many are
            needed.
    """
    return {
        name: _calibrated(
            name, model, protocol, right=right, whole=right if whole is None else whole, alpha=alpha / len(models)
        )
        for name, (model, protocol) in models.items()
    }


def _calibrated(
    name: str,
    model: MetaModel | Baseline,
    protocol: str,
    *,
    right: pd.DataFrame,
    whole: pd.DataFrame,
    alpha: float,
) -> Detector:
    scores = holding_for_both(np.sort(model.decision(right)), np.sort(model.decision(whole)))
    try:
        limit = threshold(scores, alpha)
    except EvaluationError as error:
        different = "different " if len(right) < len(whole) else ""
        raise EvaluationError(
            f"detector '{name}', calibrated on {different}correctly predicted in-distribution samples: {error}"
        ) from None
    return Detector(model=model, protocol=protocol, calibration=scores, threshold=limit)


def holding_for_both(apart: FloatArray, whole: FloatArray) -> FloatArray:
    """Calibration scores whose p-values, and so thresholds, hold for new samples like either of two sets.

    At each level k / (n + 1) the threshold is the higher one of the two.

    Args:
        apart: (n,) ascending.
        whole: (m,) ascending, m of n at least.

    Returns:
        (n,) ascending.
    """
    n, m = len(apart), len(whole)
    ranks = np.arange(1, n + 1) * (m + 1) // (n + 1)
    return np.maximum(apart, whole[m - ranks][::-1])
