"""Scores as a function of batches that are dicts of NumPy arrays, as Ray Data and others hand them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import is_pixels
from ..errors import DataError
from .results import is_number
from .scorer import Scorer

NO_PREDICTION = -1
"""Stands for the prediction of a sample that could not be scored."""

Arrays = Mapping[str, NDArray[Any]]


class BatchScorer:
    """Scores batches of named arrays; a bundle is read once, when the object is made.

    It is what `map_batches` of Ray Data takes: the class, with a bundle as the argument of its constructor, so that
    each actor has its own. It can be pickled; the copy reads the bundle again where it arrives.

    Attributes:
        scorer: what it works with.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        inputs: str | Sequence[str] = "image",
        keep: Sequence[str] = (),
        raw: bool = True,
        explain: int = 0,
        **load: Any,
    ) -> None:
        """Reads a bundle.

        Args:
            bundle: its file, which every worker must see.
            inputs: the array of a batch that has the samples; several are keyword inputs of the model.
            keep: arrays of a batch that its results have, too, such as ids.
            raw: samples are as the data of the bundle were before their preprocessing, which they go through: pixels
                (N, H, W) or (N, H, W, C) uint8, an array each where sizes differ, numbers, or texts. Otherwise they are
                as the model takes them.
            explain: how many of the strongest drivers of each score to name.
            load: other arguments of `Scorer.load`: `trust_code`, `device`, `alpha`, `weights`, ...

        Raises:
            DataError: `keep` names a column of the results.
            GradscoreError: as `Scorer.load` says.
        """
        self._again = partial(type(self), bundle, inputs=inputs, keep=keep, raw=raw, explain=explain, **load)
        self._inputs, self._keep, self._raw, self._explain = inputs, list(keep), raw, explain
        self.scorer = Scorer.load(bundle, **load)
        taken = [name for name in self._keep if name in self.columns]
        if taken:
            raise DataError(f"keep: results have a column {taken[0]!r} of their own; rename that of the batch")

    def __reduce__(self) -> tuple[partial[BatchScorer], tuple[()]]:
        """What it was made of: models and thresholds are not pickled."""
        return self._again, ()

    @property
    def columns(self) -> list[str]:
        """The names of the arrays of a result, but for those that are kept."""
        return self.scorer.columns(explain=self._explain)[1:]

    def __call__(self, batch: Arrays) -> dict[str, NDArray[Any]]:
        """Scores a batch.

        Args:
            batch: arrays (N, ...) by name.

        Returns:
            The arrays that are kept, then those of `Scorer` (N,) without `sample_id`: `prediction` int64 (-1 where a
            sample could not be scored), figures float64, the rest text. Types do not depend on what is in a batch.

        Raises:
            DataError: an array is lacking, or the samples have another form than the bundle's.
            ModelError: the model cannot take the samples.
        """
        several = [self._inputs] if isinstance(self._inputs, str) else list(self._inputs)
        lacking = [name for name in (*several, *self._keep) if name not in batch]
        if lacking:
            raise DataError(f"the batch has no array {lacking[0]!r}; wanted one of its own, {', '.join(batch)}")
        arrays = {name: batch[name] for name in several}
        is_empty = not len(next(iter(arrays.values())))
        table = (
            self.scorer.nothing(explain=self._explain)
            if is_empty
            else self.scorer(self._given(arrays), raw=self._raw, explain=self._explain)
        )
        kept = {name: np.asarray(batch[name]) for name in self._keep}
        return {**kept, **{name: _values(name, table) for name in self.columns}}

    def _given(self, arrays: Arrays) -> Any:
        if not isinstance(self._inputs, str):
            return dict(arrays)
        (values,) = arrays.values()
        are_images = self._raw and len(self.scorer.input_shape) == 3
        # Texts, and images of different sizes, come one by one.
        if values.dtype.kind in "OU":
            return [_with_channel(each) if are_images else each for each in values]
        return np.stack([*map(_with_channel, values)]) if are_images and len(values) else values


def _with_channel(sample: Any) -> Any:
    """Grey pixels (H, W) as an image (H, W, 1); anything else as it is."""
    return sample[..., None] if is_pixels(sample) and sample.ndim == 2 else sample


def _values(name: str, table: pd.DataFrame) -> NDArray[Any]:
    if name == "prediction":
        return np.asarray(table[name].astype("Int64").fillna(NO_PREDICTION), dtype=np.int64)
    return np.asarray(table[name], dtype=np.float64 if is_number(name) else np.str_)
