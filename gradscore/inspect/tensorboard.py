"""Writing the figures of an inspector, and its histograms, to TensorBoard."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from ..errors import MissingExtraError
from .inspector import EpochCallback, Inspector
from .quantities.histograms import GradHist1d, Histogram


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
        Every statistic becomes a scalar with tag
        quantity/measure/layer/statistic; figures that are not finite are left out. The counts of `GradHist1d` become
        histograms with tag quantity/layer, where the writer has `add_histogram_raw`.

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
            if isinstance(quantity, GradHist1d) and hasattr(target, "add_histogram_raw"):
                for layer, histogram in quantity.histograms.items():
                    tag = f"{quantity.name}/{layer}".replace(" ", "_")
                    target.add_histogram_raw(tag, **_raw(histogram), global_step=inspector.epoch)
        target.flush()

    return write


def _raw(histogram: Histogram) -> dict[str, Any]:
    """Counts as TensorBoard takes them; sums are those of values in the middle of their bins."""
    edges, counts = histogram.edges[0], histogram.counts.numpy()
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        "min": float(edges[0]),
        "max": float(edges[-1]),
        "num": int(counts.sum()),
        "sum": float(counts @ middles),
        "sum_squares": float(counts @ middles**2),
        "bucket_limits": edges[1:].tolist(),
        "bucket_counts": counts.tolist(),
    }


def _open(folder: Path | str) -> Writer:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"nothing can be written to {folder} for TensorBoard: {error}; run `pip install 'gradscore[tensorboard]'`"
        ) from error
    made: Writer = SummaryWriter(str(folder))
    return made
