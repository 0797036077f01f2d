"""Writing the figures of an inspector to TensorBoard."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Protocol

from ..errors import MissingExtraError
from .inspector import EpochCallback, Inspector


class Writer(Protocol):
    """What is needed of `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Writes a number."""

    def flush(self) -> object:
        """Makes sure that what was written can be read."""


def to_tensorboard(writer: Writer | Path | str) -> EpochCallback:
    """Makes a function that writes every epoch of an inspector.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, anything with its methods, or a folder for a new one.

    Returns:
        For the argument `on_epoch` of an `Inspector`. Every statistic becomes a scalar with tag
        quantity/measure/layer/statistic; figures that are not finite are left out.

    Raises:
        MissingExtraError: a folder is given, and TensorBoard is not installed.
    """
    target = _open(writer) if isinstance(writer, Path | str) else writer

    def write(inspector: Inspector) -> None:
        for quantity in inspector.quantities:
            for row in quantity.summary():
                if isfinite(row.value):
                    tag = "/".join((quantity.name, row.measure, row.layer, row.statistic)).replace(" ", "_")
                    target.add_scalar(tag, row.value, inspector.epoch)
        target.flush()

    return write


def _open(folder: Path | str) -> Writer:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"nothing can be written to {folder} for TensorBoard: {error}; run `pip install 'gradscore[tensorboard]'`"
        ) from error
    made: Writer = SummaryWriter(str(folder))
    return made
