"""Writing the figures of an inspector to TensorBoard."""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from .inspector import EpochCallback, Inspector


class Writer(Protocol):
    """What is needed of `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Writes a number."""


def to_tensorboard(writer: Writer) -> EpochCallback:
    """Makes a function that writes every epoch of an inspector.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or anything with its methods.

    Returns:
        For the argument `on_epoch` of an `Inspector`. Every statistic becomes a scalar with tag
        quantity/measure/layer/statistic; figures that are not finite are left out.
    """

    def write(inspector: Inspector) -> None:
        for quantity in inspector.quantities:
            for row in quantity.summary():
                if isfinite(row.value):
                    tag = "/".join((quantity.name, row.measure, row.layer, row.statistic)).replace(" ", "_")
                    writer.add_scalar(tag, row.value, inspector.epoch)

    return write
