"""A split: the selected samples of a source, preprocessed one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ..errors import DataError
from ..system import sha256
from .preprocessing import Preprocessing
from .samples import BadSample, Sample
from .settings import DataConfig, DatasetConfig, PreprocessingConfig, SelectConfig
from .sources import ImageSource, Pixels, UnreadableImageError, open_source
from .splits import base_split, planned_splits

UNLABELLED = -1


@dataclass(frozen=True)
class Selected:
    """Some images of a source, as a source."""

    base: ImageSource
    places: NDArray[np.int64]
    labels: NDArray[np.int64] | None

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        ids = self.base.ids  # once: a source may make the list anew every time
        return [ids[place] for place in self.places]

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        return self.base.image(int(self.places[index]))

    def content(self) -> str:
        """See `ImageSource`."""
        return self.base.content()


class SampleDataset(Dataset[Sample | BadSample]):
    """The samples of a split.

    Args:
        images: the selected raw images, whose labels are classes of the model.
        preprocess: makes model inputs of them.
        labelled: False for OOD sets, whose labels are all -1.
    """

    def __init__(self, images: ImageSource, preprocess: Preprocessing, *, labelled: bool) -> None:
        self.images = images
        self.ids: list[str] = list(images.ids)
        self._preprocess = preprocess
        self._labels = images.labels if labelled else None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample | BadSample:
        """One sample, or why it cannot be used.

        Raises:
            DataError: the whole split cannot be used.
        """
        try:
            pixels = self.images.image(index)
        except UnreadableImageError as error:
            return BadSample(self.ids[index], str(error))
        label = UNLABELLED if self._labels is None else int(self._labels[index])
        return Sample(self.ids[index], self._preprocess(pixels), label, content_hash(pixels))

    def fingerprint(self) -> str:
        """SHA-256 of ids, labels and what is known of the content, as hexadecimal digits."""
        labels = [] if self._labels is None else self._labels.tolist()
        parts = ["\0".join(self.ids), ",".join(map(str, labels)), self.images.content()]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def content_hash(pixels: Pixels) -> str:
    """16 hexadecimal digits of the SHA-256 of shape and pixels.

    Args:
        pixels: (H, W, C) uint8.

    Returns:
        Equal for equal images.
    """
    shape = ",".join(map(str, pixels.shape)).encode()
    return hashlib.sha256(shape + b":" + np.ascontiguousarray(pixels).tobytes()).hexdigest()[:16]


def open_split(
    spec: DatasetConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    labelled: bool,
    made_of: ImageSource | None,
    seed: int,
) -> SampleDataset:
    """Opens the data of a split.

    Args:
        spec: source, selection and label map.
        preprocessing: from raw pixels to model inputs.
        num_classes: K, to check the labels.
        labelled: whether labels count; False for OOD sets.
        made_of: the raw in-distribution images that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The samples.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    images = open_images(spec, num_classes=num_classes if labelled else None, made_of=made_of, seed=seed)
    return SampleDataset(images, Preprocessing(preprocessing), labelled=labelled)


def open_splits(
    data: DataConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    seed: int,
    only: Collection[str] | None = None,
) -> dict[str, SampleDataset]:
    """Opens the data of all splits, by name and in order.

    Sets made of in-distribution images get the raw ones of the split that `base_split` names.

    Args:
        data: the section of the configuration.
        preprocessing: from raw pixels to model inputs.
        num_classes: K, to check the labels.
        seed: of random choices of the source.
        only: names of the splits that are wanted; all of them if None.

    Raises:
        DataError: data that cannot be used.
    """
    found: dict[str, SampleDataset] = {}
    for name, (info, spec) in planned_splits(data).items():
        if only is not None and name not in only:
            continue
        base = base_split(info, spec)
        found[name] = open_split(
            spec,
            preprocessing=preprocessing,
            num_classes=num_classes,
            labelled=info.kind != "ood",
            made_of=None if base is None else found[base].images,
            seed=seed,
        )
    return found


def open_images(spec: DatasetConfig, *, num_classes: int | None, made_of: ImageSource | None, seed: int) -> Selected:
    """Opens the raw images of a split.

    Args:
        spec: source, selection and label map.
        num_classes: K, of the model whose classes the labels become; None for OOD sets, which keep those of the source.
        made_of: the raw in-distribution images that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The selected images.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    source = open_source(spec.source, spec.arguments, base=made_of, seed=seed)
    places = select(source, spec.select)
    if not len(places):
        chosen = spec.select.model_dump(exclude_defaults=True)
        raise DataError(f"{spec.source} has no sample left of {len(source.ids)} with select {chosen or 'nothing'}")
    images = Selected(source, places, None if source.labels is None else source.labels[places])
    if num_classes is None or images.labels is None:
        return images
    return replace(images, labels=_mapped(images.labels, spec, images.ids, num_classes))


def select(source: ImageSource, spec: SelectConfig) -> NDArray[np.int64]:
    """Positions of the selected samples: by class, then content hash, then start and stop, then count.

    An image that cannot be decoded goes by the hash of its id, so that it is in one part of several, which names it.

    Args:
        source: the images.
        spec: the selection.

    Returns:
        Positions in the order of the source.

    Raises:
        DataError: a selection by class without labels.
    """
    places = np.arange(len(source.ids), dtype=np.int64)
    if spec.classes is not None:
        if source.labels is None:
            raise DataError("select.classes needs labels, and the source has none")
        places = places[np.isin(source.labels, spec.classes)]
    if spec.hash is not None:
        low, high = spec.hash
        shares = _shares(source, places)
        places = places[(shares >= low) & (shares < high)]
    places = places[spec.start : spec.stop]
    if spec.count is not None and spec.count < len(places):
        places = np.sort(np.random.default_rng(spec.seed).choice(places, spec.count, replace=False))
    return places


def _shares(source: ImageSource, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) for images, by content alone (by id where there is no content to be had)."""
    ids = source.ids
    digests = []
    for place in places.tolist():
        try:
            digests.append(content_hash(source.image(place)))
        except UnreadableImageError:
            digests.append(sha256(ids[place].encode())[:16])
    return np.array([int(digest, 16) / 2**64 for digest in digests])


def _mapped(labels: NDArray[np.int64], spec: DatasetConfig, ids: Sequence[str], num_classes: int) -> NDArray[np.int64]:
    found = labels
    if spec.label_map is not None:
        missing = sorted(set(labels.tolist()) - set(spec.label_map) - {UNLABELLED})
        if missing:
            raise DataError(f"{spec.source}: label_map says nothing of the labels {missing}")
        found = np.array([spec.label_map.get(int(label), UNLABELLED) for label in labels], dtype=np.int64)
    outside = np.flatnonzero((found < UNLABELLED) | (found >= num_classes))
    if len(outside):
        first = int(outside[0])
        raise DataError(
            f"{spec.source}: sample {ids[first]} has label {found[first]}, and {len(outside)} labels are outside "
            f"the model's classes 0..{num_classes - 1}; use select.classes or label_map, or correct model.num_classes"
        )
    return found
