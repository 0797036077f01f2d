"""What a bundle knows for a monitor: calibration samples, shifted copies of images, and auxiliary OOD samples.

Nobody knows the shifts to come. What P(wrong) is worth under shift is learnt on others that leave the class as it is
(`IMAGE_SHIFTS`), made of `in_dist.fit`; of calibration and test samples nothing is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..columns import logit_columns
from ..data import (
    FIT,
    IMAGE_SHIFTS,
    STRENGTHS,
    BadSample,
    Preprocessing,
    SampleDataset,
    ShiftedImages,
    collate,
    is_image,
)
from ..errors import BundleError
from ..features import Extractor, Progress
from ..store import RunFolder
from ..system import IntArray
from .baseline import Seen
from .bundle import Detector
from .watched import CLASS, Reference, WatchedSet, watched

COPIES = 200
"""Images that each kind and strength of shift is made of."""

PLAIN = 2000
"""Samples of `in_dist.fit` that are kept as they are, at most."""

_BATCH = 64


def plain_reference(calibration: pd.DataFrame, detectors: Mapping[str, Detector], *, with_labels: bool) -> Reference:
    """What a monitor of drift needs, from the feature table of the labelled calibration samples.

    They come in the order of their scores, which says nothing of who they are; their classes are for what is learnt of
    shifted copies.
    """
    labels = calibration["label"].to_numpy(dtype=np.int64)
    found = _watched_set(calibration, detectors, labels)
    order = np.lexsort([*found.columns.values()][::-1])
    return Reference(
        calibration=WatchedSet(
            columns={name: values[order] for name, values in found.columns.items()},
            right=found.right[order],
            label=labels[order] if with_labels else _unknown(found),
        ),
        classes=len(logit_columns(calibration.columns)),
    )


def _unknown(known: WatchedSet) -> IntArray:
    return np.full(len(known.right), -1)


def shifted_reference(
    run: RunFolder,
    plain: Reference,
    detectors: Mapping[str, Detector],
    extractor: Extractor,
    dataset: SampleDataset,
    *,
    copies: int,
    progress: Progress | None = None,
) -> Reference:
    """The same with what was seen under shift.

    Args:
        run: whose auxiliary OOD samples are taken.
        plain: of the calibration samples.
        detectors: by name.
        extractor: computes the features.
        dataset: the samples of `in_dist.fit`.
        copies: images that each kind and strength is made of, fewer where there are fewer.
        progress: told after every kind and strength.

    Raises:
        BundleError: the samples are no images, or have no label.
    """
    places = np.flatnonzero(dataset.labels >= 0) if dataset.labels is not None else np.empty(0, dtype=np.int64)
    if not len(places) or not is_image(dataset.images.image(int(places[0]))):
        what = "are no images" if len(places) else "have no label"
        raise BundleError(
            f"{run.path}: the samples of {FIT} {what}, so no shifted copies can be made for gradscore monitor; leave "
            "out --monitor: the drift of scores is watched without it"
        )
    shifted: dict[str, WatchedSet] = {}
    taken, sets = min(copies, len(places)), len(IMAGE_SHIFTS) * len(STRENGTHS)
    for kind in IMAGE_SHIFTS:
        for strength in STRENGTHS:
            chosen = np.random.default_rng([len(shifted), copies]).permutation(places)[:copies]
            source = ShiftedImages(kind, strength, dataset.images, chosen)
            copied = SampleDataset(source, Preprocessing(run.config.preprocessing), labelled=True)
            shifted[f"{kind}:{strength}"] = _scored(copied, detectors, extractor)
            if progress is not None:
                progress(kind, taken * len(shifted), taken * sets)
    auxiliary = [info for info in run.splits() if info.kind == "ood" and info.auxiliary]
    ood = {
        info.dataset_name: _drawn_set(run.read(info.name), detectors, COPIES, of_known_classes=False)
        for info in auxiliary
    }
    fit = _drawn_set(run.read(FIT), detectors, PLAIN, of_known_classes=True)
    return replace(plain, plain=replace(fit, label=_unknown(fit)), shifted=shifted, ood=ood)


def _scored(dataset: SampleDataset, detectors: Mapping[str, Detector], extractor: Extractor) -> WatchedSet:
    values, labels = [], []
    for start in range(0, len(dataset), _BATCH):
        samples = [dataset[place] for place in range(start, min(start + _BATCH, len(dataset)))]
        batch = collate([each for each in samples if not isinstance(each, BadSample)])
        if batch.sample_ids:
            values.append(extractor.values(batch.images))
            labels.append(batch.labels.numpy())
    if not values:
        raise BundleError(f"no sample of {FIT} can be read; check the data")
    frame = pd.DataFrame(np.concatenate(values), columns=extractor.names, dtype=np.float64)
    finite = np.isfinite(frame.to_numpy()).all(axis=1)
    return _watched_set(frame[finite], detectors, np.concatenate(labels)[finite])


def _drawn_set(
    frame: pd.DataFrame, detectors: Mapping[str, Detector], count: int, *, of_known_classes: bool
) -> WatchedSet:
    """So many samples of a feature table at most, in its order."""
    chosen: NDArray[np.int64] = np.random.default_rng(0).permutation(len(frame))[:count]
    drawn = frame.iloc[np.sort(chosen)]
    labels = drawn["label"].to_numpy(dtype=np.int64) if of_known_classes else np.full(len(drawn), -1)
    return _watched_set(drawn, detectors, labels)


def _watched_set(frame: pd.DataFrame, detectors: Mapping[str, Detector], label: IntArray) -> WatchedSet:
    seen = Seen(next(iter(detectors.values())).model.inputs, frame)
    scores = {f"score_{name}": seen.by(detector.model) for name, detector in detectors.items()}
    others = {str(name): column.to_numpy(dtype=np.float64) for name, column in watched(frame).items()}
    return WatchedSet(columns={**scores, **others}, right=others[CLASS] == label, label=label)
