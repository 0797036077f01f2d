"""The sets of samples that a detector is fitted and evaluated on, as one stream each.

Samples that are images are kept within bounds: for what auxiliary sets are made of, and what reports show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import (
    CALIBRATION,
    FIT,
    SIGNED,
    TEST,
    Batch,
    DatasetConfig,
    OodConfig,
    Pixels,
    Preprocessing,
    Raw,
    Samples,
    are_images,
    are_signed,
    check_classes,
    finite_samples,
    form,
    form_of,
    is_image,
    lots,
    open_source,
    samples_of,
    select,
    stacked,
    tensors_in,
)
from ..errors import DataError
from ..reporting import small_copy
from ..system import Inputs, described, each_input, rows_of, sample_count

FIT_BYTES = 1 << 28
"""Memory that samples to fit on may take while auxiliary sets are made of them: 256 MiB."""

THUMBNAIL_BYTES = 1 << 26
"""Memory that small copies of images, kept for reports, may take for each set: 64 MiB."""

CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """Form of the samples that a model takes.

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
        """Sets of samples by name."""
        return {
            name: self.samples(data, f"{kind} {name}", split=f"{kind}.{name}", labelled=labelled)
            for name, data in (sets or {}).items()
        }

    def checked(self, samples: Samples, *, want_labels: bool = False) -> Samples:
        """The samples, checked as they are read.

        Reading raises `DataError` for another shape than that of the samples the detector is fitted on, labels that
        are no classes, or none where some are wanted.
        """

        def read() -> Iterator[Batch]:
            labels: set[int] = set()
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
                finite = finite_samples(batch.inputs)
                if not finite.all():
                    raise DataError(
                        f"{samples.name}: sample {batch.ids[int(finite.int().argmin())]} holds numbers that are not "
                        "finite (NaN or infinite); repair such samples or leave them out"
                    )
                labels.update(batch.labels.tolist())
                yield batch
            if are_signed(labels, self.num_classes):
                raise DataError(f"{samples.name}: {SIGNED}; give 0 and 1")

        return replace(samples, read=read, _begun=None)


@dataclass(kw_only=True)
class FitSets:
    """Sets that a detector is fitted on.

    Attributes:
        form: what samples must be like.
        fit: what fits, and calibrates where no other samples do.
        holdout: share of `fit` that calibrates then, by lot.
        seed: of auxiliary sets.
        calibration: what calibrates.
        bank: what neighbours are looked for in.
        ood: OOD sets by name.
        auxiliary: settings of the synthetic sets that are made of what fits.
    """

    form: SampleForm
    fit: Samples
    holdout: float
    seed: int
    calibration: Samples | None
    bank: Samples | None
    ood: Mapping[str, Samples]
    auxiliary: Sequence[OodConfig] = ()

    def stream(self, thumbnails: Thumbnails) -> Iterator[Batch]:
        """All samples with their splits, those that fit first; small copies of the bank go to `thumbnails`."""
        kept = FitSamples()
        for batch in self.parted():
            if batch.split == FIT and (self.auxiliary or are_images(inputs_before(batch))):
                kept.add(batch)
            yield batch
        if self.calibration is not None:
            yield from self.calibration
        thumbnails.levels = kept.levels if len(kept.ids) else None
        yield from kept_small([] if self.bank is None else [self.bank], thumbnails)
        for samples in self.ood.values():
            yield from samples
        for entry in self.auxiliary:
            made, name = kept.made(entry, seed=self.seed), f"auxiliary {entry.name}"
            yield from self.form.samples(made, name, split=f"ood.{entry.name}", labelled=False)

    def parted(self) -> Iterator[Batch]:
        """The samples given to fit on, and those among them that calibrate."""
        drawn = lots(0)  # as for data.in_dist.fit.select.lot
        for batch in self.fit:
            if self.calibration is not None:
                yield batch
                continue
            held = (drawn.random(len(batch.ids)) >= 1 - self.holdout).tolist()
            for split, wanted in ((FIT, False), (CALIBRATION, True)):
                rows = [row for row, is_held in enumerate(held) if is_held is wanted]
                if rows:
                    yield replace(batch.rows(rows), split=split)

    @property
    def total(self) -> int:
        """Number of samples; 0 if that is unknown."""
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
    """Number of samples of several sets; 0 if that is unknown of one."""
    known = [each.count for each in sets if each.count is not None]
    return sum(known) if len(known) == len(sets) else 0


def inputs_before(batch: Batch) -> Inputs:
    """Inputs before preprocessing: raw pixels (N, C, H, W) uint8 where there are such."""
    return batch.inputs if batch.raw is None else batch.raw


@dataclass(frozen=True)
class Levels:
    """Values of black and white in preprocessed images, channel by channel.

    The darkest and brightest values of the samples to fit on. Where these reach both ends of their range, as eight-bit
    images mostly do, pixels are found exactly.

    Attributes:
        low: (C, 1, 1) float64.
        high: (C, 1, 1) float64.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, images: Tensor) -> Levels:
        """Levels of images (N, C, H, W) of floats."""
        found = images.double().nan_to_num(0.0, 0.0, 0.0)
        low, high = found.amin((0, 2, 3)), found.amax((0, 2, 3))
        return cls(low.view(-1, 1, 1), torch.where(high > low, high, low + 1.0).view(-1, 1, 1))

    def pixels(self, image: Tensor) -> Pixels:
        """(H, W, C) uint8 of an image (C, H, W)."""
        share = (image.double().nan_to_num(0.0) - self.low) / (self.high - self.low)
        return np.ascontiguousarray((share * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())

    def image(self, pixels: Pixels, dtype: torch.dtype) -> Tensor:
        """(C, H, W) of pixels (H, W, C) uint8."""
        share = torch.from_numpy(pixels.astype(np.float64)).permute(2, 0, 1) / 255
        return (self.low + share * (self.high - self.low)).to(dtype)


@dataclass
class FitSamples:
    """The first samples to fit on, as many as memory may be taken for: a source that others can be made of.

    Attributes:
        limit: bytes.
    """

    limit: int = FIT_BYTES
    _batches: list[Inputs] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _labels: list[Tensor] = field(default_factory=list)
    _bytes: int = 0

    def add(self, batch: Batch) -> None:
        """Keeps the first samples of a batch, as many as the limit leaves room for."""
        inputs = inputs_before(batch)
        count = sample_count(inputs)
        size = sum(each.nbytes for each in tensors_in(inputs)) // max(1, count)
        fitting = min(count, (self.limit - self._bytes) // max(1, size))
        if fitting > 0:
            self._batches.append(each_input(rows_of(inputs, slice(fitting)), lambda each: each.cpu().clone()))
            self._starts.append(self._starts[-1] + fitting)
            self._labels.append(batch.labels[:fitting])
            self._bytes += fitting * size
            self.__dict__.pop("levels", None)

    @property
    def ids(self) -> Sequence[str]:
        """See `SampleSource`: the places of the samples."""
        return [str(place) for place in range(self._starts[-1])]

    @property
    def labels(self) -> NDArray[np.int64]:
        """See `SampleSource`."""
        return np.asarray(torch.cat(self._labels).numpy(), dtype=np.int64)

    @cached_property
    def levels(self) -> Levels | None:
        """Black and white of preprocessed images; None of raw pixels, and of what are no images."""
        first = self._batches[0]
        if not isinstance(first, Tensor) or not are_images(first) or not first.is_floating_point():
            return None
        return Levels.of(torch.cat([each for each in self._batches if isinstance(each, Tensor)]))

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        place = bisect_right(self._starts, index) - 1
        own = each_input(self._batches[place], lambda each: each[index - self._starts[place]])
        if not isinstance(own, Tensor):
            return {name: each.numpy() for name, each in own.items()}
        if not are_images(own[None]):
            found: Raw = (own.float() if own.dtype in (torch.bfloat16, torch.float16) else own).numpy()
            return found
        return own.permute(1, 2, 0).numpy() if self.levels is None else self.levels.pixels(own)

    def content(self) -> str:
        """See `SampleSource`: nobody compares it."""
        return ""

    def made(self, entry: DatasetConfig, *, seed: int) -> Iterator[Inputs]:
        """The auxiliary set that an entry of the settings asks for, a few samples at a time, in the form of the inputs.

        Raises:
            DataError: samples of two classes are mixed, and there are fewer; or it is made of something else.
        """
        source = open_source(entry.source, base=self, seed=seed)
        waiting: list[Tensor | Mapping[str, Tensor]] = []
        for place in select(source, entry.select).tolist():
            sample = self._as_given(source.sample(place))
            if waiting and (form(sample) != form(waiting[0]) or len(waiting) == CHUNK):
                yield stacked(waiting)
                waiting = []
            waiting.append(sample)
        yield stacked(waiting)

    def _as_given(self, raw: Raw) -> Tensor | Mapping[str, Tensor]:
        """A sample in the form of the inputs."""
        first = self._batches[0]
        if isinstance(raw, Mapping) and not isinstance(first, Tensor):
            return {name: torch.from_numpy(np.asarray(raw[name])).to(each.dtype) for name, each in first.items()}
        assert isinstance(raw, np.ndarray)
        assert isinstance(first, Tensor)
        if not is_image(raw):
            return torch.from_numpy(raw).to(first.dtype)
        if self.levels is not None:
            return self.levels.image(raw, first.dtype)
        return torch.from_numpy(np.ascontiguousarray(raw.transpose(2, 0, 1)))


@dataclass
class Thumbnails:
    """Small copies of samples by split and name, as many of each split as memory may be taken for.

    Attributes:
        levels: black and white of preprocessed images; None of raw pixels.
        limit: bytes for each split.
    """

    levels: Levels | None = None
    limit: int = THUMBNAIL_BYTES
    _found: dict[tuple[str, str], Pixels] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Takes samples; nothing of what is no image."""
        inputs, split = inputs_before(batch), batch.split
        if (
            not isinstance(inputs, Tensor)
            or not are_images(inputs)
            or (self.levels is None) != (inputs.dtype == torch.uint8)
        ):
            return
        for name, each in zip(batch.ids, inputs.cpu(), strict=True):
            if self._bytes.get(split, 0) >= self.limit:
                return
            pixels = each.permute(1, 2, 0).numpy() if self.levels is None else self.levels.pixels(each)
            pixels = small_copy(pixels)
            self._found[split, name] = pixels
            self._bytes[split] = self._bytes.get(split, 0) + pixels.nbytes

    def copy(self) -> Thumbnails:
        """Copy, to which others can be added."""
        return Thumbnails(self.levels, self.limit, dict(self._found), dict(self._bytes))

    def get(self, split: str, sample_id: str) -> Pixels | None:
        """The copy of a sample (h, w, C) uint8; None where there is none."""
        return self._found.get((split, sample_id))
