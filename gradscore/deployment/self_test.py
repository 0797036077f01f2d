"""The self-test of a bundle: made-up inputs, and what the model answers to them, to see that it still does.

The inputs are no sample of anybody. Floats are noise. Whole numbers have to be ones that the model takes, such as ids
of a table: they are drawn from the ranges that a few samples have, place by place. Masks stay as they are. Where the
model takes nothing that is made up, it is asked the samples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ..columns import augmentations_of, logit_columns
from ..data import TEST, BadSample, SampleDataset, collate
from ..errors import BundleError, ModelError
from ..extractor import Extractor, input_dtype
from ..losses import LOSSES, OfLogits
from ..meta import MetaModel, explained
from ..system import FloatArray, Inputs, each_input, rows_of, sample_count
from .calibration import CalibratedScore, ScoreInputs

if TYPE_CHECKING:
    from .bundle_file import Bundle

SELF_TEST_SAMPLES = 8
"""Inputs of a self-test: 1.2 MB of the bundle for 224 x 224 pixels in colour."""

REAL_VALUES = (
    "the self-test holds values of samples, which whoever has the bundle can read: the model takes no whole numbers "
    "that are made up"
)
"""Notice where no made-up samples can be used for the self-test."""

LOGITS_MOVED = 3e-3
"""Change of logits with the batch, relative to the largest, that is more than rounding, in bfloat16 as well."""

BATCH_TOLERANCE = 50.0
"""Largest change of a score with the batch that a bundle may have, in what an input of a meta model may move by.

In float32 that is 0.05: 1.3 percentage points at most. Scores of the digits model move by 6e-5. Inputs that hold
nothing but rounding, which fits leave out, moved log-odds by up to 1.2.
"""

LOGIT_TOLERANCE = 1e-3
"""Largest accepted change of a logit in the self-test, relative to the largest logit.

Other batch sizes, threads and memory formats, and the loops without Numba, moved the logits of the digits model by 3e-7
at most; a slope of 0.01 where ReLU has none moved them by 6e-3, weights rounded to bfloat16 by 1e-3.
"""

LOSS_TOLERANCE = 0.1
"""Of the features of a loss that a program made, as a share of them, in the median."""

SCORE_TOLERANCE = 1e-2
"""Largest accepted change of a score in the self-test, relative to the score or 1, whichever is larger.

What moved logits by rounding moved scores by 2e-5 at most; that slope moved them by 0.15 or more, bfloat16 by 0.05.
"""

Array = NDArray[Any]

_OF_FEATURES = "leave out the features before the last layer, which hardly differ (features.penultimate: false)"

_TO_LEAVE_OUT = {
    "gradients": "leave these parameters out (features.parameters)",
    "logits": "leave the meta model out (with --score, or score=, give a baseline)",
    "penultimate": _OF_FEATURES,
    "neighbours": _OF_FEATURES,
    "augmentations": "leave the augmentations out (features.augmentations: [])",
}
"""What to do where a score changes with its batch, by the group of the input that it changes through."""

TestInputs = NDArray[Any] | Mapping[str, NDArray[Any]]
"""Inputs of a self-test, or several by the names of the arguments they are."""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Noise and what the model makes of it, to see that it still does.

    Attributes:
        images: (n, C, H, W) uint8, of other samples (n, ...); the model sees bytes divided by 127.5, minus 1, and whole
            numbers or truth values as they are, and so are arrays by the names of the arguments they are.
        answers: (n, columns) float64.
    """

    images: TestInputs
    answers: FloatArray

    @property
    def inputs(self) -> Inputs:
        """The model inputs (n, ...): bytes as float32 in -1 to 1, others as they are."""
        return self_test_inputs(self.images)

    def members(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; see `of_members`."""
        named = self.images if isinstance(self.images, Mapping) else {"": self.images}
        return {f"images/{name}": each for name, each in named.items()} | {"answers": self.answers}

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[Any]]) -> SelfTest:
        """Reads back what `members` gave; `KeyError` if something is missing."""
        named = {name.removeprefix("images/"): each for name, each in members.items() if name != "answers"}
        return cls(images=named.get("", named), answers=members["answers"])


def self_test_inputs(images: TestInputs) -> Inputs:
    """The model inputs (n, ...) of a self-test: bytes as float32 in -1 to 1, others as they are."""
    if isinstance(images, Mapping):
        return {name: _as_input(array) for name, array in images.items()}
    return _as_input(images)


def _as_input(array: NDArray[Any]) -> Tensor:
    found = torch.from_numpy(array.copy())
    return found.float() / 127.5 - 1.0 if found.dtype == torch.uint8 else found


def answered(images: TestInputs, extractor: Extractor, columns: list[str]) -> tuple[SelfTest, FloatArray]:
    """The self-test, and its answers when the images come in pairs."""
    dtype = input_dtype(extractor.model)
    inputs = each_input(self_test_inputs(images), lambda each: each.to(dtype) if each.is_floating_point() else each)
    pairs = [slice(place, place + 2) for place in range(0, sample_count(inputs), 2)]
    answers = extractor.values(inputs)
    in_pairs = np.concatenate([extractor.values(rows_of(inputs, pair)) for pair in pairs])
    if extractor.names != columns:
        raise BundleError("the feature table has other columns than the model now gives; extract again")
    return SelfTest(images=images, answers=answers), in_pairs


def first_samples(dataset: SampleDataset) -> Inputs:
    """The first samples that can be read, at most as many as a self-test asks."""
    usable = (each for each in map(dataset.__getitem__, range(len(dataset))) if not isinstance(each, BadSample))
    found = collate(list(islice(usable, SELF_TEST_SAMPLES)))
    if not found.ids:
        raise BundleError(
            f"no sample of {TEST} can be read, so the size of the model's input is unknown; check the data"
        )
    return found.inputs


def self_test_of(samples: Inputs, extractor: Extractor) -> tuple[TestInputs, list[str]]:
    """Samples of a self-test for a model that takes such samples (n, ...), n at least 1.

    Args:
        samples: a few that the model takes.
        extractor: has the model.

    Returns:
        The inputs, bytes in place of floats; and what a user should know of them.
    """
    named = {"": samples} if isinstance(samples, Tensor) else dict(samples)
    known = {name: each.cpu().numpy() for name, each in named.items() if not each.is_floating_point()}
    noise = {
        name: np.random.default_rng(0).integers(0, 256, (SELF_TEST_SAMPLES, *each.shape[1:]), dtype=np.uint8)
        for name, each in named.items()
        if name not in known
    }
    if not known:
        return _as_given(samples, noise), []
    real = {name: values[np.arange(SELF_TEST_SAMPLES) % len(values)] for name, values in known.items()}
    random = np.random.default_rng(0)
    drawn = {name: real[name] if _is_mask(values) else _drawn_like(values, random) for name, values in known.items()}
    found = _as_given(samples, {**noise, **drawn})
    if any((drawn[name] != real[name]).any() for name in known) and _takes(extractor, found):
        return found, []
    return _as_given(samples, {**noise, **real}), [REAL_VALUES]


def _drawn_like(values: Array, random: Generator) -> Array:
    """Whole numbers (`SELF_TEST_SAMPLES`, ...) from the smallest to the largest that samples have at the same place."""
    low, high = (np.asarray(each, np.int64) for each in (values.min(axis=0), values.max(axis=0)))
    drawn = random.integers(low, high, (SELF_TEST_SAMPLES, *values.shape[1:]), endpoint=True)
    return np.asarray(drawn.astype(values.dtype))


def _is_mask(values: Array) -> bool:
    """Whether every row is ones, then zeros, or every row the other way round, and none is empty."""
    if values.ndim != 2 or values.shape[1] < 2 or not np.isin(values, (0, 1)).all() or not values.any(axis=1).all():
        return False
    steps = np.diff(values.astype(np.int64), axis=1)
    return bool((steps <= 0).all() or (steps >= 0).all())


def _takes(extractor: Extractor, images: TestInputs) -> bool:
    """Whether a model answers, all with finite numbers."""
    inputs = self_test_inputs(images)
    try:
        extractor.try_out(inputs)
        return bool(np.isfinite(extractor.forward_values(inputs)).all())
    except ModelError:
        return False


def _as_given(samples: Inputs, found: Mapping[str, Array]) -> TestInputs:
    return found[""] if isinstance(samples, Tensor) else {name: found[name] for name in samples}


def check_batches(
    detectors: Mapping[str, CalibratedScore],
    columns: list[str],
    *,
    together: FloatArray,
    in_pairs: FloatArray,
    most: float,
) -> None:
    """Makes sure that no score depends on the batch its sample comes in: that a fit left all out that is rounding.

    Args:
        detectors: by name.
        columns: of the values.
        together: (n, columns) logits and features of n samples in one batch.
        in_pairs: the same in batches of two.
        most: what log-odds may differ by.

    Raises:
        BundleError: a score of a meta model differs by more; the message names the inputs that are to blame.
    """
    usable = np.asarray(np.isfinite(together).all(axis=1) & np.isfinite(in_pairs).all(axis=1), dtype=np.bool_)
    one, other = (pd.DataFrame(values[usable], columns=columns) for values in (together, in_pairs))
    inputs = next(iter(detectors.values())).model.inputs
    before, after = ScoreInputs(inputs, one), ScoreInputs(inputs, other)
    for name, detector in detectors.items():
        model = detector.model
        gap = np.abs(after.by(model) - before.by(model)).max(initial=0.0)
        if gap > most and isinstance(model, MetaModel):
            now, then = (explained(model, each.scaled).contributions for each in (after, before))
            moved = np.abs(now - then).max(axis=0)
            worst = np.argsort(-moved, kind="stable")[:3]
            names = ", ".join(model.inputs.names[place] for place in worst)
            cause = f"mostly through {names}; {_TO_LEAVE_OUT[model.inputs.groups[worst[0]]]}, and extract anew"
            if (moving := moved_logits(one, other)) > LOGITS_MOVED:
                cause = (
                    f"since the logits do, by up to {100 * moving:.2g} %: outputs of the network depend on the other "
                    "samples of the batch, or on how many there are; take that out of its forward"
                )
            raise BundleError(
                f"detector '{name}': wanted scores that do not depend on the batch a sample comes in, within "
                f"{most:.2g}; they change by up to {gap:.2g}, {cause}"
            )


def moved_logits(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """The largest difference of logits, relative to the largest of them."""
    before, after = (each[logit_columns(each.columns)].to_numpy() for each in (one, other))
    return float(np.abs(after - before).max(initial=0.0) / max(np.abs(before).max(initial=0.0), np.finfo(float).tiny))


def check_answers(bundle: Bundle, values: FloatArray) -> None:
    """Makes sure that values (n, columns) are what a bundle's model answers to its self-test; `BundleError` if not."""
    test, columns, detectors = bundle.self_test, bundle.columns, bundle.detectors
    wanted, got = (pd.DataFrame(found, columns=columns) for found in (test.answers, values))
    for augmentation in (None, *augmentations_of(wanted.columns)):
        before, now = (
            frame[logit_columns(frame.columns, augmentation=augmentation)].to_numpy() for frame in (wanted, got)
        )
        largest = float(np.nanmax(np.abs(before), initial=0.0))
        what = "logits" if augmentation is None else f"logits of augmentation '{augmentation}'"
        _check_close(what, before, now, LOGIT_TOLERANCE * largest)
    usable = np.flatnonzero(np.isfinite(test.answers).all(axis=1) & np.isfinite(values).all(axis=1))
    own = [loss for loss in bundle.features.losses if isinstance(LOSSES[loss].head, OfLogits)]
    for loss in own if len(usable) else []:
        of_loss = [each for each in columns if each.startswith(f"{loss}/")]
        before, now = (frame.iloc[usable][of_loss].to_numpy() for frame in (wanted, got))
        # Another function under the name moves most features, though scores may hardly move; rounding moves few.
        gap, size = (float(np.median(np.abs(each))) for each in (now - before, before))
        if gap > LOSS_TOLERANCE * size:
            raise BundleError(
                f"self-test: features of loss '{loss}' differ from those the bundle was made with by {gap:.3g} "
                f"where they are {size:.3g}; register the function that it was made with as loss '{loss}'"
            )
    score_inputs = [ScoreInputs(bundle.inputs, frame.iloc[usable]) for frame in (wanted, got)]
    for name, detector in detectors.items():
        before, now = (each.by(detector.model) for each in score_inputs)
        _check_close(f"score '{name}'", before, now, SCORE_TOLERANCE * np.maximum(1.0, np.abs(before)))


def _check_close(
    what: str, wanted: NDArray[np.float64], got: NDArray[np.float64], allowed: NDArray[np.float64] | float
) -> None:
    gap = np.abs(np.nan_to_num(got) - np.nan_to_num(wanted))
    if not (np.isfinite(wanted) == np.isfinite(got)).all() or (gap > allowed).any():
        raise BundleError(
            f"self-test: {what} differ from those the bundle was made with by up to {float(gap.max()):.3g}; the code "
            "of the model or a package changed in a way that changes its answers. Make the bundle anew"
        )
