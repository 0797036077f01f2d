"""A run of training as tables, and the one file that holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigError
from ...system import replacing

KEY = b"gradscore.training"
"""Of what a Parquet file says beside its rows."""

STEPS = ("quantity", "measure", "layer", "start", "stop", "count", "non_finite", "mean", "std", "min", "max")
EPOCHS = ("quantity", "measure", "layer", "epoch", "step", "statistic", "value")
HISTOGRAMS = ("quantity", "layer", "epoch", "step", "low", "high", "bin_count")
FINDINGS = ("step", "kind", "layer", "sentence")


@dataclass(frozen=True)
class Drawing:
    """How a quantity is drawn; see `Quantity`."""

    title: str
    captions: Mapping[str, str]
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    log_scale: bool


@dataclass(frozen=True)
class TrainingRecord:
    """What an inspector saw of a run.

    Attributes:
        name: of the run.
        layers: layers and parameters in the order of the model.
        steps: for every stretch of steps (from `start`, before `stop`) of every quantity, measure and layer: count,
            values that are not finite, mean, population standard deviation, extremes.
        epochs: a row for every figure of every epoch, with the last step of the epoch.
        histograms: a row for every bin that is not empty, with its edges.
        findings: what was not well, with the step at which it was seen.
        drawings: how quantities are drawn, by name.
    """

    name: str
    layers: list[str]
    steps: pd.DataFrame
    epochs: pd.DataFrame
    histograms: pd.DataFrame
    findings: pd.DataFrame
    drawings: dict[str, Drawing] = field(default_factory=dict)

    def save(self, path: Path | str) -> None:
        """Writes one Parquet file; what is there stays until the new one is complete."""
        parts = {"steps": self.steps, "epochs": self.epochs, "histograms": self.histograms, "findings": self.findings}
        rows = pd.concat([part.assign(part=name) for name, part in parts.items() if len(part)] or [_nothing()])
        about = {
            "name": self.name,
            "layers": self.layers,
            "drawings": {name: asdict(each) for name, each in self.drawings.items()},
        }
        table = pa.Table.from_pandas(rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: json.dumps(about).encode()})
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary)


def read_record(path: Path | str) -> TrainingRecord:
    """Reads what `TrainingRecord.save` wrote.

    Raises:
        ConfigError: the file is not there, or is something else.
    """
    if not Path(path).is_file():
        got = "a folder" if Path(path).is_dir() else "nothing there"
        raise ConfigError(
            f"{path} holds no run: wanted a file that Inspector.save or Inspector.report wrote, got {got}"
        )
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read as a run of training: {error}") from error
    about = (table.schema.metadata or {}).get(KEY)
    if about is None:
        raise ConfigError(
            f"{path} holds no run of training; wanted a file that Inspector.save or Inspector.report wrote"
        )
    try:
        return _record(json.loads(about), table.to_pandas())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged, or another version of gradscore wrote it: {type(error).__name__}: {error}"
        ) from error


def _record(about: Mapping[str, Any], rows: pd.DataFrame) -> TrainingRecord:
    drawings = {
        name: Drawing(each["title"], each["captions"], tuple(each["lines"]), tuple(each["bands"]), each["log_scale"])
        for name, each in about["drawings"].items()
    }
    return TrainingRecord(
        name=about["name"],
        layers=about["layers"],
        steps=_part(rows, "steps", STEPS, whole=("start", "stop", "count", "non_finite")),
        epochs=_part(rows, "epochs", EPOCHS, whole=("epoch", "step")),
        histograms=_part(rows, "histograms", HISTOGRAMS, whole=("epoch", "step", "bin_count")),
        findings=_part(rows, "findings", FINDINGS, whole=("step",)),
        drawings=drawings,
    )


def _part(rows: pd.DataFrame, name: str, columns: tuple[str, ...], *, whole: tuple[str, ...]) -> pd.DataFrame:
    found = rows[rows["part"] == name]
    found = (found[list(columns)] if len(found) else found.reindex(columns=list(columns))).reset_index(drop=True)
    return found.astype(dict.fromkeys(whole, "int64"))


def _nothing() -> pd.DataFrame:
    return pd.DataFrame({"part": pd.Series([], dtype=str)})
