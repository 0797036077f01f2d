"""The baselines from penultimate features, fitted on in-distribution samples of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..columns import penultimate_columns
from ..data import FIT
from ..errors import MissingExtraError
from ..scores import Score, fit_detectors
from ..store import RunFolder, read_head


@dataclass(frozen=True)
class FeatureBaselines:
    """Scores of penultimate features, and why there are none where they could be.

    Attributes:
        scores: name -> score of a feature table's penultimate columns (N, D).
        notice: a sentence for the reader, or nothing.
    """

    scores: Mapping[str, Score] = field(default_factory=dict)
    notice: str = ""

    def of(self, name: str, frame: pd.DataFrame) -> NDArray[np.float64]:
        """The score called `name` of the rows of a feature table, (N,) float64."""
        return self.scores[name](frame[penultimate_columns(frame.columns)].to_numpy(dtype=np.float64))


def fit_feature_baselines(run: RunFolder, read: Callable[[str], pd.DataFrame]) -> FeatureBaselines:
    """Fits them on `in_dist.fit` without samples whose content is in any other split that is not auxiliary.

    Classes are the labels, or predictions where there is none.

    Args:
        run: the run folder.
        read: reads the feature table of a split.

    Returns:
        The scores; none for a run without penultimate features, none and a notice without the extra `baselines`.

    Raises:
        EvaluationError: too few samples, or values that are not finite.
        StoreError: a damaged file.
    """
    frame = read(FIT)
    columns = penultimate_columns(frame.columns)
    if not columns:
        return FeatureBaselines()
    others = [info.name for info in run.splits() if info.name != FIT and not info.auxiliary]
    elsewhere = {value for name in others for value in read(name)["content_hash"]}
    frame = frame[~frame["content_hash"].isin(elsewhere)]
    classes = frame["label"].where(frame["label"] >= 0, frame["prediction"])
    try:
        return FeatureBaselines(fit_detectors(frame[columns].to_numpy(dtype=np.float64), classes, read_head(run.path)))
    except MissingExtraError as error:
        return FeatureBaselines(notice=str(error))
