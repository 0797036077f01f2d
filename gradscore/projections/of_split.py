"""The projected gradients of a split of a configuration."""

from __future__ import annotations

from pathlib import Path

from ..config import Config
from ..data import FIT
from ..models import CodeTrust
from ..pipeline import Progress, open_split
from .given_loss import check_loss
from .gradient_stream import logit_gradients
from .kinds import make_projection
from .of_samples import projections_of
from .table import About, Projections


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
    trust_code: bool | CodeTrust = False,
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
        trust_code: allow a `python:` model or data, whose code is run; `RunFolder.trust` says which of a run folder.
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
    opened = open_split(config, split, loss=loss, command="project", trust_code=trust_code)
    with logit_gradients(
        opened.model, opened.samples, config.features.parameters, loss=loss, batch_size=config.extract.batch_size
    ) as stream:
        return projections_of(
            stream,
            projection,
            kind=kind,
            seed=seed,
            out=out,
            like=like,
            remarks=lambda: opened.notices,
            progress=progress,
        )
