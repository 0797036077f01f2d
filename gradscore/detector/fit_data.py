"""What a detector is fitted on: sets of samples, and the streams they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data import (
    BANK,
    CALIBRATION,
    FIT,
    GIVEN,
    TEST,
    Batch,
    GivenSamples,
    Preprocessing,
    are_images,
    check_classes,
    form_of,
)
from ..errors import DataError
from ..system import Inputs, described, rows_of
from .images import FitImages, Thumbnails

NUMBERS = 2.0**64
"""Content hashes are numbers below this."""


@dataclass(frozen=True, kw_only=True)
class Model:
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

    def given(self, data: Any, name: str, *, labelled: bool) -> GivenSamples:
        """A set of samples for this model."""
        return GivenSamples(data=data, name=name, dtype=self.dtype, labelled=labelled, preprocess=self.preprocess)

    def several(self, kind: str, sets: Mapping[str, Any] | None, *, labelled: bool) -> dict[str, GivenSamples]:
        """Sets of samples by name.

        Raises:
            DataError: they have no names.
        """
        if sets is not None and not isinstance(sets, Mapping):
            raise DataError(
                f"{kind}: wanted sets of samples by name, such as {kind}={{'noise': loader}}, got {type(sets).__name__}"
            )
        return {name: self.given(data, f"{kind} {name}", labelled=labelled) for name, data in (sets or {}).items()}

    def checked(self, samples: GivenSamples, *, want_labels: bool = False) -> Iterator[tuple[Batch, Inputs]]:
        """The batches of a set, and their inputs before preprocessing, as they should be for the model.

        Raises:
            DataError: another shape than that of the samples the detector is fitted on, labels that are no classes, or
                none where some are wanted.
        """
        first = True
        for batch, inputs in samples.batches_and_pixels():
            if form_of(batch.images) != self.form:
                raise DataError(
                    f"{samples.name}: its samples have shape {described(batch.images)}, those the "
                    f"detector is fitted on {self.shape}; give "
                    "samples of that shape"
                )
            if first and want_labels and not bool((batch.labels >= 0).any()):
                raise DataError(
                    f"{samples.name}: wanted labelled samples, and the first {len(batch.labels)} have no label; give "
                    "batches of inputs and labels, those with a label first"
                )
            first = False
            check_classes(batch, self.num_classes, name=samples.name)
            yield batch, inputs


@dataclass
class FitData:
    """The sets that a detector is fitted on.

    Attributes:
        model: what samples must be like.
        fit: what fits, and calibrates where no other samples do.
        holdout: share of `fit` that calibrates then, chosen by content.
        seed: of auxiliary sets.
        calibration: what calibrates.
        bank: what neighbours are looked for in.
        ood: OOD sets by name.
        auxiliary: kinds of synthetic sets made of what fits.
        images: what fits, as far as it is kept for that.
        thumbnails: small copies of the bank.
    """

    model: Model
    fit: GivenSamples
    holdout: float
    seed: int
    calibration: GivenSamples | None = None
    bank: GivenSamples | None = None
    ood: Mapping[str, GivenSamples] = field(default_factory=dict)
    auxiliary: Sequence[str] = ()
    images: FitImages = field(default_factory=FitImages)
    thumbnails: Thumbnails = field(default_factory=Thumbnails)

    def stream(self) -> Iterator[tuple[str, Batch]]:
        """All samples with their splits, those that fit first."""
        yield from self._fitting()
        if self.calibration is not None:
            for batch, _ in self.model.checked(self.calibration, want_labels=True):
                yield CALIBRATION, batch
        self.thumbnails = Thumbnails(self.images.levels() if self.images.samples else None)
        if self.bank is not None:
            for batch, inputs in self.model.checked(self.bank):
                self.thumbnails.add(BANK, batch, inputs)
                yield BANK, batch
        for name, samples in self.ood.items():
            for batch, _ in self.model.checked(samples):
                yield f"ood.{name}", batch
        for kind in self.auxiliary:
            made = self.model.given(self.images.made(kind, seed=self.seed), f"auxiliary {kind}", labelled=False)
            for batch, _ in self.model.checked(made):
                yield f"ood.{kind}", batch

    def fit_again(self) -> Iterator[Batch]:
        """The samples that fit, once more."""
        return (batch for split, batch, _ in self._parted() if split == FIT)

    @property
    def total(self) -> int:
        """How many samples there are; 0 if that is unknown."""
        others = [each for each in (self.calibration, self.bank) if each is not None]
        return _total([self.fit, *others, *self.ood.values(), *[self.fit for _ in self.auxiliary]])

    def _fitting(self) -> Iterator[tuple[str, Batch]]:
        for split, batch, inputs in self._parted():
            if split == FIT and isinstance(inputs, Tensor) and are_images(inputs):
                self.images.add(batch, inputs)
            yield split, batch

    def _parted(self) -> Iterator[tuple[str, Batch, Inputs]]:
        """The samples given to fit on, and those among them that calibrate."""
        for batch, inputs in self.model.checked(self.fit, want_labels=True):
            if self.calibration is not None:
                yield FIT, batch, inputs
                continue
            shares = [int(digits, 16) / NUMBERS for digits in batch.content_hashes]
            held = torch.tensor([share >= 1 - self.holdout for share in shares])
            for split, rows in ((FIT, ~held), (CALIBRATION, held)):
                if bool(rows.any()):
                    yield split, batch.where(rows), rows_of(inputs, rows)


@dataclass
class TestData:
    """The sets that a detector is evaluated on.

    Attributes:
        model: what samples must be like.
        test: in-distribution samples.
        ood: OOD sets by name.
        shifted: labelled sets under covariate shift by name.
        thumbnails: keeps small copies of what is an image.
    """

    model: Model
    test: GivenSamples
    ood: Mapping[str, GivenSamples]
    shifted: Mapping[str, GivenSamples]
    thumbnails: Thumbnails

    def stream(self) -> Iterator[tuple[str, Batch]]:
        """All samples with their splits."""
        sets = {TEST: self.test} | {f"ood.{name}": samples for name, samples in self.ood.items()}
        sets |= {f"shifted.{name}": samples for name, samples in self.shifted.items()}
        for split, samples in sets.items():
            for batch, inputs in self.model.checked(samples):
                self.thumbnails.add(split, batch, inputs)
                yield split, batch

    @property
    def total(self) -> int:
        """How many samples there are; 0 if that is unknown."""
        return _total([self.test, *self.ood.values(), *self.shifted.values()])


def _total(sets: Sequence[GivenSamples]) -> int:
    """How many samples several sets have; 0 if that is unknown of one."""
    known = [each.samples for each in sets if each.samples is not None]
    return sum(known) if len(known) == len(sets) else 0


def source(name: str) -> dict[str, str]:
    """What the settings of a run say of samples that were given."""
    return {"source": f"{GIVEN}:{name}"}
