"""Which samples are inspected, and beside which others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Config
from ..data import TEST, SampleDataset, collate, planned_splits
from ..errors import DataError, ModelError
from ..features import ForwardPass

Grouping = Literal["split", "correct", "class"]


@dataclass(frozen=True)
class Chosen:
    """Samples of one split.

    Attributes:
        images: (N, ...) preprocessed.
        labels: (N,) int64, -1 for none.
        predictions: (N,) int64.
    """

    images: Tensor
    labels: Tensor
    predictions: Tensor


def choose(
    config: Config, model: nn.Module, datasets: Mapping[str, SampleDataset], *, samples: int, batch_size: int
) -> tuple[dict[str, Chosen], list[str]]:
    """Draws samples of the splits that are reported on: the test split, and OOD sets that are not auxiliary.

    Args:
        config: says which splits there are, and the seed.
        model: predicts.
        datasets: by split.
        samples: at most so many of each split.
        batch_size: samples that go through the model at a time.

    Returns:
        The samples by what reports call their split, and notices about samples that cannot be used.

    Raises:
        DataError: a sample that cannot be used, unless the configuration says that they are skipped, or a split of
            which nothing is left.
        ModelError: the model has no parameters, cannot take the images or returns something else than logits.
    """
    if config.data.in_dist.test is None:
        raise DataError("data.in_dist.test is null, and its samples are what is looked at; give some")
    if next(model.parameters(), None) is None:
        raise ModelError("the model has no parameters, so there are no gradients to look at")
    found, notices = {}, []
    for info, _ in planned_splits(config.data).values():
        if info.name != TEST and not info.is_reported_ood:
            continue
        dataset = datasets[info.name]
        places = np.random.default_rng(config.extract.seed).permutation(len(dataset))[:samples]
        batch = collate([dataset[int(place)] for place in places])
        if batch.bad and config.extract.on_error == "fail":
            raise DataError(f"split {info.name}, sample {batch.bad[0].sample_id}: {batch.bad[0].error}")
        if not isinstance(batch.images, Tensor):
            raise DataError(f"split {info.name}: wanted samples of one tensor each, got several by name")
        if not len(batch.images):
            raise DataError(f"split {info.name}: none of {len(places)} samples can be used: {batch.bad[0].error}")
        if batch.bad:
            notices.append(f"{info.name}: {len(batch.bad)} of {len(places)} samples cannot be used and are left out")
        found[info.dataset_name] = Chosen(
            batch.tensor, batch.labels, _predictions(model, batch.tensor, config.model.num_classes, batch_size)
        )
    return found, notices


@dataclass(frozen=True)
class Group:
    """Samples that are looked at together.

    Attributes:
        images: (N, ...) preprocessed.
        labels: (N,) int64, -1 for none; only samples of the test split have some.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.images)

    @classmethod
    def without_labels(cls, images: Tensor) -> Group:
        """Samples whose labels are not known, or belong to other classes."""
        return cls(images, torch.full((len(images),), -1))

    def parts(self, size: int) -> Iterator[Group]:
        """Batches of `size` samples in order; the last one may have fewer."""
        for start in range(0, len(self), size):
            yield Group(self.images[start : start + size], self.labels[start : start + size])


def grouped(chosen: Mapping[str, Chosen], by: Grouping) -> dict[str, Group]:
    """Samples by group; groups without one are left out.

    Args:
        chosen: as `choose` gives them.
        by: "split" for one group per split; "correct" parts the test split into right and wrong predictions and keeps
            the OOD sets beside them; "class" parts the test split by label and leaves OOD sets out.

    Returns:
        Samples by name of the group.

    Raises:
        DataError: no sample has a label, and the grouping needs them.
    """
    groups = dict(_groups(chosen, by))
    found = {name: group for name, group in groups.items() if len(group)}
    if by != "split" and not bool((chosen[TEST].labels >= 0).any()):
        raise DataError(f"grouping by {by} needs labels, and no sample of {TEST} has one; use --by split")
    return found


def _groups(chosen: Mapping[str, Chosen], by: Grouping) -> Iterator[tuple[str, Group]]:
    test = chosen[TEST]
    if by == "class":
        for label in sorted(set(test.labels[test.labels >= 0].tolist())):
            yield f"class {label}", _where(test, test.labels == label)
        return
    if by == "correct":
        known = test.labels >= 0
        right = test.labels == test.predictions
        yield "right", _where(test, known & right)
        yield "wrong", _where(test, known & ~right)
    else:
        yield TEST, Group(test.images, test.labels)
    for name, others in chosen.items():
        if name != TEST:
            yield name, Group.without_labels(others.images)


def _where(chosen: Chosen, places: Tensor) -> Group:
    return Group(chosen.images[places], chosen.labels[places])


def _predictions(model: nn.Module, images: Tensor, classes: int, batch_size: int) -> Tensor:
    device = next(iter(model.parameters())).device
    run = ForwardPass(model, device=device, num_classes=classes, autocast=None, last_layer=None, augmentations=())
    with torch.no_grad():
        return torch.cat([run.outputs(part).argmax(1).cpu() for part in parts(images, batch_size)])


def parts(images: Tensor, size: int) -> Iterator[Tensor]:
    """Batches of `size` images in order; the last one may have fewer."""
    for start in range(0, len(images), size):
        yield images[start : start + size]
