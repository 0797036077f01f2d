"""The inputs of meta models: what they make of the columns of a feature table, and on which scale.

Columns are heavy-tailed: logarithms, and robust centres and widths, make them something that linear models can work
with. Some are none but rounding: computed again, in another batch, they come out as another number.

Inputs and models are stored as plain arrays (safetensors) and JSON, so that loading one never runs code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..baselines import BASELINES, OVER_AUGMENTATIONS, FittedBaselines, NetworkOutputs, plain_name
from ..columns import META_COLUMNS, augmentations_of, feature_columns, logit_columns, penultimate_columns
from ..errors import EvaluationError, StoreError
from ..statistics import STATISTICS
from ..system import BoolArray, FloatArray, parse_document, sha256, some, write_bytes

FORMAT: Literal[11] = 11
ARRAYS = "arrays.safetensors"
DESCRIPTION = "model.json"

BASELINE_PREFIX = "baseline/"
"""Start of the names of inputs that are baselines."""

Group = Literal["gradients", "logits", "penultimate", "neighbours", "augmentations"]
"""Where an input comes from: statistics of gradients, or a baseline of what else is known."""

ROWS_AT_A_TIME = 8192
"""Rows that are worked on at a time: ten thousand features of them take 0.6 GB."""

_ROWS_IN_CACHE = 256
"""Rows that are scaled at a time, in many steps: a thousand inputs of them take 2 MB."""

LIMIT = 10.0
"""Scaled values are clipped to so much on either side of the centre.

That touches 0.5 % of the values of the digits test split and 10 % of those of noise. The AUROC for wrong predictions is
0.923 so, 0.918 with 5, 0.924 with 20 and 0.674 without a limit: heavy tails reach 15,000.
"""

_IQR_OF_NORMAL = 1.3489795003921634
"""Interquartile range of a normal distribution in its standard deviations: twice the quantile at 3/4."""

_CONSTANT = 1e-12
"""Columns of less variation than this are constant, relative to the centre: float64 rounds to 1e-16, and a few thousand
operations lose four digits at most."""

TOLERANCE = 1e-3
"""What an input may move by when a sample is computed again, in its scale among in-distribution samples.

It is what scores may move by. A score is a sum over many inputs, whose rounding is independent, so relative to its own
scale it moves less than they do. In float32, inputs of five networks move by 1e-7 to 1e-5, those that are rounding by
0.05 to 5.
"""

UNITS = 16
"""What an input may move by in units of rounding, where that is more: everything moves by several in bfloat16."""

SHARE = 0.1
"""Of the samples computed twice, the share that may move further.

A mean that happens to be nearly zero does so in one sample of a thousand, which says nothing against its input.
"""

REACHED = 0.99
"""The share of in-distribution samples of which an input that is rounding tells nothing."""


Folder = Path | zipfile.Path
"""Where a model was saved: a folder, or one in an archive."""

Rows = pd.DataFrame | FloatArray
"""Rows of a feature table: a data frame, or the values (N, columns) of the columns that inputs were fitted on."""


class FeatureColumns:
    """The columns of a feature table: where outputs and gradients are, and which inputs of meta models they give.

    One sample is scored in less time than its columns are looked through, so that is done once for many tables. Nor is
    it made a data frame: the rows of a table come as one, or as values (N, columns) float64.

    The inputs that come from gradients are features, and shape features of each gradient. The shape features of a loss
    and parameter group are ratios of its statistics to L1 (those with a `ratio` in `STATISTICS`) and its L1 over that
    of the last group of the loss, wherever they are there. A ratio to an L1 of zero is zero. What may have either sign,
    as the mean, is looked at over L1 alone, where that is there.

    Args:
        columns: with `logit_0` ... and `<loss>/<group>/<statistic>` among them.

    Attributes:
        columns: the names.
        gradients: names of the inputs that come from gradients; those of ratios end in `<statistic>:l1` or `l1:last`.
    """

    def __init__(self, columns: pd.Index) -> None:
        """Looks through the names."""
        self.columns = columns
        names = list(columns)
        places = {name: place for place, name in enumerate(names)}
        self._augmentations = augmentations_of(names)
        self._outputs = [
            [
                [places[name] for name in kind(names, augmentation=augmentation)]
                for kind in (logit_columns, penultimate_columns)
            ]
            for augmentation in (None, *self._augmentations)
        ]
        self._features = feature_columns(names)
        self._places = [places[name] for name in self._features]
        there = {name.rpartition("/")[2] for name in self._features}
        ratios = {name: each.ratio for name, each in STATISTICS.items() if name in there}
        place = {name: number for number, name in enumerate(self._features)}
        l1 = {name.removesuffix("/l1"): number for name, number in place.items() if name.endswith("/l1")}
        last = {group.split("/", 1)[0]: number for group, number in l1.items()}
        found: dict[str, tuple[float, int, int]] = {}
        for group, below in l1.items():
            for statistic, sign in ratios.items():
                above = place.get(f"{group}/{statistic}")
                if sign is not None and above is not None:
                    found[f"{group}/{statistic}:l1"] = sign, above, below
            reference = last[group.split("/", 1)[0]]
            if reference != below:
                found[f"{group}/l1:last"] = 1, below, reference
        self._kept = [number for name, number in place.items() if f"{name}:l1" not in found or not _is_signed(name)]
        self._signs = np.array([sign for sign, _, _ in found.values()], dtype=np.float64)
        self._above = [above for _, above, _ in found.values()]
        self._below = [below for _, _, below in found.values()]
        self.gradients = [*(self._features[number] for number in self._kept), *found]

    def outputs(self, rows: Rows) -> NetworkOutputs:
        """What a feature table with these columns says of its samples beside their gradients."""
        content = None
        if isinstance(rows, pd.DataFrame) and "content_hash" in rows:
            content = rows["content_hash"].to_numpy(dtype=np.str_)
        plain, *others = (
            NetworkOutputs(
                logits=_columns_at(rows, logits),
                penultimate=_columns_at(rows, penultimate) if penultimate else None,
            )
            for logits, penultimate in self._outputs
        )
        return replace(plain, augmentations=dict(zip(self._augmentations, others, strict=True)), content=content)

    def gradient_inputs(self, rows: Rows) -> FloatArray:
        """The inputs (N, D) that come from gradients, of a feature table with these columns.

        Raises:
            EvaluationError: no feature and no logit column, or a value that is not finite.
        """
        if not self._features and not self._outputs[0][0]:
            raise EvaluationError("features: wanted columns <loss>/<group>/<statistic> or logits, got neither")
        values = _columns_at(rows, self._places)
        check_finite(values, self._features)
        above, below = values[:, self._above] * self._signs, values[:, self._below]
        with np.errstate(over="ignore"):
            ratios = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        largest = np.finfo(np.float64).max
        return np.concatenate([values[:, self._kept], np.clip(ratios, -largest, largest)], axis=1)


@lru_cache(maxsize=8)  # a run has one list of columns, of a thousand names and more, in all of its tables
def _features_of(names: tuple[str, ...]) -> FeatureColumns:
    return FeatureColumns(pd.Index(names))


def outputs_of(frame: pd.DataFrame) -> NetworkOutputs:
    """What a feature table says of its samples beside their gradients."""
    return _features_of(tuple(frame.columns)).outputs(frame)


def _columns_at(rows: Rows, places: list[int]) -> FloatArray:
    """The columns of rows that are at these places."""
    return _array(rows.iloc[:, places]) if isinstance(rows, pd.DataFrame) else np.take(rows, places, axis=1)


def _array(columns: pd.DataFrame) -> FloatArray:
    """(N, columns), samples one after the other in memory: sums along a sample then have one order, however large N."""
    return np.ascontiguousarray(columns.to_numpy(dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Logarithm of the magnitude where wanted, then centre and scale that outliers hardly move, then a clip.

    A magnitude column becomes log10 |x|, no smaller than a tenth of the smallest magnitude above zero it was fitted
    on. The centre is the median; the scale is the interquartile range in units of a normal's standard deviation, or
    the standard deviation where that range is zero. Constant columns become zero.

    Attributes:
        floor: (D,) smallest magnitude told apart.
        centre: (D,) subtracted, after the logarithm.
        scale: (D,) divided by; zero marks a constant column.
    """

    floor: FloatArray
    centre: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, table: pd.DataFrame) -> Self:
        """Learns from a table (N, D) of inputs.

        Raises:
            EvaluationError: no samples, or values that are not finite.
        """
        if not len(table):
            raise EvaluationError("scaling: wanted at least one sample to fit on, got none")
        values, names = _array(table), list(table.columns)
        magnitudes = np.abs(values)
        smallest = np.where(magnitudes > 0, magnitudes, np.inf).min(axis=0)
        floor = np.where(np.isfinite(smallest), np.maximum(smallest / 10, np.finfo(np.float64).smallest_subnormal), 1.0)
        levels = _levels(values, names, logarithmic(names), floor)
        low, centre, high = np.quantile(levels, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / _IQR_OF_NORMAL
        least = _CONSTANT * np.maximum(1.0, np.abs(centre))
        deviation = levels.std(axis=0)
        deviation[np.ptp(levels, axis=0) <= least] = 0.0
        return cls(floor=floor, centre=centre, scale=np.where(scale <= least, deviation, scale))

    def scaled(self, values: FloatArray, names: Sequence[str], magnitudes: BoolArray) -> FloatArray:
        """Scaled values (N, D) within +-`LIMIT`.

        Args:
            values: (N, D) of the inputs that were fitted on.
            names: of these.
            magnitudes: (D,) which of them are `logarithmic`.

        Raises:
            EvaluationError: values that are not finite.
        """
        constant = self.scale == 0
        levels = _levels(values, names, magnitudes, self.floor)
        scaled = (levels - self.centre) / np.where(constant, 1.0, self.scale)
        scaled[:, constant] = 0.0
        return np.asarray(np.clip(scaled, -LIMIT, LIMIT), dtype=np.float64)

    def arrays(self) -> dict[str, FloatArray]:
        """The attributes by name."""
        return {name: getattr(self, name) for name in ("floor", "centre", "scale")}


def _levels(values: FloatArray, names: Sequence[str], magnitudes: BoolArray, floor: FloatArray) -> FloatArray:
    check_finite(values, names)
    return np.where(magnitudes, np.log10(np.maximum(np.abs(values), floor)), values)


def check_finite(values: FloatArray, names: Sequence[str]) -> None:
    """Makes sure that all values (N, D) of columns of these names are finite; `EvaluationError` if not."""
    finite = np.isfinite(values)
    if not finite.all():
        bad = (~finite).sum(axis=0)
        first = int(np.flatnonzero(bad)[0])
        others = int((bad > 0).sum()) - 1
        raise EvaluationError(
            f"feature '{names[first]}': {bad[first]} of {len(values)} samples hold values that are not finite"
            + (f", and so do {others} other features" if others else "")
            + "; find the samples in the feature table and leave them out, or leave out the feature"
        )


@dataclass(frozen=True)
class RecomputedRows:
    """The rows of some samples that were computed twice.

    Attributes:
        once: the first time.
        again: the second time, the same samples and columns.
        unit: of rounding: the distance from 1 to the next larger number of the type that the network computes in.
        baselines: those of the three `versions`, if they are known already.
    """

    once: pd.DataFrame
    again: pd.DataFrame
    unit: float
    baselines: Sequence[Mapping[str, FloatArray] | None] = (None, None, None)

    @cached_property
    def versions(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """The first, the second, and the first with rounded logits, of the samples whose values are finite both times.

        Logits may well come out the same twice, and yet the energy of log probabilities be made of their rounding.
        """
        numbers = self.once.select_dtypes(np.float64).columns
        finite = [np.isfinite(each[numbers].to_numpy()).all(axis=1) for each in (self.once, self.again)]
        both = np.logical_and(*finite)
        first, second = (each[both].reset_index(drop=True) for each in (self.once, self.again))
        return first, second, _rounded_otherwise(first, self.unit)


def _nothing_to_tell(what: str, outputs: NetworkOutputs) -> str:
    """Why there is nothing to fit to: the network, where its logits are the same for all samples."""
    logits = outputs.logits
    same = np.ptp(logits, axis=0).max(initial=0.0) <= 1e-6 * np.abs(logits).max(initial=0.0)
    why = f": the network gives all {len(logits)} of them the same logits; check its weights (gradscore doctor)"
    return f"fit: every feature is {what}; nothing to tell the samples apart by{why if same else ''}"


def tolerance(unit: float) -> float:
    """What an input may move by, in its scale among in-distribution samples."""
    return max(TOLERANCE, UNITS * unit)


def widening(once: FloatArray, again: FloatArray, *, unit: float) -> FloatArray:
    """By how much the scales of inputs have to be wider, so that rounding moves none by more than `tolerance`.

    Args:
        once: (n, D) scaled inputs of samples.
        again: (n, D) those of the same samples, computed again.
        unit: of rounding.

    Returns:
        (D,) 1 or more: by what all but `SHARE` of the samples move at most; 1 without samples.
    """
    if not len(once):
        return np.ones(once.shape[1])
    moved = np.quantile(np.abs(again - once), 1 - SHARE, axis=0)
    return np.asarray(np.maximum(1.0, moved / tolerance(unit)), dtype=np.float64)


def _rounded_otherwise(frame: pd.DataFrame, unit: float) -> pd.DataFrame:
    """A feature table whose logits (N, K) are up and down in turns by a unit of rounding."""
    logits = logit_columns(frame.columns)
    turns = np.add.outer(np.arange(len(frame)), np.arange(len(logits))) % 2 * 2 - 1
    return frame.assign(**(frame[logits] * (1 + unit * turns)))


def are_rounding(scaled: FloatArray, wider: FloatArray) -> BoolArray:
    """Which inputs are rounding: those of a wider scale that nearly no sample reaches.

    Others whose rounding shows, as an input that is the same for most samples and tells of a few, keep their place and
    weigh less.

    Args:
        scaled: (N, D) the inputs of in-distribution samples in the wider scales.
        wider: (D,) as `widening` found.
    """
    reached = np.quantile(np.abs(scaled), REACHED, axis=0)
    return np.asarray((wider > 1) & (reached < 1), dtype=np.bool_)


class Description(BaseModel):
    """The JSON beside the arrays; kinds of models add to it.

    Attributes:
        format: of the two files.
        arrays_sha256: checksum of the file of the arrays.
        same: name of an array that is in the file under another one, and that other name.
    """

    format: Literal[11] = FORMAT
    arrays_sha256: str = ""
    same: dict[str, str] = {}


AnyDescription = TypeVar("AnyDescription", bound=Description)


class _Description(Description):
    """What is not arrays of stored inputs."""

    columns: list[str]
    names: list[str]
    left_out: list[str]
    baselines: list[str]
    augmentations: list[str]


@dataclass(frozen=True, kw_only=True)
class MetaInputs:
    """Makes the inputs of meta models, all of one run, and scales them by what is usual.

    Attributes:
        columns: the columns of a feature table that it looks at.
        names: of the inputs, D of them.
        scaling: that of in-distribution samples.
        baselines: those of the run, of which some are inputs.
        left_out: names of inputs that are none, since they hold little but rounding.
    """

    columns: list[str]
    names: list[str]
    scaling: Scaling
    baselines: FittedBaselines
    left_out: Sequence[str] = ()

    @classmethod
    def fit(
        cls,
        in_dist: pd.DataFrame,
        baselines: FittedBaselines,
        *,
        twice: RecomputedRows | None = None,
        table: pd.DataFrame | None = None,
        gradients: FloatArray | None = None,
    ) -> Self:
        """Learns the scale from in-distribution samples.

        Args:
            in_dist: the feature table of in-distribution samples, with their content hashes if a bank holds some.
            baselines: those of the run.
            twice: samples that were computed twice. Spreads are made wide enough for what these move by, and inputs of
                which nothing is left then are rounding and left out.
            table: the baselines of the in-distribution samples, if they are known already.
            gradients: their `gradient_inputs`, if they are known already.

        Raises:
            EvaluationError: no samples, no feature and no logit column, nothing but constants or rounding, or a value
                not finite.
        """
        features = _features_of(tuple(in_dist.columns))
        known = baselines.scores(features.outputs(in_dist)) if table is None else table
        scores = np.column_stack([known[name] for name in baselines.inputs])
        names = [*features.gradients, *(f"{BASELINE_PREFIX}{name}" for name in baselines.inputs)]
        known_gradients = features.gradient_inputs(in_dist) if gradients is None else gradients
        values = pd.DataFrame(np.concatenate([known_gradients, scores], axis=1), columns=names)
        scaling = Scaling.fit(values)
        if not scaling.scale.any():
            raise EvaluationError(_nothing_to_tell("constant", features.outputs(in_dist)))
        whole = cls(columns=_columns(in_dist), names=names, scaling=scaling, baselines=baselines)
        if twice is None:
            return whole
        once, again, other = map(whole.scaled, twice.versions, twice.baselines)
        wider = np.maximum(widening(once, again, unit=twice.unit), widening(once, other, unit=twice.unit))
        scaling = replace(scaling, scale=scaling.scale * wider)
        wide = replace(whole, scaling=scaling).of_known(known_gradients, known)
        rounding = are_rounding(wide, wider)
        if not scaling.scale[~rounding].any():
            raise EvaluationError(_nothing_to_tell("constant or rounding", features.outputs(in_dist)))
        named = np.array(names, dtype=np.str_)
        return replace(
            whole,
            names=named[~rounding].tolist(),
            scaling=Scaling(**{name: values[~rounding] for name, values in scaling.arrays().items()}),
            left_out=named[rounding].tolist(),
        )

    @property
    def groups(self) -> list[Group]:
        """The group of each input."""
        return [group_of(name) for name in self.names]

    @cached_property
    def of_gradients(self) -> BoolArray:
        """(D,) which inputs come from gradients; the others are baselines."""
        return np.array([group == "gradients" for group in self.groups], dtype=bool)

    @cached_property
    def of_scores(self) -> BoolArray:
        """(D,) which inputs are baselines that any model may look at."""
        starts = {f"{BASELINE_PREFIX}{name}" for name in BASELINES if BASELINES[name].starts_only}
        return np.array(
            [group != "gradients" and name not in starts for group, name in zip(self.groups, self.names, strict=True)],
            dtype=bool,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that was learned, but for hashes of content."""
        digest = hashlib.sha256(
            "\n".join(
                [*self.columns, *self.names, str(self.baselines.names), str(self.baselines.augmentations)]
            ).encode()
        )
        for name, values in sorted((self.scaling.arrays() | self.baselines.arrays(content=False)).items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def baseline_scores(self, rows: Rows) -> dict[str, FloatArray]:
        """All baselines of the rows of a feature table by name, inputs or not: (N,) float64 each.

        Raises:
            EvaluationError: the columns differ from those that were fitted on, or a value is not finite.
        """
        ordered, features = self._in_order(rows)
        starts = range(0, max(len(rows), 1), ROWS_AT_A_TIME)
        parts = [self.baselines.scores(features.outputs(ordered[start : start + ROWS_AT_A_TIME])) for start in starts]
        return (
            parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )

    def gradient_inputs(self, rows: Rows) -> FloatArray:
        """The inputs of the rows of a feature table that come from gradients, rounding or not, before they are scaled.

        Raises:
            EvaluationError: the columns differ from those that were fitted on, or a value is not finite.
        """
        ordered, features = self._in_order(rows)
        return features.gradient_inputs(ordered)

    def scaled(self, rows: Rows, baselines: Mapping[str, FloatArray] | pd.DataFrame | None = None) -> FloatArray:
        """The inputs (N, D) of a feature table in scales from the centre of in-distribution samples, within +-`LIMIT`.

        Args:
            rows: the feature table.
            baselines: its `baseline_scores`, if they are known already.

        Raises:
            EvaluationError: the columns differ from those that were fitted on, or a value is not finite.
        """
        ordered, features = self._in_order(rows)
        table = self.baseline_scores(ordered) if baselines is None else baselines
        parts = [
            self.of_known(
                features.gradient_inputs(ordered[start : start + ROWS_AT_A_TIME]),
                {name: np.asarray(table[name])[start : start + ROWS_AT_A_TIME] for name in self.baselines.inputs},
            )
            for start in range(0, max(len(rows), 1), ROWS_AT_A_TIME)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def of_known(self, gradients: FloatArray, baselines: Mapping[str, FloatArray] | pd.DataFrame) -> FloatArray:
        """As `scaled`, of rows whose `gradient_inputs` (N, D) and baselines are known already."""
        places, magnitudes = self._wanted
        scores = np.empty((len(gradients), len(self.baselines.inputs)))
        for place, name in enumerate(self.baselines.inputs):
            scores[:, place] = baselines[name]
        scaled = np.empty((len(gradients), len(self.names)))
        for start in range(0, len(scaled), _ROWS_IN_CACHE):
            part = slice(start, start + _ROWS_IN_CACHE)
            raw = np.concatenate([gradients[part], scores[part]], axis=1)
            scaled[part] = self.scaling.scaled(np.take(raw, places, axis=1), self.names, magnitudes)
        return scaled

    def files(self) -> dict[str, bytes]:
        """It as files, by name: arrays and JSON."""
        description = _Description(
            columns=self.columns,
            names=self.names,
            left_out=list(self.left_out),
            baselines=list(self.baselines.learned),
            augmentations=list(self.baselines.augmentations),
        )
        return model_files(self.scaling.arrays() | self.baselines.arrays(), description)

    @classmethod
    def load(cls, folder: Folder) -> Self:
        """Reads what `save` wrote; every sample gets the same inputs to the bit.

        Raises:
            StoreError: a file is missing or damaged, or names baselines that are not known here.
        """
        arrays, found = read_model(folder, _Description)
        return cls(
            columns=found.columns,
            names=found.names,
            scaling=Scaling(floor=arrays["floor"], centre=arrays["centre"], scale=arrays["scale"]),
            baselines=FittedBaselines.restored(arrays, names=found.baselines, augmentations=found.augmentations),
            left_out=found.left_out,
        )

    @cached_property
    def _features(self) -> FeatureColumns:
        """That of the columns that were fitted on."""
        return _features_of(tuple(self.columns))

    @cached_property
    def _wanted(self) -> tuple[list[int], BoolArray]:
        """Where the inputs are among all that are given, and which are logarithmic."""
        given = [*self._features.gradients, *(f"{BASELINE_PREFIX}{name}" for name in self.baselines.inputs)]
        places = {name: place for place, name in enumerate(given)}
        missing = [name for name in self.names if name not in places]
        if missing:
            raise EvaluationError(
                f"the meta model looks at {some(missing, 5)}, which its columns do not give; run fit-meta again"
            )
        return [places[name] for name in self.names], logarithmic(self.names)

    def _in_order(self, rows: Rows) -> tuple[Rows, FeatureColumns]:
        """Rows with their columns in the order that was fitted on, and where things are among them."""
        if not isinstance(rows, pd.DataFrame) or rows.columns.equals(self._features.columns):
            return rows, self._features
        got = _columns(rows)
        there, wanted = set(got), set(self.columns)
        missing = [name for name in self.columns if name not in there]
        unexpected = [name for name in got if name not in wanted]
        if missing or unexpected:
            raise EvaluationError(
                f"features differ from those the meta model was fitted on: missing {some(missing, 5)}, "
                f"unexpected {some(unexpected, 5)}; extract with the same settings, or run fit-meta again"
            )
        ordered = rows if got == self.columns else rows[[*rows.columns.intersection(["content_hash"]), *self.columns]]
        return ordered, _features_of(tuple(ordered.columns))


def group_of(name: str) -> Group:
    """The group of the input called `name`."""
    if not name.startswith(BASELINE_PREFIX):
        return "gradients"
    baseline = name.removeprefix(BASELINE_PREFIX)
    needs = BASELINES[plain_name(baseline)].needs
    return "augmentations" if baseline.endswith(OVER_AUGMENTATIONS) or needs == "features of augmentations" else needs


def logarithmic(names: Sequence[str]) -> BoolArray:
    """Which inputs are magnitudes over many decades.

    Signed ratios and baselines (logarithms already) are not.
    """
    return np.array([_is_magnitude(name) for name in names], dtype=bool)


def _is_magnitude(name: str) -> bool:
    if name.startswith(BASELINE_PREFIX):
        return False
    statistic, _, below = name.rpartition("/")[2].partition(":")
    if statistic not in STATISTICS:
        return True
    return not STATISTICS[statistic].signed if below else STATISTICS[statistic].logarithmic


def _is_signed(name: str) -> bool:
    return STATISTICS[name.rpartition("/")[2]].signed


def _columns(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in META_COLUMNS and name != "content_hash"]


def model_files(arrays: Mapping[str, NDArray[Any]], description: Description) -> dict[str, bytes]:
    """The two files of a model, equal arrays once (several baselines have the weights of the last layer).

    The description comes last and holds a checksum of the arrays.
    """
    kept: dict[str, NDArray[Any]] = {}
    same: dict[str, str] = {}
    first: dict[tuple[str, tuple[int, ...], str], str] = {}
    for name, given in arrays.items():
        values = np.ascontiguousarray(given)
        place = first.setdefault((values.dtype.str, values.shape, sha256(values.tobytes())), name)
        if place == name:
            kept[name] = values
        else:
            same[name] = place
    content = save(kept)
    whole = description.model_copy(update={"arrays_sha256": sha256(content), "same": same})
    described = json.dumps(whole.model_dump(), indent=1, allow_nan=False) + "\n"
    return {ARRAYS: content, DESCRIPTION: described.encode()}


def write_files(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Writes what `model_files` made to a folder."""
    for name, content in files.items():
        write_bytes(Path(folder) / name, content)


def read_model(folder: Folder, kind: type[AnyDescription]) -> tuple[dict[str, NDArray[Any]], AnyDescription]:
    """Reads what `write_files` wrote.

    Raises:
        StoreError: a file is missing or damaged, the two do not belong together, or the format is another one.
    """
    description = read_description(folder, kind)
    path = folder / ARRAYS
    content = _bytes(path)
    if sha256(content) != description.arrays_sha256:
        raise StoreError(f"{path}: damaged, or not the arrays {DESCRIPTION} belongs to; run fit-meta again")
    try:
        arrays = dict(load(content))
        return arrays | {name: arrays[other] for name, other in description.same.items()}, description
    except (SafetensorError, KeyError) as error:
        raise StoreError(f"{path}: not readable as safetensors ({error}); run fit-meta again") from None


def read_description(folder: Folder, kind: type[AnyDescription]) -> AnyDescription:
    """Reads the description of a model alone.

    Raises:
        StoreError: it is missing or damaged, of another kind, or the format is another one.
    """
    path = folder / DESCRIPTION
    return parse_document(
        _bytes(path), TypeAdapter(kind), where=str(path), error=StoreError, advice="run fit-meta again"
    )


def _bytes(path: Folder) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; run fit-meta to write it") from None
