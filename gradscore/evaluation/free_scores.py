"""The scores without gradients, fitted on in-distribution samples of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..columns import logit_columns, penultimate_columns
from ..data import BANK, FIT
from ..errors import MissingExtraError
from ..scores import SCORES, Fitted, Ordinary, Samples
from ..store import RunFolder, read_head
from ..system import FloatArray


@dataclass(frozen=True)
class FreeScores:
    """Scores by name, and why there are none where they could be.

    Attributes:
        fitted: from samples to scores.
        notices: sentences for the reader.
    """

    fitted: Mapping[str, Fitted] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def of(self, name: str, frame: pd.DataFrame) -> FloatArray:
        """The score called `name` of the rows of a feature table, (N,) float64."""
        return self.fitted[name](samples_of(frame))


def samples_of(frame: pd.DataFrame) -> Samples:
    """What a feature table says of its samples beside their gradients."""
    penultimate = penultimate_columns(frame.columns)
    return Samples(
        logits=frame[logit_columns(frame.columns)].to_numpy(dtype=np.float64),
        penultimate=frame[penultimate].to_numpy(dtype=np.float64) if penultimate else None,
    )


def fit_free_scores(
    run: RunFolder, read: Callable[[str], pd.DataFrame], *, left_out: Collection[str] = ()
) -> FreeScores:
    """Fits them on `in_dist.fit` without samples whose content is in any other split that is not auxiliary.

    Copies of samples of the bank stay. Classes are the labels, or predictions where there is none.

    Args:
        run: the run folder.
        read: reads the feature table of a split.
        left_out: content hashes of other samples that do not fit.

    Returns:
        The scores; those of penultimate features only for a run that has these, and a notice without their package.

    Raises:
        EvaluationError: too few samples, or values that are not finite.
        StoreError: a damaged file.
    """
    frame = read(FIT)
    others = [info.name for info in run.splits() if info.name not in (FIT, BANK) and not info.auxiliary]
    elsewhere = {value for name in others for value in run.read(name, ["content_hash"])["content_hash"]}
    elsewhere |= set(left_out)
    frame = frame[~frame["content_hash"].isin(elsewhere)]
    samples = samples_of(frame)
    ordinary = Ordinary(
        samples=samples,
        classes=frame["label"].where(frame["label"] >= 0, frame["prediction"]).to_numpy(dtype=np.int64),
        head=None if samples.penultimate is None else read_head(run.path),
    )
    fitted, notices = {}, []
    for name in SCORES:
        score = SCORES[name]
        if score.needs == "penultimate" and samples.penultimate is None:
            continue
        try:
            fitted[name] = score.fit(ordinary)
        except MissingExtraError as error:
            notices.append(str(error))
    return FreeScores(fitted, list(dict.fromkeys(notices)))
