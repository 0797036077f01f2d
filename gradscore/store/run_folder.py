"""Run folders: reading them, and writing them so that an interrupted run can go on.

A run folder holds `config.yaml`, `manifest.json`, `features/<split>/part-*.parquet`, `meta/` and `evaluation/`.
Nothing in it depends on where it lies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ..columns import BESIDE, META_COLUMNS, RECOMPUTED, SIGNATURE
from ..config import Config, dump_config, parse_config
from ..data import BANK, FIT, SplitInfo, augmentation_name, planned_splits
from ..errors import ConfigError, StoreError
from ..models import CodeOrigin, Head
from ..object_storage import CHECKSUMS, CONFIG, MANIFEST, is_copy
from ..system import (
    BoolArray,
    closest,
    file_sha256,
    is_address,
    is_temporary,
    sha256,
    write_bytes,
    write_text,
)
from .manifest import (
    Changes,
    Manifest,
    RunInputs,
    Spent,
    SplitEntry,
    differences,
    find_changes,
    other_inputs,
    package_versions,
)
from .run_files import (
    GIT_IGNORE,
    ShardNote,
    changing,
    is_complete,
    read_checksums,
    read_note,
    read_shard,
    refuse_other_content,
    shard_columns,
    shard_path,
    split_folder,
)

HEAD = "head.safetensors"

PARTIAL = "partial"
"""Folder where processes that share a run say what each has written; gone when the run is finished."""


def write_head(run: Path, head: Head) -> None:
    """Writes the last layer to a run folder."""
    write_bytes(run / HEAD, save({"weight": np.ascontiguousarray(head.weight), "bias": head.bias}))


def read_head(run: Path) -> Head:
    """Reads the last layer of a run folder.

    Raises:
        StoreError: it is missing or damaged.
    """
    path = run / HEAD
    try:
        return Head(**load_file(path))
    except (OSError, SafetensorError, TypeError) as error:
        raise StoreError(
            f"{path}: the last layer cannot be read ({error}), and baselines need it beside the penultimate features; "
            "restore it, or extract into another folder"
        ) from None


class RunFolder:
    """A run folder, for reading.

    Raises:
        StoreError: there is no run folder at `path`, or its manifest is damaged.
    """

    def __init__(self, path: str | Path, *, config: Config | None = None) -> None:
        """Opens the run folder at `path`, with other settings than are stored in it if they are given."""
        self.path = Path(path)
        self._given = config
        self._hashes: dict[Path, str] = {}
        self.manifest = Manifest.read(self.path)

    @cached_property
    def config(self) -> Config:
        """The resolved configuration of the run."""
        if self._given is not None:
            return self._given
        file = self.path / CONFIG
        try:
            return parse_config(file.read_text(encoding="utf-8"), where=str(file))
        except OSError as error:
            raise StoreError(f"{file}: cannot be read: {error.strerror}; run extract again to write it") from None
        except UnicodeDecodeError as error:
            raise StoreError(f"{file}: damaged, this is no text: {error}; run extract again to write it") from None

    def with_settings(self, overrides: Sequence[str], *, sections: Collection[str]) -> RunFolder:
        """The run with other settings than are stored in it.

        Args:
            overrides: `key.path=value`, applied in order.
            sections: of the configuration that may change.

        Raises:
            ConfigError: a setting of another section, an unknown one or an unusable value.
        """
        for override in overrides:
            if override.partition(".")[0].strip() not in sections:
                raise ConfigError(
                    f"--set {override}: wanted a setting of {' or '.join(sections)}; "
                    f"{'' if 'meta' in sections else 'those of meta are for `gradscore fit-meta`, and '}all others "
                    f"{'are ' if 'meta' in sections else ''}for `gradscore extract` with the changed configuration"
                )
        where = " ".join(f"--set {each}" for each in overrides)  # what is stored is usable: an error is of these
        return RunFolder(self.path, config=parse_config(dump_config(self.config), where=where, overrides=overrides))

    @property
    def has_other_settings(self) -> bool:
        """Whether its settings differ from those that are stored in it."""
        return self._given is not None and self._given != RunFolder(self.path).config

    def store_settings(self) -> None:
        """Writes the settings to the run folder; the caller holds it (see `changing`)."""
        write_text(self.path / CONFIG, dump_config(self.config))

    def refuse_other_files(self) -> None:
        """Refuses a manifest, a configuration or a last layer that is not the one that was recorded.

        Raises:
            StoreError: it names the file.
        """
        refuse_other_content(self.path, (MANIFEST, CONFIG, HEAD))

    @property
    def meta_path(self) -> Path:
        """Folder of the meta models."""
        return self.path / "meta"

    @property
    def inputs_path(self) -> Path:
        """Folder of what makes the inputs of the meta models."""
        return self.meta_path / "inputs"

    @property
    def evaluation_path(self) -> Path:
        """Folder of figures and reports."""
        return self.path / "evaluation"

    @property
    def moved(self) -> str:
        """What to know of a run that was moved or copied since it was made, if it was."""
        run = self.config.run
        if is_address(run) or is_copy(self.path) or run.resolve() == self.path.resolve():
            return ""
        return (
            f"this run was made in {run}, and the model and data that its configuration names are used; for copies of "
            "them, give a configuration that names these"
        )

    @property
    def names_code(self) -> bool:
        """Whether model, augmentations or test samples are made by code, which runs only where it is trusted."""
        test = self.config.data.in_dist.test
        sources = [
            self.config.model.source,
            *self.config.features.augmentations,
            *([] if test is None else [test.source]),
        ]
        return any(source.startswith(("python:", "program:")) for source in sources)

    @property
    def code(self) -> CodeOrigin:
        """The code that it was made with, whose files may lie beside the run or in the working directory."""
        inputs, planned = self.manifest.inputs, planned_splits(self.config.data)
        hashes = {self.config.model.source: inputs.model.code_sha256}
        hashes |= {
            spec.source: inputs.data[name].code_sha256 for name, (_, spec) in planned.items() if name in inputs.data
        }
        known = {each.name: each.code_sha256 for each in inputs.features.augmentations}
        hashes |= {name: known.get(augmentation_name(name)) for name in self.config.features.augmentations}
        return CodeOrigin(
            name=str(self.path),
            hashes=hashes,
            folders=(Path.cwd(),) if is_copy(self.path) else (self.path.absolute().parent, Path.cwd()),
            advice="give a configuration of your own in place of the run folder",
        )

    def splits(self) -> list[SplitInfo]:
        """The splits of the run in order."""
        entries = self.manifest.splits.items()
        return [SplitInfo(name, entry.kind, entry.group, entry.auxiliary) for name, entry in entries]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples of each finished split."""
        return {name: entry.rows for name, entry in self.manifest.splits.items() if entry.finished}

    def read(
        self, split_name: str, columns: Sequence[str] | None = None, *, rows: BoolArray | None = None
    ) -> pd.DataFrame:
        """Reads the feature table of a split, one row per sample in the order of the data.

        Args:
            split_name: for example `in_dist.fit` or `ood.noise`.
            columns: only these columns, in this order.
            rows: (N,) only these rows; the others are let go of shard by shard.

        Returns:
            `META_COLUMNS`, `logit_0` ..., `penultimate_0` ... if asked for, those of augmentations, then the features;
            the bank has no augmentations and no features. `sample_id`, `split` and `content_hash` are text, `label` (-1
            for none) and `prediction` int64, `correct` nullable boolean, all others float64.

        Raises:
            StoreError: no such split or column, the run is not finished, or a shard is missing or damaged.
        """
        parts, start = [], 0
        for table in self._shards(split_name, columns):
            parts.append(table if rows is None else table.filter(pa.array(rows[start : start + table.num_rows])))
            start += table.num_rows
        return self._frame(split_name, pa.concat_tables(parts))

    def recomputed(self, split_name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of a split that were computed twice: as `read` gives them, and as they were the second time.

        Raises:
            StoreError: as `read`.
        """
        names = self.columns(split_name)
        values = [name for name in names if name not in META_COLUMNS]
        parts, again = [], []
        for table in self._shards(split_name, [*names, RECOMPUTED]):
            column = table[RECOMPUTED]
            parts.append(table.filter(pc.is_valid(column)).drop_columns([RECOMPUTED]))
            again += column.drop_null().to_pylist()
        once = self._frame(split_name, pa.concat_tables(parts))
        same = once[[name for name in names if name in META_COLUMNS]]
        second = pd.DataFrame(np.reshape(again, (len(once), len(values))), columns=values, dtype=np.float64)
        return once, pd.concat([same, second], axis=1)

    def signatures(self, split_name: str) -> NDArray[np.uint8] | None:
        """Signatures (N, 192) that find near-duplicates; None where the samples of a split are no images.

        Raises:
            StoreError: as `read`.
        """
        column = pa.concat_tables(self._shards(split_name, [SIGNATURE])).column(0)
        if column.null_count or not len(column):
            return None
        return np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint8).reshape(len(column), -1)

    def blocks(self, split_name: str, *, rows: int) -> Iterator[pd.DataFrame]:
        """Reads the feature table of a split, so many rows at a time (the last time fewer); see `read`."""
        waiting: list[pa.Table] = []
        for table in self._shards(split_name, None):
            waiting.append(table)
            while sum(each.num_rows for each in waiting) >= rows:
                joined = pa.concat_tables(waiting)
                yield self._frame(split_name, joined.slice(0, rows))
                waiting = [joined.slice(rows)]
        if any(each.num_rows for each in waiting):
            yield self._frame(split_name, pa.concat_tables(waiting))

    def _shards(self, split_name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """The shards of a split, one after the other; the last one there is only if all have the rows they should."""
        entry = self._finished(split_name)
        folder = split_folder(self.path, split_name)
        paths = [shard_path(folder, number) for number in range(entry.parts)]
        found, schema = 0, None
        for path in paths:
            table = read_shard(path, columns)
            there = set(table.column_names)
            unknown = next((name for name in columns or () if name not in there), None) if schema is None else None
            if unknown is not None:
                available = [*shard_columns(path), *BESIDE]
                raise StoreError(f"split '{split_name}' has no column '{unknown}'; {closest(unknown, available)}")
            recorded = self._recorded.get(path.relative_to(self.path).as_posix())
            if recorded is not None and self._sha256_of(path) != recorded:
                raise StoreError(
                    f"{path}: not the file that was recorded in {CHECKSUMS}: damaged, or of another run; delete it and "
                    "extract again"
                )
            schema = schema or table.schema
            if table.schema != schema:
                raise StoreError(
                    f"{path}: its columns differ from those of {paths[0].name}; delete it and extract again"
                )
            found += table.num_rows
            if path == paths[-1] and found != entry.rows:
                raise StoreError(f"{folder}: wanted {entry.rows} rows as in {MANIFEST}, got {found}; extract again")
            yield table

    def _frame(self, split_name: str, table: pa.Table) -> pd.DataFrame:
        try:
            frame: pd.DataFrame = table.to_pandas(
                types_mapper={pa.bool_(): pd.BooleanDtype()}.get,
                self_destruct=True,  # columns are let go of as they are converted, so that a table is not there twice
            )
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(
                f"{split_folder(self.path, split_name)}: its shards hold what no feature table does ({error}); extract "
                "again"
            ) from None
        return frame

    def _sha256_of(self, path: Path) -> str:
        """The hash of a file, computed when it is first asked for."""
        if path not in self._hashes:
            self._hashes[path] = file_sha256(path)
        return self._hashes[path]

    @cached_property
    def _recorded(self) -> dict[str, str]:
        return read_checksums(self.path)

    def columns(self, split_name: str) -> list[str]:
        """The names of the columns of a split's feature table.

        Raises:
            StoreError: no such split, the run is not finished, or its first shard is missing or damaged.
        """
        self._finished(split_name)
        return shard_columns(shard_path(split_folder(self.path, split_name), 0))

    def table_sha256(self, split_name: str) -> str:
        """The hash of the files of a split's feature table.

        Raises:
            StoreError: no such split, the run is not finished, or a shard is missing.
        """
        entry = self._finished(split_name)
        paths = [shard_path(split_folder(self.path, split_name), number) for number in range(entry.parts)]
        try:
            return sha256("".join(map(self._sha256_of, paths)).encode())
        except OSError as error:
            raise StoreError(
                f"{error.filename}: this shard cannot be read ({error.strerror}); run the same extract command again"
            ) from None

    @property
    def rounding_unit(self) -> float:
        """The distance from 1 to the next larger number of the type that the network computes in."""
        autocast = {"bf16": "bfloat16", "fp16": "float16"}.get(self.config.features.autocast or "")
        return torch.finfo(getattr(torch, autocast or self.manifest.inputs.model.dtype)).eps

    @property
    def share_of_gradients(self) -> float | None:
        """Share of the time of extraction that gradients took; None if the run does not say.

        `in_dist.fit` does not count where there is another split: it comes first, and has what is done once.
        """
        entries = {name: entry.spent for name, entry in self.manifest.splits.items() if name != BANK}
        known = {name: each for name, each in entries.items() if each is not None and each.gradients is not None}
        counted = [each for name, each in known.items() if name != FIT or len(known) == 1]
        seconds = sum(each.seconds for each in counted)
        return sum(each.seconds * (each.gradients or 0.0) for each in counted) / seconds if seconds else None

    def _finished(self, split_name: str) -> SplitEntry:
        splits = self.manifest.splits
        if split_name not in splits:
            raise StoreError(f"{self.path}: no split '{split_name}'; {closest(split_name, splits)}")
        if not splits[split_name].finished:
            raise StoreError(
                f"{self.path}: split '{split_name}' is not finished; run the same extract command again, or gradscore "
                "merge if its shares are done"
            )
        return splits[split_name]


class RunWriter:
    """Writes the shards of a run and keeps its manifest; made by `RunWriter.opened`.

    Attributes:
        path: the run folder.
        manifest: of the run.
        changes: what was done about splits that there was something of, in sentences.
        was_complete: there was nothing to do when it was opened.
    """

    def __init__(self, path: Path, manifest: Manifest, changes: Sequence[str]) -> None:
        """Takes over a run folder."""
        self.path, self.manifest, self.changes = path, manifest, changes
        self.was_complete = is_complete(path, manifest)

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: Path,
        *,
        config: Config,
        inputs: RunInputs,
        head: Head | None = None,
        begin: Callable[[], None] | None = None,
    ) -> Iterator[Self]:
        """Starts a run in `path`, or goes on with one, as the only writer.

        What it has of splits that did not change stays; tables of those that changed or are no longer asked for go.

        Args:
            path: the run folder.
            config: the settings.
            inputs: what it is made of.
            head: the last layer, where what enters it is stored.
            begin: called before anything is changed, unless the run is complete.

        Raises:
            StoreError: `path` is something else, was made from other inputs, or another process writes to it.
        """
        planned = planned_splits(config.data)
        before, changes = check_run_target(path, config, inputs)
        told = changes.sentences(lambda split: split_folder(path, split).exists())
        if begin is not None and not is_complete(path, before):
            begin()
        fresh = planned if before is None else changes.added
        gone = [*changes.stale, *changes.removed]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: this folder cannot be made: {error.strerror}") from None
        rewritten = [MANIFEST, CONFIG, *(f"features/{name}" for name in (*fresh, *gone))]
        with changing(path, (MANIFEST, CONFIG, HEAD, "features"), rewritten=rewritten):
            before, changes = check_run_target(path, config, inputs)
            manifest = before or Manifest.begun(inputs)
            gone = [*changes.stale, *changes.removed]
            for name in (*gone, *(name for name in planned if name not in manifest.splits)):
                shutil.rmtree(split_folder(path, name), ignore_errors=True)
            if gone or manifest.finished:
                shutil.rmtree(path / PARTIAL, ignore_errors=True)
            splits = {}
            for name, (info, _) in planned.items():
                entry = manifest.splits.get(name, SplitEntry(kind=info.kind, group=None, auxiliary=False))
                splits[name] = entry.model_copy(update={"group": info.group, "auxiliary": info.auxiliary})
            manifest.splits = splits
            if head is not None and not manifest.finished:
                write_head(path, head)
            manifest.write(path)
            write_text(path / CONFIG, dump_config(config))
            if before is None and not (path / GIT_IGNORE).exists():
                write_text(path / GIT_IGNORE, "*\n")
            yield cls(path, manifest, told)

    def existing(self, split_name: str, numbers: Iterable[int]) -> dict[int, ShardNote]:
        """Notes of these shards of a split, of those that are there, by number; `StoreError` names a damaged one."""
        folder = split_folder(self.path, split_name)
        paths = {number: shard_path(folder, number) for number in numbers}
        return {number: read_note(path) for number, path in paths.items() if path.exists()}

    def finish_split(
        self,
        split_name: str,
        notes: Sequence[ShardNote],
        *,
        samples: int,
        seconds: float,
        gradients: float | None = None,
    ) -> SplitEntry:
        """Enters a complete split into the manifest and returns its entry.

        Args:
            split_name: the split.
            notes: of its shards in order.
            samples: those computed this time.
            seconds: spent on them.
            gradients: share of that time that gradients took, if it is known.
        """
        entry = self.manifest.splits[split_name]
        entry.finished, entry.parts = True, len(notes)
        entry.rows = sum(note.rows for note in notes)
        entry.labelled = sum(note.labelled for note in notes)
        entry.accuracy = sum(note.correct for note in notes) / entry.labelled if entry.labelled else None
        entry.non_finite = sum(note.non_finite for note in notes)
        entry.hides_images = any(note.hides_images for note in notes)
        entry.skipped = [skipped for note in notes for skipped in note.skipped]
        if samples:
            entry.spent = Spent(samples=samples, seconds=round(seconds, 3), gradients=gradients)
        self.manifest.write(self.path)
        return entry

    def finish(self, *, feature_count: int, notices: list[str]) -> None:
        """Marks the run as complete; `notices` are what a reader of its figures should know."""
        self.manifest.finished, self.manifest.feature_count, self.manifest.notices = True, feature_count, notices
        self.manifest.write(self.path)
        # What shares say of themselves is needed until then; if this process ends here, the next writer removes it.
        shutil.rmtree(self.path / PARTIAL, ignore_errors=True)


def check_run_target(path: Path, config: Config, inputs: RunInputs) -> tuple[Manifest | None, Changes]:
    """Looks how the run in `path` can go on with these settings and inputs; nothing is changed there.

    Returns:
        The manifest of the run that goes on there, with its present inputs, and what changed since it was made; None,
        and no changes, where a new run starts.

    Raises:
        StoreError: `path` is a file or a folder of something else, or a run made from other inputs, or by other
            versions of packages than what is lacking would be.
    """
    if (path / MANIFEST).exists():
        before = Manifest.read(path)
        changes = find_changes(before, config, inputs)
        if changes.common:
            raise other_inputs(path, changes.common)
        now = before.going_on(changes, inputs)
        if not is_complete(path, now) and before.versions != package_versions():
            raise other_inputs(path, differences({"versions": before.versions}, {"versions": package_versions()}))
        return now, changes
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: wanted a folder for the run, got a file; give another path")
    if path.exists() and not all(is_temporary(each) or each.name == GIT_IGNORE for each in path.iterdir()):
        raise StoreError(f"{path}: this folder is not empty and not a run folder; give an empty or new one")
    return None, Changes()
