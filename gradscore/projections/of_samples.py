"""`gradscore.project`: the projected gradient of every sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..extractor import LossOfBatch
from ..models import weights_sha256
from ..pipeline import Progress
from .folder import written
from .given_loss import LossFunction
from .gradient_stream import GradientStream, gradients_of
from .kinds import Projection, make_projection
from .table import About, Projections


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
        return projections_of(stream, projection, kind=kind, seed=seed, out=out, progress=progress)


def projections_of(
    stream: GradientStream,
    projection: Projection,
    *,
    kind: str,
    seed: int,
    out: str | Path | None = None,
    like: About | None = None,
    remarks: Callable[[], Sequence[str]] = tuple,
    progress: Progress | None = None,
) -> Projections:
    """The projections that `project` returns.

    Args:
        stream: gradients of samples.
        projection: of `kind` with `seed`.
        kind: as for `project`.
        seed: as for `project`.
        out: as for `project`.
        like: what the projections are to be compared with.
        remarks: what is to be said of the samples, once all were seen.
        progress: told how far it is.

    Raises:
        EvaluationError: they could not be compared with `like`.
        ConfigError: as `project`; so do DataError, ModelError, EngineError and StoreError.
    """
    about = About(
        kind=kind,
        dim=projection.dim,
        seed=int(seed),
        loss=stream.loss_name,
        parameters={name: list(each.shape) for name, each in stream.backward.engine.parameters.items()},
        weights_sha256=weights_sha256(stream.model),
        precision="float64" if stream.backward.dtype == torch.float64 else "float32",
    )
    if like is not None:
        about.check_comparable(like)
    folder = None if out is None else Path(out)
    return written(stream, projection, about, out=folder, remarks=remarks, progress=progress)
