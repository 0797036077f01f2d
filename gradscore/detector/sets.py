"""The sets of samples that a detector is fitted and evaluated on, as one stream each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data import (
    CALIBRATION,
    FIT,
    TEST,
    Batch,
    Preprocessing,
    Samples,
    are_images,
    check_classes,
    form_of,
    samples_of,
)
from ..errors import DataError
from ..system import described
from .images import FitImages, Thumbnails, inputs_before

NUMBERS = 2.0**64
"""Content hashes are numbers below this."""


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """What samples must be like for a model.

    Attributes:
        dtype: of floating inputs.
        num_classes: K.
        preprocess: of raw pixels, if there are any.
        form: of samples, as `form_of` has it.
        shape: of a sample, for messages.
    """

    dtype: torch.dtype
    num_classes: int
    preprocess: Preprocessing | None
    form: Any
    shape: str

    def samples(self, data: Any, name: str, *, split: str, labelled: bool, want_labels: bool = False) -> Samples:
        """A set of samples for this model; reading it raises `DataError` where `checked` does."""
        samples = samples_of(
            data, name=name, dtype=self.dtype, labelled=labelled, preprocess=self.preprocess, split=split
        )
        return self.checked(samples, want_labels=want_labels)

    def several(self, kind: str, sets: Mapping[str, Any] | None, *, labelled: bool) -> dict[str, Samples]:
        """Sets of samples by name.

        Raises:
            DataError: they have no names.
        """
        if sets is not None and not isinstance(sets, Mapping):
            raise DataError(
                f"{kind}: wanted sets of samples by name, such as {kind}={{'noise': loader}}, got {type(sets).__name__}"
            )
        return {
            name: self.samples(data, f"{kind} {name}", split=f"{kind}.{name}", labelled=labelled)
            for name, data in (sets or {}).items()
        }

    def checked(self, samples: Samples, *, want_labels: bool = False) -> Samples:
        """The same samples, made sure of as they are read.

        Reading raises `DataError` for another shape than that of the samples the detector is fitted on, labels that
        are no classes, or none where some are wanted.
        """

        def read() -> Iterator[Batch]:
            for place, batch in enumerate(samples):
                if form_of(batch.inputs) != self.form:
                    raise DataError(
                        f"{samples.name}: its samples have shape {described(batch.inputs)}, those the detector is "
                        f"fitted on {self.shape}; give samples of that shape"
                    )
                if place == 0 and want_labels and not bool((batch.labels >= 0).any()):
                    raise DataError(
                        f"{samples.name}: wanted labelled samples, and the first {len(batch.labels)} have no label; "
                        "give batches of inputs and labels, those with a label first"
                    )
                check_classes(batch, self.num_classes, name=samples.name)
                yield batch

        return replace(samples, read=read, _begun=None)


@dataclass(kw_only=True)
class FitSets:
    """What a detector is fitted on.

    Attributes:
        form: what samples must be like.
        fit: what fits, and calibrates where no other samples do.
        holdout: share of `fit` that calibrates then, chosen by content.
        seed: of auxiliary sets.
        calibration: what calibrates.
        bank: what neighbours are looked for in.
        ood: OOD sets by name.
        auxiliary: kinds of synthetic sets made of what fits.
    """

    form: SampleForm
    fit: Samples
    holdout: float
    seed: int
    calibration: Samples | None
    bank: Samples | None
    ood: Mapping[str, Samples]
    auxiliary: Sequence[str]

    def stream(self, thumbnails: Thumbnails) -> Iterator[Batch]:
        """All samples with their splits, those that fit first; small copies of the bank go to `thumbnails`."""
        images = FitImages()
        for batch in self.parted():
            if batch.split == FIT and are_images(inputs_before(batch)):
                images.add(batch)
            yield batch
        if self.calibration is not None:
            yield from self.calibration
        thumbnails.levels = images.levels() if images.samples else None
        for batch in self.bank or ():
            thumbnails.add(batch)
            yield batch
        for samples in self.ood.values():
            yield from samples
        for kind in self.auxiliary:
            made = images.made(kind, seed=self.seed)
            yield from self.form.samples(made, f"auxiliary {kind}", split=f"ood.{kind}", labelled=False)

    def parted(self) -> Iterator[Batch]:
        """The samples given to fit on, and those among them that calibrate."""
        for batch in self.fit:
            if self.calibration is not None:
                yield batch
                continue
            held = [int(digits, 16) / NUMBERS >= 1 - self.holdout for digits in batch.content_hashes]
            for split, wanted in ((FIT, False), (CALIBRATION, True)):
                rows = [row for row, is_held in enumerate(held) if is_held is wanted]
                if rows:
                    yield replace(batch.rows(rows), split=split)

    def fit_again(self) -> Iterator[Batch]:
        """The samples that fit, once more."""
        return (batch for batch in self.parted() if batch.split == FIT)

    @property
    def total(self) -> int:
        """How many samples there are; 0 if that is unknown."""
        others = [each for each in (self.calibration, self.bank) if each is not None]
        return count([self.fit, *others, *self.ood.values(), *[self.fit for _ in self.auxiliary]])


def test_sets(
    form: SampleForm, test: Any, *, ood: Mapping[str, Any] | None, shifted: Mapping[str, Any] | None
) -> list[Samples]:
    """The sets that a detector is evaluated on, each of the split of its name.

    Raises:
        DataError: sets without names.
    """
    return [
        form.samples(test, "test", split=TEST, labelled=True),
        *form.several("ood", ood, labelled=False).values(),
        *form.several("shifted", shifted, labelled=True).values(),
    ]


def kept_small(sets: Iterable[Samples], thumbnails: Thumbnails) -> Iterator[Batch]:
    """All samples of several sets, of which small copies are kept."""
    for samples in sets:
        for batch in samples:
            thumbnails.add(batch)
            yield batch


def count(sets: Sequence[Samples]) -> int:
    """How many samples several sets have; 0 if that is unknown of one."""
    known = [each.count for each in sets if each.count is not None]
    return sum(known) if len(known) == len(sets) else 0
