"""The projected gradient of every sample of a program or of a split; and exact products with a few whole gradients."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ..config import Config
from ..data import FIT, Batch
from ..errors import ConfigError, EvaluationError, StoreError
from ..extractor import LossOfBatch
from ..gradients import PerSample
from ..models import trusting_code, weights_sha256
from ..pipeline import Cut, ListSink, Progress, Sink, open_split
from ..system import FloatArray, IntArray, only_writer
from .gradient_stream import GradientStream, LossFunction, check_loss, gradients_of, logit_gradients
from .kinds import DenseProjection, Projection, make_projection
from .projection_table import About, ProjectionFolder, Projections

SHARD_SIZE = 1000
"""Samples in a shard."""

SAME = 1e-3
"""Largest difference between projections of the same gradient, relative to its norm: a thousand roundings of float32,
since another number of threads, or of samples in a batch, may round otherwise."""


class SampleOptions(TypedDict, total=False):
    """Settings that say which loss of which samples; see `project`."""

    loss: str | LossFunction | None
    losses: LossOfBatch | None
    preprocessing: Mapping[str, Any] | None
    batch_size: int | None
    output: str | int | None
    one_logit: bool


def project(
    model: nn.Module,
    data: Any,
    *,
    loss: str | LossFunction | None = None,
    losses: LossOfBatch | None = None,
    dim: int = 4096,
    kind: str = "sparse",
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
    there: that of each parameter is projected as the backward pass comes to it. The projection is fixed by `kind`,
    `dim`, `seed` and the names and shapes of the parameters, whatever the batches and threads.

    Args:
        model: the classifier, in eval mode, on the device that computes. Nothing about it is changed.
        data: as for `gradscore.features`: a DataLoader, a Dataset, a tensor of samples, a pair of these and labels, or
            batches. Inputs are as the model takes them.
        loss: a name in `gradscore.losses.LOSSES` ("pseudo_label" by default), or a function from logits (N, K) float64
            and labels (N,), -1 for none, to the losses (N,), each of its own sample alone, that PyTorch can
            differentiate.
        losses: instead of `loss`, a function from the model and a batch to the loss of each sample (N,), or of each of
            its tokens (N, T), whose sum counts: any model and any loss, those of language models for example. `data`
            is then an iterable of batches as they are (see `gradscore.features`), and preprocessing,
            batch_size, output and one_logit are left out; labels and predictions are -1.
        dim: numbers for each sample, 64 to 8,192.
        kind: "sparse" (one addition for each parameter), "factored" (both sides of a layer's products, the fastest
            for convolutions) or "rademacher" (dense signs, `dim` products for each parameter).
        seed: of what is random.
        parameters: shell patterns on the names of parameters, or one; `@last` for those of the last layer.
        preprocessing: settings of the section `preprocessing`, for raw pixels (N, C, H, W) uint8.
        batch_size: samples that go through the model at a time, 64 by default.
        output: name or position of the logits among what the model returns, where it is not obvious.
        one_logit: the model returns one logit z for two classes, which become the logits `[0, z]`.
        out: a folder for the projections, in shards; what an interrupted call left there is kept by the next.
        progress: told how far it is.

    Returns:
        The projections, in the order of the samples.

    Raises:
        ConfigError: an unknown kind, loss or setting.
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
    projection = make_projection(kind, dim, seed)
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
        return _projections_of(stream, projection, kind=kind, seed=seed, out=out, progress=progress)


def project_config(
    config: Config,
    *,
    split: str = FIT,
    loss: str = "pseudo_label",
    dim: int = 4096,
    kind: str = "sparse",
    seed: int = 0,
    out: str | Path | None = None,
    like: About | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Projections:
    """A random projection of the gradient of every sample of a split; see `project`.

    Of the section `features`, only `parameters` counts.

    Args:
        config: the settings.
        split: which samples.
        loss: a name in `gradscore.losses.LOSSES`.
        dim: as for `project`.
        kind: as for `project`.
        seed: as for `project`.
        out: as for `project`.
        like: what the projections are to be compared with.
        trust_code: allow a `python:` model or data, whose code is run.
        progress: told after every batch.

    Returns:
        The projections, in the order of the samples.

    Raises:
        ConfigError: no such split, loss, kind or device, or another setting out of range.
        EvaluationError: they could not be compared with `like`.
        ModelError: a model that cannot be built.
        DataError: samples that cannot be used, or have no label where the loss looks at it.
        EngineError: gradients that cannot be computed.
        StoreError: as `project`.
    """
    check_loss(loss)
    projection = make_projection(kind, dim, seed)
    with trusting_code(trust_code):
        opened = open_split(config, split, loss=loss, command="project")
    with logit_gradients(
        opened.model, opened.samples, config.features.parameters, loss=loss, batch_size=config.extract.batch_size
    ) as stream:
        return _projections_of(
            stream,
            projection,
            kind=kind,
            seed=seed,
            out=out,
            like=like,
            remarks=lambda: opened.notices,
            progress=progress,
        )


def _projections_of(
    stream: GradientStream,
    projection: Projection,
    *,
    kind: str,
    seed: int,
    out: str | Path | None,
    like: About | None = None,
    remarks: Callable[[], Sequence[str]] = tuple,
    progress: Progress | None,
) -> Projections:
    """Projects samples, or what a folder lacks of them; `remarks` says what is to be said of all samples."""
    about = About(
        kind=kind,
        dim=projection.dim,
        seed=int(seed),
        loss=stream.loss_name,
        parameters={name: list(each.shape) for name, each in stream.engine.parameters.items()},
        weights_sha256=weights_sha256(stream.model),
        precision="float64" if stream.dtype == torch.float64 else "float32",
    )
    if like is not None:
        about.check_comparable(like)
    if out is not None:
        ProjectionFolder.prepare(Path(out))
    with nullcontext() if out is None else only_writer(Path(out)):
        folder = None if out is None else ProjectionFolder.opened(Path(out), about)
        sink = ProjectionSink(about, folder, stream.samples.name)
        stream.run(lambda batch: projected(stream, projection, batch), sink, shard_size=SHARD_SIZE, progress=progress)
        return sink.finished([*remarks(), *stream.engine.notices])


class Projected(NamedTuple):
    """What was found for N samples.

    Attributes:
        values: (N, dim): the projections of the gradients over `scale`.
        scale: (N,) float64, powers of two.
        predictions: (N,) int64.
    """

    values: NDArray[Any]
    scale: FloatArray
    predictions: IntArray


def projected(stream: GradientStream, projection: Projection, batch: Batch) -> Projected:
    """Projects the gradients of a batch."""
    sums = projection.blank(len(batch.ids), dtype=stream.dtype, device=stream.device)
    scale, predictions = stream.backward(batch, projection.sink(sums))
    return Projected(*(each.cpu().numpy() for each in (projection.finished(sums), scale, predictions)))


class ProjectionSink(Sink[Projected]):
    """Keeps projections in memory, or in the shards of a folder.

    The first batch of every shard that is there already is projected once more, and must come out the same: so that a
    folder goes on only with the loss and the model that it was made with, whatever they are called.

    Args:
        about: what is projected, and how.
        folder: where shards go; None to keep them in memory.
        split: what the samples are called.
    """

    def __init__(self, about: About, folder: ProjectionFolder | None, split: str) -> None:
        self._about, self._folder, self._split = about, folder, split
        self._waiting: list[tuple[Batch, Projected | None]] = []
        self._shards: list[Projections] = []
        self._done = 0

    def wants(self, cut: Cut) -> bool:
        """Whether a batch is not there already, or is the first of its shard."""
        return cut.is_first or self._folder is None or not self._folder.has(cut.shard)

    def take(self, cut: Cut, found: Projected | None) -> None:
        """See `Sink`."""
        self._waiting.append((cut.batch, found))
        if cut.is_last:
            self.close()

    def close(self) -> None:
        """See `Sink`; makes a shard of the batches that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._folder is not None and self._folder.has(self._done):
            _compare(self._folder.shard(self._done), waiting, where=self._folder.path)
        else:
            shard = Projections.concatenated(
                [
                    Projections(
                        **found._asdict(),
                        sample_ids=batch.ids,
                        labels=batch.labels.numpy(),
                        content_hashes=batch.content_hashes,
                        about=self._about,
                    )
                    for batch, found in waiting
                    if found is not None
                ]
            )
            if self._folder is None:
                self._shards.append(shard)
            else:
                self._folder.write(self._done, shard, split=self._split)
        self._done += 1

    def finished(self, notices: Sequence[str]) -> Projections:
        """The projections of all samples; `notices` say what a reader should know of them."""
        folder = self._folder
        shards = self._shards if folder is None else [folder.shard(number) for number in range(self._done)]
        found = Projections.concatenated(shards)
        lost = np.asarray(~np.isfinite(found.values).all(axis=1))
        if lost.any():
            first = found.sample_ids[int(lost.argmax())]
            notices = [
                *notices,
                f"{int(lost.sum())} of {len(found)} projections are not finite, the first of sample {first}: the "
                "network overflows there",
            ]
        if folder is not None:
            folder.finish(self._done, notices=notices)
        return replace(found, notices=notices)


def _compare(there: Projections, waiting: Sequence[tuple[Batch, Projected | None]], *, where: Path) -> None:
    """Makes sure that a shard is of these samples, and that what was computed again is as it was.

    Raises:
        StoreError: it is not.
    """
    hashes = [name for batch, _ in waiting for name in batch.content_hashes]
    labels = np.concatenate([batch.labels.numpy() for batch, _ in waiting])
    if list(there.content_hashes) != hashes or not np.array_equal(there.labels, labels):
        raise StoreError(
            f"{where}: projections of other samples or labels than these; give another folder, or delete this one"
        )
    again = waiting[0][1]
    assert again is not None  # the sink wants the first batch of every shard
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


MEMORY_LIMIT = 1 << 31
"""Bytes that stored gradients may take: a quarter of the memory of a small machine."""

ONE_PIECE = 1 << 62
"""Samples in a shard: nothing is written."""


@dataclass(frozen=True, kw_only=True)
class StoredGradients:
    """The whole gradients of M samples: `values * scale`.

    Attributes:
        values: (M, P) by the name of the parameter, float64 where the model is, else float32.
        scale: (M,) float64, powers of two.
        shapes: those of the parameters, by name.
        weights_sha256: hash of all parameters and buffers of the model.
    """

    values: Mapping[str, Tensor]
    scale: FloatArray
    shapes: Mapping[str, tuple[int, ...]]
    weights_sha256: str

    def __repr__(self) -> str:
        """How many of what, in one line."""
        elements = sum(each[0].numel() for each in self.values.values()) if len(self) else 0
        return f"StoredGradients(M={len(self)}, parameters={len(self.values)}, elements={elements})"

    def __len__(self) -> int:
        """M."""
        return len(self.scale)

    def dot(self, other: StoredGradients | None = None) -> FloatArray:
        """Products of gradients.

        Args:
            other: N gradients; these themselves by default.

        Returns:
            (M, N) float64.

        Raises:
            EvaluationError: the two are of other parameters, or of other weights.
        """
        that = self if other is None else other
        if dict(self.shapes) != dict(that.shapes):
            raise EvaluationError("the gradients are of other parameters, so they have no products")
        if self.weights_sha256 != that.weights_sha256:
            raise EvaluationError("the gradients are of other weights, so their products mean nothing")
        device = next((values.device for values in self.values.values()), None)
        found = torch.zeros(len(self), len(that), dtype=torch.float64, device=device)
        for name, values in self.values.items():
            found += (values.double() @ that.values[name].double().t()).to(found.device)
        return np.asarray(found.cpu().numpy() * self.scale[:, None] * that.scale)


def store_gradients(
    model: nn.Module, data: Any, *, parameters: str | Sequence[str] = "*", **options: Unpack[SampleOptions]
) -> StoredGradients:
    """The whole gradients of a few samples, to take products with.

    Args:
        model: as for `project`.
        data: as for `project`; how many samples is limited by memory (`MEMORY_LIMIT`).
        parameters: as for `project`.
        options: loss, losses, preprocessing, batch_size, output and one_logit, as for `project`.

    Raises:
        ConfigError: an unknown loss or setting, or more gradients than memory.
        DataError: as `project`; so do ModelError and EngineError.
    """
    with gradients_of(model, data, parameters, **options) as stream:
        kept, of_parameters = ListSink[tuple[dict[str, Tensor], FloatArray]](), stream.engine.parameters
        elements = sum(each.numel() for each in of_parameters.values())

        def whole(batch: Batch) -> tuple[dict[str, Tensor], FloatArray]:
            count = len(batch.ids)
            samples = sum(len(scale) for _, scale in kept.found) + count
            needed = samples * elements * stream.dtype.itemsize
            if needed > MEMORY_LIMIT:
                raise ConfigError(
                    f"data: {samples} gradients of {elements} entries take {needed / 1e9:.3g} GB, more than "
                    f"{MEMORY_LIMIT / 1e9:.3g} GB; store fewer, choose fewer parameters, or project them"
                )
            rows = {
                name: torch.zeros(count, each.numel(), dtype=stream.dtype, device=stream.device)
                for name, each in of_parameters.items()
            }

            def keep(name: str, part: slice, gradient: PerSample) -> None:
                values = gradient.dense(slice(None)).reshape(len(gradient), prod(gradient.shape))
                rows[name][part] = values.to(stream.dtype)

            scale, _ = stream.backward(batch, keep)
            return rows, scale.cpu().numpy()

        stream.run(whole, kept, shard_size=ONE_PIECE)
        return StoredGradients(
            values={name: torch.cat([rows[name] for rows, _ in kept.found]) for name in of_parameters},
            scale=np.concatenate([scale for _, scale in kept.found]),
            shapes={name: tuple(each.shape) for name, each in of_parameters.items()},
            weights_sha256=weights_sha256(stream.model),
        )


def dot_products(
    model: nn.Module,
    data: Any,
    stored: StoredGradients,
    *,
    progress: Progress | None = None,
    **options: Unpack[SampleOptions],
) -> FloatArray:
    """Exact products of the gradients of all samples with stored ones.

    Args:
        model: as for `project`.
        data: as for `project`: N samples.
        stored: M gradients of parameters of this model.
        progress: told how far it is.
        options: as for `store_gradients`.

    Returns:
        (N, M) float64.

    Raises:
        ConfigError: an unknown loss or setting, or gradients of parameters or weights that the model does not have.
        DataError: as `project`; so do ModelError and EngineError.
    """
    of_model = dict(model.named_parameters())
    for name, shape in stored.shapes.items():
        got = tuple(of_model[name].shape) if name in of_model else None
        if shape != got:
            there = "the model has no such parameter" if got is None else f"that of the model {got}"
            raise ConfigError(f"stored: {name} has shape {shape}, and {there}; store gradients of this model")
    if stored.weights_sha256 != weights_sha256(model):
        raise ConfigError(
            "stored: gradients of other weights than those of the model; store gradients of this model as it is"
        )
    parameters = [glob.escape(name) for name in stored.values]
    with gradients_of(model, data, parameters, **options) as stream:
        products, kept = _AgainstStored(stored), ListSink[Projected]()
        stream.run(lambda batch: projected(stream, products, batch), kept, shard_size=ONE_PIECE, progress=progress)
        return np.concatenate([each.values * each.scale[:, None] for each in kept.found]) * stored.scale


class _AgainstStored(DenseProjection):
    """Products with stored gradients: their matrix, in place of a random one, and added up in float64."""

    def __init__(self, stored: StoredGradients) -> None:
        self.dim, self._stored = len(stored), stored

    @override
    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return super().blank(samples, dtype=torch.float64, device=device)

    @override
    def columns(self, name: str, elements: slice, *, like: Tensor) -> Tensor:
        return self._stored.values[name][:, elements].t().to(like.dtype).to(like.device)

    @override
    def columns_of(self, name: str, elements: Tensor, *, like: Tensor) -> Tensor:
        return self._stored.values[name].to(like.device)[:, elements].movedim(0, -1).to(like.dtype)
