"""What a monitor watches of a sample, and what a bundle knows for it.

Beside its scores, the confidence and the size of gradients along the depth are watched. The predicted class and a
projection of the penultimate features are noted, too, for what they say of many samples together.

Sets of samples whose answers are known say what is usual: calibration samples, shifted copies of images, and auxiliary
OOD samples. Nobody knows the shifts to come. What P(wrong) is worth under shift is learnt on others that leave the
class as it is (`SHIFTS`), made of `in_dist.fit`; of calibration and test samples nothing is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import shake_256
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from ..columns import feature_columns, logit_columns, penultimate_columns
from ..data import (
    FIT,
    SEVERITIES,
    SHIFTS,
    BadSample,
    Preprocessing,
    SampleDataset,
    ShiftedImages,
    collate,
    is_image,
)
from ..errors import BundleError
from ..extractor import Extractor
from ..pipeline import Progress
from ..store import RunFolder
from ..system import BoolArray, FloatArray, IntArray
from .calibration import CalibratedScore, ScoreInputs

WATCHED = "watched_"
"""Starts the names of the columns of what is watched in a table of results."""

BUNDLE = "watched_bundle"
"""The column of the identity of the bundle that says it all."""

CONFIDENCE = "confidence"
CLASS = "class"
"""The place of the predicted class."""

GRADIENT = "gradient "
"""Starts the names of the sizes of gradients."""

FEATURE = "feature "
"""Starts the names of what is noted of the penultimate features."""

PROJECTED = 64
"""Penultimate features are projected to so many, more than enough to see their mean move."""

LAYERS = 5
"""Gradients of at most so many groups of parameters, evenly spread from the input to the output."""

_SIZES = ("l2", "l1", "std", "max")
"""Statistics that say how large a gradient is, the preferred one first."""

_RIGHT, _LABEL, _CLASSES = "right", "label", "classes"

COPIES = 200
"""Images that each kind and severity of shift is made of."""

PLAIN = 2000
"""Samples of `in_dist.fit` that are kept as they are, at most."""

_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """Samples whose answers are known.

    Attributes:
        columns: (n,) of each score (`score_*`) and each thing watched, by name.
        right: (n,) whether they are predicted right; False for OOD samples.
        label: (n,) their classes, -1 for OOD samples and where nothing looks at them.
    """

    columns: Mapping[str, FloatArray]
    right: BoolArray
    label: IntArray


@dataclass(frozen=True, kw_only=True)
class KnownSets:
    """Statistics of the calibration samples, and of their shifted copies.

    Attributes:
        calibration: labelled in-distribution samples that fitted nothing.
        classes: how many the model knows.
        plain: samples of `in_dist.fit` as they are; None without shifted copies.
        shifted: shifted copies of `in_dist.fit`, by kind and severity of the shift (`jpeg:3`); empty if none were made.
        ood: auxiliary OOD samples, by the name of their set; empty without shifted copies.
    """

    calibration: KnownSet
    classes: int
    plain: KnownSet | None = None
    shifted: Mapping[str, KnownSet] = field(default_factory=dict)
    ood: Mapping[str, KnownSet] = field(default_factory=dict)

    def members(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; see `of_members`."""
        named = {"calibration": self.calibration} | ({} if self.plain is None else {"plain": self.plain})
        named |= {f"shifted:{name}": each for name, each in self.shifted.items()}
        named |= {f"ood:{name}": each for name, each in self.ood.items()}
        return {
            f"{name}/{key}": np.ascontiguousarray(array, dtype=np.float32 if key.startswith(FEATURE) else np.float64)
            for name, each in named.items()
            for key, array in {**each.columns, _RIGHT: each.right, _LABEL: each.label}.items()
        } | {_CLASSES: np.array([float(self.classes)])}

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[Any]]) -> Self:
        """Reads back what `members` gave.

        Raises:
            BundleError: columns are missing or differ in length, or hold values that cannot be.
        """
        found: dict[str, dict[str, FloatArray]] = {}
        for key, array in sorted(members.items()):
            name, slash, column = key.partition("/")
            if slash:
                found.setdefault(name, {})[column] = array.astype(np.float64)
        classes = members[_CLASSES]
        if classes.shape != (1,) or not (np.isfinite(classes[0]) and 1 <= classes[0] == np.floor(classes[0])):
            raise BundleError("the monitor's reference sets do not say how many classes there are")
        for name, columns in found.items():
            if columns.keys() != found["calibration"].keys() or not _can_be(columns, int(classes[0])):
                raise BundleError(f"the monitor's reference set '{name}' is damaged")
        sets = {
            name: KnownSet(
                right=columns.pop(_RIGHT).astype(np.bool_), label=columns.pop(_LABEL).astype(np.int64), columns=columns
            )
            for name, columns in found.items()
        }
        starting = {
            start: {name.removeprefix(start): each for name, each in sets.items() if name.startswith(start)}
            for start in ("shifted:", "ood:")
        }
        return cls(
            calibration=sets["calibration"],
            classes=int(classes[0]),
            plain=sets.get("plain"),
            shifted=starting["shifted:"],
            ood=starting["ood:"],
        )


def _can_be(columns: Mapping[str, FloatArray], classes: int) -> bool:
    """Whether these are the columns of some samples, all of them finite, and classes what classes can be."""
    if not {_RIGHT, _LABEL, CLASS, CONFIDENCE} <= columns.keys() or columns[CLASS].ndim != 1 or not len(columns[CLASS]):
        return False
    if any(values.shape != columns[CLASS].shape or not np.isfinite(values).all() for values in columns.values()):
        return False
    ranges = {_RIGHT: (0, 1), _LABEL: (-1, classes - 1), CLASS: (0, classes - 1)}
    return all(
        np.array_equal(np.clip(np.floor(columns[name]), low, high), columns[name])
        for name, (low, high) in ranges.items()
    )


def watched(features: pd.DataFrame) -> pd.DataFrame:
    """Data frame of what is watched of samples, by its name.

    Args:
        features: rows of a feature table, finite.

    Returns:
        `confidence`: log-odds of the largest softmax probability; `gradient <group>`: logarithm of the size of the
        gradient at a group of parameters; `class`: the place of the predicted class; and `feature <number>`: the
        penultimate features in single precision, where they are recorded, projected to `PROJECTED` if there are more.
    """
    logits = features[logit_columns(features.columns)].to_numpy(dtype=np.float64)
    ordered = np.sort(logits, axis=1)
    found = {CONFIDENCE: ordered[:, -1] - logsumexp(ordered[:, :-1], axis=1) if len(ordered) else np.empty(0)}
    for group, column in _sizes(list(features.columns)).items():
        values = np.abs(features[column].to_numpy(dtype=np.float64))
        found[f"{GRADIENT}{group}"] = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    found[CLASS] = logits.argmax(axis=1).astype(np.float64)
    penultimate = features[penultimate_columns(features.columns)].to_numpy(dtype=np.float64)
    if penultimate.shape[1] > PROJECTED:
        penultimate = penultimate @ _signs(penultimate.shape[1])
    rounded = penultimate.astype(np.float32).astype(np.float64)
    return pd.DataFrame(found | {f"{FEATURE}{place}": each for place, each in enumerate(rounded.T)})


def is_stream(name: str) -> bool:
    """Whether what is watched is a size that can rise and fall: scores, the confidence and gradients."""
    return name != CLASS and not name.startswith(FEATURE)


@cache
def _signs(features: int) -> FloatArray:
    """(features, PROJECTED) of plus and minus one over the root of `PROJECTED`: the same on every machine, for ever.

    Source: Achlioptas 2003, "Database-friendly random projections".
    """
    bits = np.unpackbits(np.frombuffer(shake_256(b"monitor").digest(features * PROJECTED // 8), dtype=np.uint8))
    return np.asarray((2.0 * bits.reshape(features, PROJECTED) - 1) / np.sqrt(PROJECTED))


def _sizes(columns: list[str]) -> dict[str, str]:
    """A column that says how large the gradient is, by group of parameters, from the input to the output."""
    features = [column.partition("/") for column in feature_columns(columns)]
    loss = features[0][0] if features else ""
    statistics: dict[str, set[str]] = {}
    for group, _, statistic in (rest.rpartition("/") for each, _, rest in features if each == loss):
        statistics.setdefault(group, set()).add(statistic)
    sizes = {group: next((each for each in _SIZES if each in known), None) for group, known in statistics.items()}
    found = {group: f"{loss}/{group}/{size}" for group, size in sizes.items() if size is not None}
    names, places = list(found), np.linspace(0, max(0, len(found) - 1), min(LAYERS, len(found)))
    return {names[place]: found[names[place]] for place in dict.fromkeys(places.round().astype(int).tolist())}


def usual_sets(calibration: pd.DataFrame, detectors: Mapping[str, CalibratedScore], *, with_labels: bool) -> KnownSets:
    """Known sets of a monitor of drift, from the feature table of the labelled calibration samples.

    They come in the order of their scores, which says nothing of who they are; their classes are for what is learnt of
    shifted copies.
    """
    labels = calibration["label"].to_numpy(dtype=np.int64)
    found = _known_set(calibration, detectors, labels)
    order = np.lexsort([*found.columns.values()][::-1])
    return KnownSets(
        calibration=KnownSet(
            columns={name: values[order] for name, values in found.columns.items()},
            right=found.right[order],
            label=labels[order] if with_labels else _unknown(found),
        ),
        classes=len(logit_columns(calibration.columns)),
    )


def _unknown(known: KnownSet) -> IntArray:
    return np.full(len(known.right), -1)


def with_shifted_sets(
    run: RunFolder,
    usual: KnownSets,
    detectors: Mapping[str, CalibratedScore],
    extractor: Extractor,
    dataset: SampleDataset,
    *,
    copies: int,
    progress: Progress | None,
) -> KnownSets:
    """The known sets with those of shifted copies.

    Args:
        run: whose auxiliary OOD samples are taken.
        usual: of the calibration samples, from `usual_sets`.
        detectors: by name.
        extractor: computes the features.
        dataset: the samples of `in_dist.fit`.
        copies: images that each kind and severity is made of, fewer where there are fewer.
        progress: told after every kind and severity.

    Raises:
        BundleError: the samples are no images, or have no label.
    """
    places = np.flatnonzero(dataset.labels >= 0) if dataset.labels is not None else np.empty(0, dtype=np.int64)
    if not len(places) or not is_image(dataset.source.sample(int(places[0]))):
        what = "are no images" if len(places) else "have no label"
        raise BundleError(
            f"{run.path}: the samples of {FIT} {what}, so no shifted copies can be made for gradscore monitor; leave "
            "out --monitor: the drift of scores is watched without it"
        )
    shifted: dict[str, KnownSet] = {}
    images, sets = min(copies, len(places)), len(SHIFTS) * len(SEVERITIES)
    for kind in SHIFTS:
        for severity in SEVERITIES:
            chosen = np.random.default_rng([len(shifted), copies]).permutation(places)[:copies]
            source = ShiftedImages(kind, severity, dataset.source, chosen)
            copied = SampleDataset(source, Preprocessing(run.config.preprocessing), labelled=True)
            shifted[f"{kind}:{severity}"] = _scored(copied, detectors, extractor)
            if progress is not None:
                progress(kind, images * len(shifted), images * sets)
    auxiliary = [info for info in run.splits() if info.kind == "ood" and info.auxiliary]
    ood = {
        info.dataset_name: _drawn_set(run.read(info.name), detectors, COPIES, of_known_classes=False)
        for info in auxiliary
    }
    fit = _drawn_set(run.read(FIT), detectors, PLAIN, of_known_classes=True)
    return replace(usual, plain=replace(fit, label=_unknown(fit)), shifted=shifted, ood=ood)


def _scored(dataset: SampleDataset, detectors: Mapping[str, CalibratedScore], extractor: Extractor) -> KnownSet:
    values, labels = [], []
    for start in range(0, len(dataset), _BATCH):
        samples = [dataset[place] for place in range(start, min(start + _BATCH, len(dataset)))]
        batch = collate([each for each in samples if not isinstance(each, BadSample)])
        if batch.ids:
            values.append(extractor.values(batch.inputs))
            labels.append(batch.labels.numpy())
    if not values:
        raise BundleError(f"no sample of {FIT} can be read; check the data")
    frame = pd.DataFrame(np.concatenate(values), columns=extractor.names, dtype=np.float64)
    finite = np.isfinite(frame.to_numpy()).all(axis=1)
    return _known_set(frame[finite], detectors, np.concatenate(labels)[finite])


def _drawn_set(
    frame: pd.DataFrame, detectors: Mapping[str, CalibratedScore], count: int, *, of_known_classes: bool
) -> KnownSet:
    """So many samples of a feature table at most, in its order."""
    chosen: NDArray[np.int64] = np.random.default_rng(0).permutation(len(frame))[:count]
    drawn = frame.iloc[np.sort(chosen)]
    labels = drawn["label"].to_numpy(dtype=np.int64) if of_known_classes else np.full(len(drawn), -1)
    return _known_set(drawn, detectors, labels)


def _known_set(frame: pd.DataFrame, detectors: Mapping[str, CalibratedScore], label: IntArray) -> KnownSet:
    inputs = ScoreInputs(next(iter(detectors.values())).model.inputs, frame)
    scores = {f"score_{name}": inputs.by(detector.model) for name, detector in detectors.items()}
    others = {str(name): column.to_numpy(dtype=np.float64) for name, column in watched(frame).items()}
    return KnownSet(columns={**scores, **others}, right=others[CLASS] == label, label=label)
