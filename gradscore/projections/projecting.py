"""The projected gradient of every sample of a program or of a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..config import Config
from ..data import Batch
from ..errors import StoreError
from ..extractor import LossOfBatch
from ..models import weights_sha256
from ..pipeline import Counter, Progress, cut, open_split
from ..store import describe_network
from ..system import checked, only_writer
from .gradient_stream import GradientStream, gradients_of, logit_gradients
from .projection import Projection
from .projection_table import About, ProjectionFolder, Projections

SHARD_SIZE = 1000
"""Samples in a shard."""

SAME = 1e-3
"""Largest difference between projections of the same gradient, relative to its norm: a thousand roundings of float32,
since another number of threads, or of samples in a batch, may round otherwise."""


@checked
def project(
    model: nn.Module,
    data: Any,
    *,
    loss: str | None = None,
    losses: LossOfBatch | None = None,
    dim: int = 4096,
    seed: int = 0,
    parameters: str | Sequence[str] = "*",
    preprocessing: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    output: str | int | None = None,
    one_logit: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Projections:
    """A fixed random projection of the gradient of every sample's loss, by all parameters together.

    Products of projections estimate products of gradients, without bias. The gradient of a whole network is never
    there: that of each parameter is projected as the backward pass comes to it. The projection is fixed by
    `dim`, `seed` and the names and shapes of the parameters, whatever the batches and threads.

    Args:
        model: the classifier, in eval mode, on the device that computes. Nothing about it is changed.
        data: as for `gradscore.features`: a DataLoader, a Dataset, a tensor of samples, a pair of these and labels, or
            batches. Inputs are as the model takes them.
        loss: a name in `gradscore.losses.LOSSES`, "pseudo_label" by default.
        losses: instead of `loss`, a function from the model and a batch to the loss of each sample (N,), or of each of
            its tokens (N, T), whose sum counts: any model and any loss, those of language models for example. `data`
            is then an iterable of batches as they are (see `gradscore.features`), and preprocessing,
            batch_size, output and one_logit are left out; labels and predictions are -1.
        dim: numbers for each sample, 64 to 8,192.
        seed: of what is random, 0 or more.
        parameters: shell patterns on the names of parameters, or one; `@last` for those of the last layer.
        preprocessing: settings of the section `preprocessing`, for raw pixels (N, C, H, W) uint8.
        batch_size: samples that go through the model at a time, 64 by default.
        output: name or position of the logits among what the model returns, where it is not obvious.
        one_logit: the model returns one logit z for two classes, which become the logits `[0, z]`.
        out: a folder for the projections, in shards; what an interrupted call left there is kept by the next.
        progress: called as `progress(split, done, total)` after every batch.

    Returns:
        The projections, in the order of the samples.

    Raises:
        ConfigError: an unknown loss, or another setting that does not fit.
        DataError: samples that cannot be used, or none.
        ModelError: the model is in training mode, or cannot take the samples.
        EngineError: gradients that cannot be computed: samples are coupled, for one.
        StoreError: `out` has something else, or projections made with other settings, weights or samples.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> found = project(model, torch.randn(10, 4), dim=64)
        >>> found.values.shape, found.dot().shape
        ((10, 64), (10, 10))
    """
    projection = Projection(dim, seed)
    with gradients_of(
        model,
        data,
        parameters,
        loss=loss,
        losses=losses,
        preprocessing=preprocessing,
        batch_size=batch_size,
        output=output,
        one_logit=one_logit,
    ) as stream:
        return _projections_of(stream, projection, out=out, progress=progress)


def project_config(
    config: Config,
    *,
    split: str,
    loss: str,
    dim: int,
    seed: int,
    out: Path,
    like: About | None,
    progress: Progress | None,
) -> tuple[Projections, Sequence[str] | None]:
    """A random projection of the gradient of every sample of a split; see `project`.

    Of the section `features`, only `parameters` counts.

    Args:
        config: the settings.
        split: which samples.
        loss: a name in `gradscore.losses.LOSSES`.
        dim: as for `project`.
        seed: as for `project`.
        out: as for `project`.
        like: what the projections are to be compared with.
        progress: told after every batch.

    Returns:
        The projections, in the order of the samples, and what classes are called; None where that is not known.

    Raises:
        ConfigError: no such split, loss or device, or another setting out of range.
        EvaluationError: they could not be compared with `like`.
        ModelError: a model that cannot be built.
        DataError: samples that cannot be used, or have no label where the loss looks at it.
        EngineError: gradients that cannot be computed.
        StoreError: as `project`.
    """
    projection = Projection(dim, seed)
    opened = open_split(config, split, loss=loss, command="project")
    with logit_gradients(
        opened.model, opened.samples, config.features.parameters, loss=loss, batch_size=config.extract.batch_size
    ) as stream:
        found = _projections_of(
            stream,
            projection,
            out=out,
            like=like,
            network=describe_network(config),
            remarks=lambda: opened.notices,
            progress=progress,
        )
    return found, opened.dataset.class_names


def _projections_of(
    stream: GradientStream,
    projection: Projection,
    *,
    out: str | Path | None,
    like: About | None = None,
    network: dict[str, Any] | None = None,
    remarks: Callable[[], Sequence[str]] = tuple,
    progress: Progress | None,
) -> Projections:
    """Projects samples, or what a folder lacks of them; `remarks` says what is to be said of all samples."""
    about = About(
        dim=projection.dim,
        seed=projection.seed,
        loss=stream.loss_name,
        parameters={name: list(each.shape) for name, each in stream.engine.parameters.items()},
        weights_sha256=weights_sha256(stream.model),
        precision="float64" if stream.dtype == torch.float64 else "float32",
        network=network,
    )
    if like is not None:
        about.check_comparable(like)
    if out is not None:
        ProjectionFolder.prepare(Path(out))
    with nullcontext() if out is None else only_writer(Path(out)):
        folder = None if out is None else ProjectionFolder.opened(Path(out), about)
        counter, shards = Counter(stream.samples.count or 0, progress), list[Projections]()
        batches = cut(stream.batches(), batch_size=stream.batch_size, shard_size=SHARD_SIZE)
        for number, parts in groupby(batches, key=lambda each: each.shard):
            there = folder.shard(number) if folder is not None and folder.has(number) else None
            taken, made = list[Batch](), list[Projections]()
            for part in parts:
                # The first batch of a shard that is there is projected once more, and must come out the same: a folder
                # goes on only with the loss and the model that it was made with, whatever they are called.
                if there is None or part.is_first:
                    made.append(projected(stream, projection, part.batch, about))
                taken.append(part.batch)
                counter.add(stream.samples.name, part.batch.places)
            if folder is not None and there is not None:
                _compare(there, taken, made[0], where=folder.path)
            shards.append(Projections.concatenated(made) if there is None else there)
            if folder is not None and there is None:
                folder.write(number, shards[-1], split=stream.samples.name)
        found, notices = Projections.concatenated(shards), [*remarks(), *stream.engine.notices]
        lost = np.asarray(~np.isfinite(found.values).all(axis=1))
        if lost.any():
            first = found.sample_ids[int(lost.argmax())]
            notices.append(
                f"{int(lost.sum())} of {len(found)} projections are not finite, the first of sample {first}: the "
                "network overflows there"
            )
        if folder is not None:
            folder.finish(len(shards), notices=notices)
        return replace(found, notices=notices)


def projected(stream: GradientStream, projection: Projection, batch: Batch, about: About) -> Projections:
    """Projects the gradients of a batch."""
    sums = projection.blank(len(batch.ids), dtype=stream.dtype, device=stream.device)
    scale, predictions = stream.backward(batch, projection.sink(sums))
    return Projections(
        values=projection.finished(sums).cpu().numpy(),
        scale=scale.cpu().numpy(),
        predictions=predictions.cpu().numpy(),
        sample_ids=batch.ids,
        labels=batch.labels.numpy(),
        content_hashes=batch.content_hashes,
        about=about,
    )


def _compare(there: Projections, batches: Sequence[Batch], again: Projections, *, where: Path) -> None:
    """Makes sure that a shard is of these samples, and that what was projected again is as it was.

    Raises:
        StoreError: it is not.
    """
    hashes = [name for batch in batches for name in batch.content_hashes]
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    if list(there.content_hashes) != hashes or not np.array_equal(there.labels, labels):
        raise StoreError(
            f"{where}: projections of other samples or labels than these; give another folder, or delete this one"
        )
    before = there.values[: len(again.values)] * there.scale[: len(again.values), None]
    now = again.values * again.scale[:, None]
    finite = np.isfinite(before).all(axis=1)
    is_same = np.array_equal(finite, np.isfinite(now).all(axis=1))
    size = np.abs(before[finite]).max(axis=1, keepdims=True, initial=0.0)
    size[size == 0] = 1.0  # squares of tiny gradients would underflow
    norms = np.linalg.norm(before[finite] / size, axis=1)
    if not is_same or (np.linalg.norm((before[finite] - now[finite]) / size, axis=1) > SAME * norms).any():
        raise StoreError(
            f"{where}: projections came out otherwise than those there, the first those of sample "
            f"{there.sample_ids[0]}; they are of another loss or model: give another folder, or delete this one"
        )
