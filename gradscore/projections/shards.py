"""Projections of batches, kept in memory or in the shards of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import Batch
from ..errors import StoreError
from ..features import Cut
from ..system import FloatArray, IntArray, only_writer
from .folder import ProjectionFolder
from .gradient_stream import GradientStream
from .projection import Projection
from .table import About, Projections

SAME = 1e-3
"""Largest difference between projections of the same gradient, relative to its norm: a thousand roundings of float32,
since another number of threads, or of samples in a batch, may round otherwise."""


def written(
    gradients: GradientStream,
    projection: Projection,
    about: About,
    cuts: Iterable[Cut],
    *,
    out: Path | None,
    split: str,
    remarks: Callable[[], Sequence[str]],
) -> Projections:
    """Projects samples, or what is missing of them in a folder.

    Args:
        gradients: of batches.
        projection: of gradients.
        about: what is projected, and how.
        cuts: all samples.
        out: the folder; None to keep them in memory alone.
        split: what the samples are called.
        remarks: what is to be said of the samples, once all were seen.

    Raises:
        StoreError: `out` has something else, or projections made with other settings, weights or samples.
    """
    if out is not None:
        ProjectionFolder.prepare(out)
    with nullcontext() if out is None else only_writer(out):
        folder = None if out is None else ProjectionFolder.opened(out, about)
        shards = _Shards(lambda batch: projected(gradients, projection, batch), about, folder, split)
        for cut in cuts:
            shards.take(cut)
        shards.close()
        return shards.finished([*remarks(), *gradients.engine.notices])


@dataclass(frozen=True)
class Projected:
    """What was found for N samples.

    Attributes:
        values: (N, dim): the projections of the gradients over `scale`.
        scale: (N,) float64, powers of two.
        predictions: (N,) int64.
    """

    values: NDArray[Any]
    scale: FloatArray
    predictions: IntArray


def projected(gradients: GradientStream, projection: Projection, batch: Batch) -> Projected:
    """Projects the gradients of a batch."""
    sums = projection.blank(len(batch.sample_ids), dtype=gradients.dtype, device=gradients.device)
    seen = gradients.run(batch, projection.sink(sums))
    found = (projection.finished(sums), seen.scale, seen.predictions)
    return Projected(*(each.cpu().numpy() for each in found))


@dataclass(frozen=True)
class _Waiting:
    """A batch, and what was found for it; None where a shard has that already."""

    batch: Batch
    found: Projected | None


class _Shards:
    """Takes batches and makes shards of them.

    The first batch of every shard that is there already is projected once more, and must come out the same: so that a
    folder goes on only with the loss and the model that it was made with, whatever they are called.
    """

    def __init__(
        self, project: Callable[[Batch], Projected], about: About, folder: ProjectionFolder | None, split: str
    ) -> None:
        self._project, self._about, self._folder, self._split = project, about, folder, split
        self._waiting: list[_Waiting] = []
        self._shards: list[Projections] = []
        self._done = 0

    def take(self, cut: Cut) -> None:
        """Projects a batch unless it is there already."""
        is_there = self._folder is not None and self._folder.has(cut.shard)
        is_needed = not is_there or not self._waiting
        self._waiting.append(_Waiting(cut.batch, self._project(cut.batch) if is_needed else None))
        if cut.last:
            self.close()

    def close(self) -> None:
        """Makes a shard of the batches that wait."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        if self._folder is None:
            self._shards.append(_joined(waiting, self._about))
        elif self._folder.has(self._done):
            _compare(self._folder.read(self._done), waiting, where=self._folder.path)
        else:
            self._folder.write(self._done, _joined(waiting, self._about), split=self._split)
        self._done += 1

    def finished(self, notices: Sequence[str]) -> Projections:
        """The projections of all samples; `notices` say what a reader should know of them."""
        folder = self._folder
        shards = self._shards if folder is None else [folder.read(number) for number in range(self._done)]
        found = Projections.concatenated(shards)
        notices = [*notices, *_overflow(found)]
        if folder is not None:
            folder.finish(self._done, notices=notices)
        return replace(found, notices=notices)


def _overflow(found: Projections) -> list[str]:
    """What is to be said where projections are not finite."""
    lost = np.asarray(~np.isfinite(found.values).all(axis=1))
    if not lost.any():
        return []
    first = found.sample_ids[int(lost.argmax())]
    return [
        f"{int(lost.sum())} of {len(found)} projections are not finite, the first of sample {first}: the network "
        "overflows there"
    ]


def _joined(waiting: Sequence[_Waiting], about: About) -> Projections:
    """The projections of batches that were projected."""
    return Projections.concatenated([_of_batch(each, about) for each in waiting])


def _of_batch(waiting: _Waiting, about: About) -> Projections:
    batch, found = waiting.batch, waiting.found
    assert found is not None
    return Projections(
        values=found.values,
        scale=found.scale,
        sample_ids=batch.sample_ids,
        labels=batch.labels.numpy(),
        predictions=found.predictions,
        content_hashes=batch.content_hashes,
        about=about,
    )


def _compare(there: Projections, waiting: Sequence[_Waiting], *, where: Path) -> None:
    """Makes sure that a shard is of these samples, and that what was computed again is as it was.

    Raises:
        StoreError: it is not.
    """
    hashes = [name for each in waiting for name in each.batch.content_hashes]
    labels = np.concatenate([each.batch.labels.numpy() for each in waiting])
    if list(there.content_hashes) != hashes or not np.array_equal(there.labels, labels):
        raise StoreError(
            f"{where}: projections of other samples or labels than these; give another folder, or delete this one"
        )
    again = waiting[0].found
    if again is None:
        return
    before = there.values[: len(again.values)] * there.scale[: len(again.values), None]
    now = again.values * again.scale[:, None]
    finite = np.isfinite(before).all(axis=1)
    is_same = np.array_equal(finite, np.isfinite(now).all(axis=1))
    if not is_same or (_norms(before[finite] - now[finite]) > SAME * _norms(before[finite])).any():
        raise StoreError(
            f"{where}: projections came out otherwise than those there, the first those of sample "
            f"{there.sample_ids[0]}; they are of another loss or model: give another folder, or delete this one"
        )


def _norms(values: FloatArray) -> FloatArray:
    """L2 norms of rows, which may be tiny."""
    largest = np.abs(values).max(axis=1, initial=0.0)
    return np.asarray(largest * np.linalg.norm(values / np.where(largest > 0, largest, 1.0)[:, None], axis=1))
