"""Run folders: reading the feature tables of a run, and writing them so that an interrupted run can go on.

A run folder holds `config.yaml`, `manifest.json`, `features/<split>/part-*.parquet`, `meta/` and `evaluation/`.
Nothing in it depends on where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from .config import Config, dump_config, parse_config
from .config_source import closest
from .errors import StoreError
from .files import is_temporary, only_writer, remove_temporaries, write_text
from .manifest import FORMAT, NAME, check_same_inputs, package_versions, read_manifest, write_manifest
from .mean_gradients import NAME as MEAN_GRADIENTS
from .mean_gradients import MeanGradients, read_means
from .parts import META_COLUMNS, PartNote, Rows, part_columns, part_path, read_note, read_part, write_part

__all__ = [
    "META_COLUMNS",
    "RunFolder",
    "RunWriter",
    "SplitInfo",
    "feature_columns",
    "logit_columns",
    "penultimate_columns",
    "planned_splits",
]

SplitKind = Literal["in_dist.fit", "in_dist.test", "in_dist.calibration", "ood", "shifted"]


@dataclass(frozen=True)
class SplitInfo:
    """A split: its name, what it is for, and for OOD sets their own name, group and whether they are auxiliary."""

    name: str
    kind: SplitKind
    ood_name: str | None = None
    group: str | None = None
    auxiliary: bool = False


def planned_splits(config: Config) -> list[SplitInfo]:
    """The splits of a run in order: fit, test, calibration if there is one, then OOD and shifted sets as configured."""
    in_dist = [SplitInfo("in_dist.fit", "in_dist.fit"), SplitInfo("in_dist.test", "in_dist.test")]
    if config.data.in_dist.calibration is not None:
        in_dist.append(SplitInfo("in_dist.calibration", "in_dist.calibration"))
    ood = [SplitInfo(f"ood.{each.name}", "ood", each.name, each.group, each.auxiliary) for each in config.data.ood]
    return [*in_dist, *ood, *(SplitInfo(f"shifted.{each.name}", "shifted") for each in config.data.shifted)]


def feature_columns(frame: pd.DataFrame) -> list[str]:
    """The names of the features in a feature table, in order: `<loss>/<parameter or module>/<statistic>`."""
    return [name for name in frame.columns if "/" in name]


def logit_columns(frame: pd.DataFrame) -> list[str]:
    """The names of the logits in a feature table, by class."""
    return [name for name in frame.columns if name.startswith("logit_") and "/" not in name]


def penultimate_columns(frame: pd.DataFrame) -> list[str]:
    """The names of the penultimate features in a feature table, in order; none unless they were asked for."""
    return [name for name in frame.columns if name.startswith("penultimate_") and "/" not in name]


class RunFolder:
    """A run folder, for reading.

    Raises:
        StoreError: there is no run folder at `path`, or its manifest is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens the run folder at `path`."""
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)

    @cached_property
    def config(self) -> Config:
        """The resolved configuration of the run."""
        file = self.path / "config.yaml"
        try:
            return parse_config(file.read_text(encoding="utf-8"), where=str(file))
        except OSError as error:
            raise StoreError(f"{file}: cannot be read: {error.strerror}; run extract again to write it") from None

    @property
    def meta_path(self) -> Path:
        """Where the meta models lie."""
        return self.path / "meta"

    @property
    def evaluation_path(self) -> Path:
        """Where figures and reports lie."""
        return self.path / "evaluation"

    def splits(self) -> list[SplitInfo]:
        """The splits of the run in order."""
        fields = SplitInfo.__dataclass_fields__
        return [SplitInfo(**{key: entry[key] for key in fields}) for entry in self.manifest["splits"].values()]

    def read(self, split_name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Reads the feature table of a split, one row per sample in the order of the data.

        Args:
            split_name: for example `in_dist.fit` or `ood.noise`.
            columns: only these columns, in this order.

        Returns:
            `META_COLUMNS`, `logit_0` ..., `penultimate_0` ... if asked for, then the features. `sample_id`, `split` and
            `content_hash` are text, `label` (-1 for none) and `prediction` int64, `correct` nullable boolean, all
            others float64.

        Raises:
            StoreError: no such split or column, the run is not finished, or a part is missing or damaged.
        """
        entry = self._finished(split_name)
        folder = split_folder(self.path, split_name)
        paths = [part_path(folder, number) for number in range(entry["parts"])]
        if columns is not None:
            _check_columns(columns, part_columns(paths[0]), split_name=split_name)
        table = _joined([(path, read_part(path, columns)) for path in paths])
        if table.num_rows != entry["rows"]:
            raise StoreError(f"{folder}: wanted {entry['rows']} rows as in {NAME}, got {table.num_rows}; extract again")
        frame: pd.DataFrame = table.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
        return frame

    @property
    def samples_per_second(self) -> float | None:
        """How fast the features were computed, each split as it was last worked on; None if the run does not say.

        Raises:
            StoreError: the manifest was changed to something else than numbers.
        """
        spent = [entry["spent"] for entry in self.manifest["splits"].values() if "spent" in entry]
        try:
            seconds = sum(float(entry["seconds"]) for entry in spent)
            return sum(float(entry["samples"]) for entry in spent) / seconds if seconds else None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{self.path / NAME}: damaged: 'spent' of a split wants numbers 'samples' and 'seconds' ({error}); "
                "restore it from a copy or extract into another folder"
            ) from None

    def mean_gradients(self) -> MeanGradients | None:
        """The mean gradients of the run; None unless `features.columns` has `gradient_cosine`.

        Raises:
            StoreError: they are missing or were changed.
        """
        sha256 = self.manifest.get("mean_gradients_sha256")
        return None if sha256 is None else read_means(self.path, sha256=sha256)

    def _finished(self, split_name: str) -> dict[str, Any]:
        splits: dict[str, dict[str, Any]] = self.manifest["splits"]
        if split_name not in splits:
            raise StoreError(f"{self.path}: no split '{split_name}'; {closest(split_name, splits)}")
        if not splits[split_name]["finished"]:
            raise StoreError(f"{self.path}: split '{split_name}' is not finished; run the same extract command again")
        return splits[split_name]


class RunWriter:
    """Writes the parts of a run and keeps its manifest; made by `RunWriter.opened`."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        """Takes over the run folder at `path`, which has `manifest`."""
        self.path = path
        self.manifest = manifest

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, config: Config, inputs: Mapping[str, Any]) -> Iterator[RunWriter]:
        """Starts a run in `path`, or goes on with one of the same inputs, as the only writer.

        Raises:
            StoreError: `path` is something else, was made from other inputs, or another process writes to it.
        """
        check_target(path, inputs)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: this folder cannot be made: {error.strerror}") from None
        with only_writer(path):
            before = check_target(path, inputs)
            remove_temporaries(path)
            manifest = before or {"format": FORMAT, "finished": False, "inputs": inputs, "versions": package_versions()}
            known = manifest.get("splits", {})
            manifest["splits"] = {
                info.name: {"finished": False, **known.get(info.name, {}), **asdict(info)}
                for info in planned_splits(config)
            }
            write_manifest(path, manifest)
            write_text(path / "config.yaml", dump_config(config))
            yield cls(path, manifest)

    def existing(self, split_name: str, parts: int) -> dict[int, PartNote]:
        """The parts of a split that are there already, by number; `StoreError` names a damaged one."""
        folder = split_folder(self.path, split_name)
        paths = {number: part_path(folder, number) for number in range(parts)}
        return {number: read_note(path) for number, path in paths.items() if path.exists()}

    def write(self, split_name: str, number: int, rows: Rows) -> PartNote:
        """Writes part `number` of a split."""
        return write_part(part_path(split_folder(self.path, split_name), number), rows)

    def note(self, **entries: str) -> None:
        """Enters plain values into the manifest."""
        self.manifest |= entries
        write_manifest(self.path, self.manifest)

    def finish_split(
        self, split_name: str, notes: Sequence[PartNote], *, samples: int, seconds: float
    ) -> dict[str, Any]:
        """Enters a complete split into the manifest and returns its entry.

        Args:
            split_name: the split.
            notes: of its parts in order.
            samples: those computed this time.
            seconds: spent on them.
        """
        labelled = sum(note.labelled for note in notes)
        entry: dict[str, Any] = self.manifest["splits"][split_name]
        entry |= {
            "finished": True,
            "parts": len(notes),
            "rows": sum(note.rows for note in notes),
            "labelled": labelled,
            "accuracy": sum(note.correct for note in notes) / labelled if labelled else None,
            "non_finite": sum(note.non_finite for note in notes),
            "skipped": [asdict(skipped) for note in notes for skipped in note.skipped],
        }
        if samples:
            entry["spent"] = {"samples": samples, "seconds": round(seconds, 3)}
        write_manifest(self.path, self.manifest)
        return entry

    def finish(self, *, feature_count: int, notices: list[str]) -> None:
        """Marks the run as complete; `notices` are what a reader of its figures should know."""
        self.manifest |= {"finished": True, "feature_count": feature_count, "notices": notices}
        write_manifest(self.path, self.manifest)


def split_folder(path: Path, split_name: str) -> Path:
    """Where the parts of a split of the run in `path` lie."""
    return path / "features" / split_name


def is_complete(path: Path, manifest: Mapping[str, Any] | None) -> bool:
    """Whether the run in `path`, with this manifest, is finished and no part has gone missing since."""
    return (
        manifest is not None
        and manifest["finished"]
        and ("mean_gradients_sha256" not in manifest or (path / MEAN_GRADIENTS).exists())
        and all(
            part_path(split_folder(path, name), number).exists()
            for name, entry in manifest["splits"].items()
            for number in range(entry["parts"])
        )
    )


def check_target(path: Path, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of the run in `path` if it can go on with `inputs`; None where a new run can start.

    Raises:
        StoreError: `path` is a file or a folder of something else, or a run made from other inputs.
    """
    if (path / NAME).exists():
        manifest = read_manifest(path)
        check_same_inputs(path, manifest, inputs)
        return manifest
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: wanted a folder for the run, got a file; give another path")
    if path.exists() and not all(map(is_temporary, path.iterdir())):
        raise StoreError(f"{path}: this folder is not empty and not a run folder; give an empty or new one")
    return None


def _check_columns(columns: Sequence[str], available: Sequence[str], *, split_name: str) -> None:
    unknown = [name for name in columns if name not in set(available)]
    if unknown:
        raise StoreError(f"split '{split_name}' has no column '{unknown[0]}'; {closest(unknown[0], available)}")


def _joined(parts: Sequence[tuple[Path, pa.Table]]) -> pa.Table:
    wanted = parts[0][1].schema
    for path, table in parts:
        if table.schema != wanted:
            raise StoreError(
                f"{path}: its columns differ from those of {parts[0][0].name}; delete it and extract again"
            )
    return pa.concat_tables([table for _, table in parts])
