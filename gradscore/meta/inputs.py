"""The inputs of meta models: what they make of the columns of a feature table, and on which scale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..baselines import BASELINES, OVER_AUGMENTATIONS, FittedBaselines, Samples, plain_name
from ..columns import (
    COSINE,
    META_COLUMNS,
    NORM,
    RATE,
    augmentations_of,
    feature_columns,
    logit_columns,
    penultimate_columns,
)
from ..errors import EvaluationError, StoreError
from ..statistics import STATISTICS
from ..system import BoolArray, FloatArray, are_texts
from .files import read_model, write_model
from .rounding import Twice, are_rounding, widening
from .scaling import LIMIT, RobustLogScaler, check_finite

OF_GRADIENTS = ("gradients", "columns")
"""The groups of inputs that share the penalty of gradients; those of the others, all scores, share another."""

SCORE_PREFIX = "score/"
"""Start of the names of inputs that are scores."""

Group = Literal["gradients", "columns", "logits", "penultimate", "neighbours", "augmentations"]
"""Where an input comes from: statistics of gradients, `features.columns`, or a score of what else is known."""

BLOCK = 8192
"""Rows that are worked on at a time: ten thousand features of them take 0.6 GB."""

_BOUNDED = (f"/{COSINE}", f"/{RATE}")


def samples_of(frame: pd.DataFrame) -> Samples:
    """What a feature table says of its samples beside their gradients."""
    content = frame["content_hash"].to_numpy(dtype=np.str_) if "content_hash" in frame else None
    augmentations = {augmentation: _look(frame, augmentation) for augmentation in augmentations_of(frame.columns)}
    plain = _look(frame, None)
    return Samples(logits=plain.logits, penultimate=plain.penultimate, augmentations=augmentations, content=content)


def _look(frame: pd.DataFrame, augmentation: str | None) -> Samples:
    penultimate = penultimate_columns(frame.columns, augmentation=augmentation)
    return Samples(
        logits=_array(frame[logit_columns(frame.columns, augmentation=augmentation)]),
        penultimate=_array(frame[penultimate]) if penultimate else None,
    )


def _array(columns: pd.DataFrame) -> FloatArray:
    """(N, columns), samples one after the other in memory: sums along a sample then have one order, however large N."""
    return np.ascontiguousarray(columns.to_numpy(dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Makes the inputs of meta models, all of one run, and scales them by what is usual.

    Attributes:
        columns: the columns of a feature table that it looks at.
        names: of the inputs, D of them.
        scaling: `floor`, `centre` and `spread` (D,) of `RobustLogScaler`, those of ordinary samples.
        scores: the scores among them.
        left_out: names of inputs that are none, since they hold little but rounding.
    """

    columns: list[str]
    names: list[str]
    scaling: Mapping[str, FloatArray]
    scores: FittedBaselines
    left_out: Sequence[str] = ()

    @classmethod
    def fit(cls, ordinary: pd.DataFrame, scores: FittedBaselines, *, twice: Twice | None = None) -> Self:
        """Learns the scale from ordinary samples.

        Args:
            ordinary: the feature table of in-distribution samples, with their content hashes if a bank holds some.
            scores: the scores that are inputs too.
            twice: samples that were computed twice. Spreads are made wide enough for what these move by, and inputs of
                which nothing is left then are rounding and left out.

        Raises:
            EvaluationError: no samples, no feature and no logit column, nothing but constants or rounding, or a value
                not finite.
        """
        table = _raw_inputs(ordinary, scores.table(samples_of(ordinary))[scores.inputs])
        scaler = RobustLogScaler(logarithmic(list(table.columns))).fit(table)
        if not scaler.spread_.any():
            raise EvaluationError("fit: every feature is constant; nothing to tell the samples apart by")
        whole = cls(
            columns=_columns(ordinary),
            names=list(table.columns),
            scaling={"floor": scaler.floor_, "centre": scaler.centre_, "spread": scaler.spread_},
            scores=scores,
        )
        if twice is None:
            return whole
        once, again = (whole.scaled(each) for each in twice.usable)
        wider = widening(once, again, unit=twice.unit)
        scaler.spread_ = whole.scaling["spread"] * wider
        rounding = are_rounding(scaler.transform(table), wider)
        if not scaler.spread_[~rounding].any():
            raise EvaluationError("fit: every feature is constant or rounding; nothing to tell the samples apart by")
        names = np.array(whole.names, dtype=np.str_)
        scaling = {**whole.scaling, "spread": scaler.spread_}
        return replace(
            whole,
            names=names[~rounding].tolist(),
            scaling={name: values[~rounding] for name, values in scaling.items()},
            left_out=names[rounding].tolist(),
        )

    @property
    def groups(self) -> list[Group]:
        """The group of each input."""
        return [group_of(name) for name in self.names]

    @cached_property
    def of_gradients(self) -> BoolArray:
        """(D,) which inputs come from gradients; the others are scores."""
        return np.array([group in OF_GRADIENTS for group in self.groups], dtype=bool)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that was learned, but for hashes of content."""
        digest = hashlib.sha256("\n".join([*self.columns, *self.names, str(self.scores.description())]).encode())
        for name, values in sorted({**self.scaling, **self.scores.arrays(content=False)}.items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def score_table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """All scores of the rows of a feature table, inputs or not: (N, scores) float64.

        Raises:
            EvaluationError: the columns differ from those that were fitted on, or a value is not finite.
        """
        ordered = self._in_order(frame)
        starts = range(0, max(len(frame), 1), BLOCK)
        parts = [self.scores.table(samples_of(ordered.iloc[start : start + BLOCK])) for start in starts]
        return pd.concat(parts, ignore_index=True)

    def scaled(self, frame: pd.DataFrame, scores: pd.DataFrame | None = None) -> FloatArray:
        """The inputs (N, D) of a feature table in spreads from the centre of ordinary samples, within +-`LIMIT`.

        Args:
            frame: the feature table.
            scores: its `score_table`, if it is known already.

        Raises:
            EvaluationError: the columns differ from those that were fitted on, or a value is not finite.
        """
        ordered = self._in_order(frame)
        table = self.score_table(ordered) if scores is None else scores
        scaler = self._scaler()
        scaled = np.empty((len(frame), len(self.names)))
        for start in range(0, len(frame), BLOCK):
            rows = slice(start, start + BLOCK)
            raw = _raw_inputs(ordered.iloc[rows], table.iloc[rows][self.scores.inputs])
            missing = [name for name in self.names if name not in raw]
            if missing:
                raise EvaluationError(
                    f"the meta model looks at {_listed(missing)}, which its columns do not give; run fit-meta again"
                )
            scaled[rows] = scaler.transform(raw[self.names])
        return scaled

    def save(self, folder: str | Path) -> None:
        """Writes it to a folder, as arrays and JSON."""
        names = {"columns": self.columns, "names": self.names, "left_out": list(self.left_out)}
        description = {**names, **self.scores.description()}
        write_model(Path(folder), {**self.scaling, **self.scores.arrays()}, description)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads what `save` wrote; every sample gets the same inputs to the bit.

        Raises:
            StoreError: a file is missing or damaged.
        """
        arrays, description = read_model(Path(folder))
        columns, names, left_out = (description.get(name) for name in ("columns", "names", "left_out"))
        if not are_texts(columns) or not are_texts(names) or not are_texts(left_out):
            raise StoreError(f"{folder}: the inputs of the meta models are incomplete; run fit-meta again")
        scaling: dict[str, NDArray[Any]] = {
            name: arrays[name] for name in ("floor", "centre", "spread") if name in arrays
        }
        if len(scaling) != 3 or {values.shape for values in scaling.values()} != {(len(names),)}:
            raise StoreError(f"{folder}: the inputs of the meta models are incomplete; run fit-meta again")
        scores = FittedBaselines.restored(arrays, description)
        return cls(columns=columns, names=names, scaling=scaling, scores=scores, left_out=left_out)

    def _scaler(self) -> RobustLogScaler:
        scaler = RobustLogScaler(logarithmic(self.names), LIMIT)
        scaler.n_features_in_ = len(self.names)
        scaler.floor_, scaler.centre_, scaler.spread_ = (self.scaling[name] for name in ("floor", "centre", "spread"))
        return scaler

    def _in_order(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame with its columns in the order that was fitted on."""
        got = _columns(frame)
        if got == self.columns:
            return frame
        there, wanted = set(got), set(self.columns)
        missing = [name for name in self.columns if name not in there]
        unexpected = [name for name in got if name not in wanted]
        if missing or unexpected:
            raise EvaluationError(
                f"features differ from those the meta model was fitted on: missing {_listed(missing)}, "
                f"unexpected {_listed(unexpected)}; extract with the same settings, or run fit-meta again"
            )
        return frame[[*frame.columns.intersection(["content_hash"]), *self.columns]]


def group_of(name: str) -> Group:
    """The group of the input called `name`."""
    if not name.startswith(SCORE_PREFIX):
        return "columns" if name.endswith((*_BOUNDED, f"/{NORM}")) else "gradients"
    score = name.removeprefix(SCORE_PREFIX)
    needs = BASELINES[plain_name(score)].needs
    return "augmentations" if score.endswith(OVER_AUGMENTATIONS) or needs == "features of augmentations" else needs


def _raw_inputs(frame: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """`gradient_inputs`, and scores."""
    return pd.concat([gradient_inputs(frame), scores.add_prefix(SCORE_PREFIX).set_axis(frame.index)], axis=1)


def gradient_inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """The inputs that come from gradients: features, and shape features of each gradient.

    The shape features of a loss and parameter group are ratios of its statistics to L1 (those with a `ratio` in
    `STATISTICS`) and its L1 over that of the last group of the loss, wherever they are there. A ratio to an L1 of zero
    is zero. What may have either sign, as the mean, is looked at over L1 alone, where that is there.

    Args:
        frame: a feature table with `logit_0` ... and `<loss>/<group>/<statistic>` columns.

    Returns:
        One float64 column per input; the names of ratios end in `<statistic>:l1` or `l1:last`.

    Raises:
        EvaluationError: no feature and no logit column, or a value that is not finite.
    """
    names = feature_columns(frame.columns)
    if not names and not logit_columns(frame.columns):
        raise EvaluationError("features: wanted columns <loss>/<group>/<statistic> or logits, got neither")
    check_finite(frame[names].to_numpy(dtype=np.float64), names)
    columns = {name: frame[name].to_numpy(dtype=np.float64) for name in names}
    shapes = _shapes(columns)
    plain = {name: values for name, values in columns.items() if f"{name}:l1" not in shapes or not _is_signed(name)}
    return pd.DataFrame({**plain, **shapes}, index=frame.index)


def logarithmic(names: Sequence[str]) -> BoolArray:
    """Which inputs are magnitudes over many decades.

    Signed ratios, cosines, rates and scores (logarithms already) are not.
    """
    return np.array([_is_magnitude(name) for name in names], dtype=bool)


def _is_magnitude(name: str) -> bool:
    if name.startswith(SCORE_PREFIX) or name.endswith(_BOUNDED):
        return False
    statistic, _, below = name.rpartition("/")[2].partition(":")
    if statistic not in STATISTICS:
        return True
    return not STATISTICS[statistic].signed if below else STATISTICS[statistic].logarithmic


def _is_signed(name: str) -> bool:
    return STATISTICS[name.rpartition("/")[2]].signed


def _shapes(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    l1_columns = {name.removesuffix("/l1"): values for name, values in columns.items() if name.endswith("/l1")}
    last = {group.split("/", 1)[0]: values for group, values in l1_columns.items()}
    shapes: dict[str, FloatArray] = {}
    there = {name.rpartition("/")[2] for name in columns}
    ratios = {name: STATISTICS[name].ratio for name in STATISTICS if name in there}  # packages of others need not load
    for group, l1 in l1_columns.items():
        for statistic, sign in ratios.items():
            above = columns.get(f"{group}/{statistic}")
            if sign is not None and above is not None:
                shapes[f"{group}/{statistic}:l1"] = _ratio(sign * above, l1)
        reference = last[group.split("/", 1)[0]]
        if reference is not l1:
            shapes[f"{group}/l1:last"] = _ratio(l1, reference)
    return shapes


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        ratio = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return np.clip(ratio, -np.finfo(np.float64).max, np.finfo(np.float64).max)


def _columns(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in META_COLUMNS and name != "content_hash"]


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
