"""What decides on a sample: a meta model, or a baseline in its place, with calibration scores and a threshold.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from ..data import CALIBRATION, FIT, TEST
from ..errors import BundleError, EvaluationError
from ..meta import Inputs, MetaModel, read_notes
from ..store import RunFolder
from ..system import FloatArray, closest
from .conformal import Threshold, threshold

DETECTORS = ("wrong", "ood")
"""What a bundle can tell: that a prediction is wrong, and that a sample is out of distribution."""

PROTOCOL = "baseline"
"""Stands for the protocol of a detector that no meta model decides."""

PROTOCOLS = ("known", "auxiliary", "in_dist_only")
"""Protocols with one OOD model for everything, the preferred one first."""


@dataclass(frozen=True, kw_only=True)
class BaselineScore:
    """A baseline in the place of a meta model, for those whose report says that it does better.

    Attributes:
        name: its name in the table of an evaluation, such as `energy` or `knn`.
        inputs: what makes it; it was fitted with the meta models.
    """

    name: str
    inputs: Inputs
    kind: Literal["score"] = "score"

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """The scores (N,) of the rows of a feature table, higher = more likely wrong or OOD."""
        return self.inputs.score_table(frame)[self.name].to_numpy(dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class CalibratedScore:
    """A meta model, or a baseline in its place, and when it fires.

    Attributes:
        model: the meta model or the baseline.
        protocol: what it was fitted on, see `gradscore.evaluation.protocols`; `PROTOCOL` of a baseline.
        calibration: (n,) its scores of the calibration samples that are predicted right, ascending.
        threshold: a score above it fires.
    """

    model: MetaModel | BaselineScore
    protocol: str
    calibration: FloatArray
    threshold: Threshold

    def at(self, alpha: float) -> CalibratedScore:
        """The same with another bound of its false-alarm rate; `EvaluationError` as in `threshold`."""
        return replace(self, threshold=threshold(self.calibration, alpha))


class ScoreInputs:
    """What scores are computed from: inputs of meta models, and baselines; each is computed when it is asked for."""

    def __init__(self, inputs: Inputs, frame: pd.DataFrame) -> None:
        self._inputs, self._frame = inputs, frame

    @cached_property
    def table(self) -> pd.DataFrame:
        """All baselines by name, one row for each sample."""
        return self._inputs.score_table(self._frame)

    @cached_property
    def scaled(self) -> FloatArray:
        """The inputs (N, D) of meta models."""
        return self._inputs.scaled(self._frame, self.table)

    def by(self, model: MetaModel | BaselineScore) -> FloatArray:
        """The scores (N,) by a meta model or a baseline."""
        if isinstance(model, BaselineScore):
            return self.table[model.name].to_numpy(dtype=np.float64)
        return model.of_scaled(self.scaled)


def wanted_baselines(given: Iterable[str], inputs: Inputs) -> Mapping[str, BaselineScore]:
    """The baseline of each detector that is to have one.

    Args:
        given: names of baselines for all detectors, or `<detector>=<name>` for one.
        inputs: what makes the scores.

    Raises:
        BundleError: no such baseline or detector, or two for one detector.
    """
    found: dict[str, BaselineScore] = {}
    known = inputs.scores.names
    for text in given:
        detector, equals, name = text.rpartition("=")
        if equals and detector not in DETECTORS:
            raise BundleError(
                f"score {text}: no detector {detector!r}; wanted NAME or one of {', '.join(DETECTORS)}=NAME"
            )
        if name not in known:
            raise BundleError(f"score {text}: this run has no score {name!r}; {closest(name, known)}")
        for each in (detector,) if equals else DETECTORS:
            if each in found:
                raise BundleError(f"score {text}: '{each}' has the score {found[each].name} already; give one for each")
            found[each] = BaselineScore(name=name, inputs=inputs)
    return found


def deployed_protocol(run: RunFolder) -> str | None:
    """The protocol whose OOD model finds best what it was not fitted on; the first there is where nobody knows.

    Judged by the mean AUROC of OOD sets that were left out of its fits, auxiliary ones where there are enough. Both a
    bundle and a check look at this one.

    Args:
        run: a run folder with meta models.

    Returns:
        A name in `PROTOCOLS`, or None without an OOD model.

    Raises:
        StoreError: a damaged model.
    """
    wanted = [name for name in PROTOCOLS if name in run.config.evaluate.protocols]
    there = [name for name in wanted if (run.meta_path / ood_place(name)).is_dir()]
    return max(there, key=lambda name: auroc_left_out(run, name), default=None)


def ood_place(protocol: str) -> str:
    """Where the OOD model of a protocol lies below the meta models of a run."""
    return f"ood/{protocol}/all"


def auroc_left_out(run: RunFolder, protocol: str) -> float:
    """The mean AUROC that the OOD model of a protocol is judged by, minus infinity if it is not judged by sets."""
    notes = read_notes(run.meta_path / ood_place(protocol))
    found = notes.get("judged")
    return float(found) if notes.get("judged_by") == "sets" and isinstance(found, float) else -np.inf


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
    models: Mapping[str, tuple[MetaModel | BaselineScore, str]],
    right: pd.DataFrame,
    *,
    whole: pd.DataFrame | None = None,
    alpha: float,
) -> dict[str, CalibratedScore]:
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
    whole = right if whole is None else whole
    found = {}
    for name, (model, protocol) in models.items():
        scores = holding_for_both(np.sort(model.decision(right)), np.sort(model.decision(whole)))
        try:
            limit = threshold(scores, alpha / len(models))
        except EvaluationError as error:
            different = "different " if len(right) < len(whole) else ""
            raise EvaluationError(
                f"detector '{name}', calibrated on {different}correctly predicted in-distribution samples: {error}"
            ) from None
        found[name] = CalibratedScore(model=model, protocol=protocol, calibration=scores, threshold=limit)
    return found


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
