"""The figures of an inspection as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ..system import replacing
from .quantities.grad_hist_1d import GradHist1d
from .quantities.grad_hist_2d import GradHist2d
from .quantities.histogram import Histogram
from .quantities.mean_gsnr import MeanGSNR
from .quantities.quantity import MODEL
from .run import Inspection

TABLES = ("figures.parquet", "histograms.parquet", "histograms_2d.parquet", "gsnr.parquet")
"""What an inspection writes, the first always."""


def write_tables(inspection: Inspection, folder: Path) -> list[Path]:
    """Writes `figures.parquet` and, where those quantities were asked for, histograms and signal-to-noise maps.

    Args:
        inspection: what was found.
        folder: where the files go; it has none of them.

    Returns:
        The files: `figures.parquet` (group, quantity, measure, layer, statistic, value), `histograms.parquet` (group,
        layer, low, high, count, one row for each bin), `histograms_2d.parquet` (with low and high of gradient and
        parameter, empty bins left out) and `gsnr.parquet` (group, layer, entry, gsnr: one row for each entry of each
        parameter, in the order of its elements).
    """
    tables = ([inspection.table()], _histograms(inspection), _histograms_2d(inspection), _maps(inspection))
    written = []
    for name, each in zip(TABLES, tables, strict=True):
        frames = list(each)
        if frames:
            path = folder / name
            with replacing(path) as temporary:
                pd.concat(frames, ignore_index=True).to_parquet(temporary, index=False)
            written.append(path)
    return written


def _histograms(inspection: Inspection) -> Iterator[pd.DataFrame]:
    for group, quantities in inspection.groups.items():
        for quantity in quantities:
            if isinstance(quantity, GradHist1d):
                for layer, histogram in quantity.histograms.items():
                    edges = histogram.edges[0]
                    columns = {"low": edges[:-1], "high": edges[1:], "count": histogram.counts.numpy()}
                    yield pd.DataFrame({"group": group, "layer": layer, **columns})


def _histograms_2d(inspection: Inspection) -> Iterator[pd.DataFrame]:
    for group, quantities in inspection.groups.items():
        for quantity in quantities:
            if isinstance(quantity, GradHist2d):
                for layer, histogram in {**quantity.histograms, MODEL: quantity.model}.items():
                    yield _bins_2d(histogram).assign(group=group, layer=layer)


def _bins_2d(histogram: Histogram) -> pd.DataFrame:
    counts = histogram.counts.numpy()
    x, y = counts.nonzero()
    (gradient, parameter) = histogram.edges
    return pd.DataFrame(
        {
            "gradient_low": gradient[x],
            "gradient_high": gradient[x + 1],
            "parameter_low": parameter[y],
            "parameter_high": parameter[y + 1],
            "count": counts[x, y],
        }
    )


def _maps(inspection: Inspection) -> Iterator[pd.DataFrame]:
    for group, quantities in inspection.groups.items():
        for quantity in quantities:
            if isinstance(quantity, MeanGSNR):
                for layer in quantity.moments:
                    ratios = quantity.ratios(layer).cpu().numpy()
                    yield pd.DataFrame({"group": group, "layer": layer, "entry": range(len(ratios)), "gsnr": ratios})
