"""A run made by processes that know nothing of each other but the run folder, as in a SLURM array.

The unit of work is a shard of a table. A share is every n-th of them; what each share has written it says in a file of
its own in the folder `partial` of the run. `merge` makes a run of all shares.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from ..config import Config
from ..errors import ConfigError, StoreError
from ..notices import printable
from ..pipeline import Counter, ExtractSummary, Progress, RunPlan, complete_run, write_shards
from ..store import (
    CONFIG,
    MANIFEST,
    PARTIAL,
    RunFolder,
    RunWriter,
    StoredRecord,
    check_run_target,
    differences,
    is_complete,
    listed_files,
    package_versions,
    shard_path,
    split_folder,
)
from ..system import Influence, file_sha256, first_fault, settings_of, sha256, some, write_text

_MOST_SHARES = 10**6
"""More than any run has shards."""

_PATIENCE = 60.0
"""Seconds to wait for another process that is beginning the run."""


@dataclass(frozen=True)
class Share:
    """Share `index` of `count`, counted from 0: every `count`-th shard of the run, beginning with shard `index`."""

    index: int
    count: int

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Reads `i/n`.

        Raises:
            ConfigError: it is no share.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not int(found[1]) < int(found[2]) <= _MOST_SHARES:
            raise ConfigError(
                f"--share {text}: wanted i/n with i from 0 to n - 1 and n at most {_MOST_SHARES}, for example 0/4"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        """Text of the share, as `--share` takes it."""
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class ShareSummary:
    """Summary of the work of a process on its share of a run.

    Attributes:
        run: the run folder.
        share: as `i/n`.
        shards: shards of tables that the share has.
        computed: samples looked at this time.
        seconds: spent on them.
        was_complete: the run was finished already.
    """

    run: Path
    share: str
    shards: int
    computed: int = 0
    seconds: float = 0.0
    was_complete: bool = False


def extract_share(
    config: Config,
    share: Share,
    *,
    out: Path | None = None,
    progress: Progress | None = None,
) -> ShareSummary:
    """Computes the shards of one share of a run, or what is missing of them; `merge` makes a run of all shares.

    Any number of processes may write into one run folder, each its share.

    Args:
        config: the settings.
        share: which shards.
        out: the run folder, instead of `config.run`.
        progress: called after every batch.

    Raises:
        StoreError: the run folder was begun with other inputs or settings, or has a damaged share.
        GradscoreError: as `gradscore.pipeline.extract`.
    """
    plan = RunPlan.of(config, out=out)
    config, run = plan.config, plan.config.run
    before, changed = check_run_target(run, config, plan.inputs)
    shards = table_shards(plan)[share.index :: share.count]
    summary = ShareSummary(run, str(share), len(shards))
    was_complete = is_complete(run, before)
    if not was_complete:
        if changes := [*changed.sentences(), *changed.added]:
            raise StoreError(
                f"{run}: the inputs of this run changed since it was begun ({'; '.join(changes)}), which shares cannot "
                "go on from; extract without --share, or give another folder (--out)"
            )
        plan.warm_up()
        _begin(plan)
    if found := differences(_kept_settings(RunFolder(run).config), _kept_settings(config)):
        raise StoreError(
            f"{run}: a share with other settings than the run: {some(found)}; give all shares the settings that the "
            "run was begun with, or another folder (--out). A merged run takes others of meta and evaluate "
            "(gradscore fit-meta --set)"
        )
    if was_complete:
        return replace(summary, was_complete=True)
    identity = identity_of(plan)
    own = next((record for record in read_records(run, identity) if record.share == share), None)
    if own is None:
        own = ShareRecord(index=share.index, count=share.count, identity=identity)
        own.write(run)
    began, counter = time.perf_counter(), Counter(sum(shard.samples(plan) for shard in shards), progress)
    computed = _make(plan, own, shards, counter)
    return replace(summary, computed=computed, seconds=time.perf_counter() - began)


def _begin(plan: RunPlan) -> None:
    """Makes the run folder, unless another process did or does."""
    run = plan.config.run
    until = time.monotonic() + _PATIENCE
    while not ((run / MANIFEST).exists() and (run / CONFIG).exists()):
        try:
            with RunWriter.opened(run, config=plan.config, inputs=plan.inputs, head=plan.extractor.head):
                pass
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _make(plan: RunPlan, record: ShareRecord, shards: Sequence[Shard], counter: Counter) -> int:
    """Makes the shards that a share has not written yet; returns how many samples were computed."""
    run, computed = plan.config.run, 0
    for shard in shards:
        if shard.file in record.files and (run / shard.file).is_file():
            counter.add(shard.split, shard.samples(plan))
            continue
        write_shards(plan, shard.split, [shard.number], on_batch=counter.add)
        record.files[shard.file] = file_sha256(run / shard.file)
        record.notices = list(dict.fromkeys([*record.notices, *plan.extractor.notices]))
        record.write(run)
        computed += shard.samples(plan)
    return computed


def merge(run: Path, *, progress: Progress | None = None) -> ExtractSummary:
    """Makes a finished run of the shares in its folder; nothing is computed but what the first samples show.

    A run that is finished is left as it is.

    Args:
        run: the run folder that the shares were written into.
        progress: called with how many samples are there.

    Returns:
        A summary of the run, which is equal to that of one process.

    Raises:
        StoreError: a shard is missing, damaged, or none of this run; the message names it. Or shares have other
            settings, or another process is writing to the run.
    """
    run = run.absolute()
    folder = RunFolder(run)
    plan = RunPlan.of(folder.config, out=run)
    records: list[ShareRecord] = []
    if not is_complete(run, folder.manifest):
        if folder.manifest.finished:
            gone = [
                path.relative_to(run).as_posix() for path in listed_files(run, folder.manifest) if not path.exists()
            ]
            raise StoreError(
                f"{run}: this run was finished, and {some(gone)} went missing since; restore it, or compute it anew "
                "(gradscore extract without --share)"
            )
        records = _whole_records(plan)
    notices = [notice for record in records for notice in record.notices]
    return complete_run(plan, notices=notices, progress=progress)


def _whole_records(plan: RunPlan) -> list[ShareRecord]:
    """Records of the shares of a run, if every shard is there as one of them wrote it, and no other."""
    run = plan.config.run
    records = read_records(run, identity_of(plan))
    known: dict[str, dict[str, ShareRecord]] = {}
    for record in records:
        for name, digest in record.files.items():
            known.setdefault(name, {})[digest] = record
    there = [path.relative_to(run).as_posix() for path in sorted((run / "features").rglob("*.parquet"))]
    if unknown := [name for name in there if name not in known]:
        counts = {record.count for record in records}
        indices = range(counts.pop() if len(counts) == 1 else 0)
        lost = [index for index in indices if index not in {record.index for record in records}]
        silent = f" (nothing there is of share {some([f'{index}/{len(indices)}' for index in lost])})" if lost else ""
        raise StoreError(
            f"{run}: {some(unknown)}: in no share's record; restore the record in {run / PARTIAL}{silent}, or remove "
            "the file and run the share again (gradscore extract --share i/n), then merge"
        )
    wanted = [shard.file for shard in table_shards(plan)]
    if missing := [name for name in wanted if name not in known or not (run / name).is_file()]:
        raise StoreError(
            f"{run}: {len(missing)} shard{'s are' if len(missing) > 1 else ' is'} missing: {some(missing)}; run the "
            "shares that make them again (gradscore extract --share i/n), then merge"
        )
    for name in wanted:
        written = file_sha256(run / name)
        if others := [record for digest, record in known[name].items() if digest != written]:
            raise StoreError(
                f"{run / name}: not what --share {others[0].share} wrote; delete it and run that share again, or "
                "restore it"
            )
    return records


@dataclass(frozen=True)
class Shard:
    """Shard `number` of a split, a unit of work."""

    split: str
    number: int

    @property
    def file(self) -> str:
        """Path of its file, relative to the run folder."""
        return shard_path(split_folder(Path(), self.split), self.number).as_posix()

    def samples(self, plan: RunPlan) -> int:
        """Number of its samples."""
        return plan.samples_of(self.split, [self.number])


def table_shards(plan: RunPlan) -> list[Shard]:
    """The shards of all tables of a run, in order."""
    return [Shard(split, number) for split in plan.datasets for number in range(plan.count_shards(split))]


ShardFile = Annotated[str, Field(pattern=r"^features/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*/part-\d{5,}\.parquet$")]
"""Path of a shard's file, relative to the run folder: files of other names are not taken from others."""


class ShareRecord(StoredRecord):
    """Record of what one process has written.

    Attributes:
        index: which share of the work it has.
        count: how many shares there are.
        identity: of the run, see `identity_of`.
        files: the SHA-256 of each file by its path relative to the run folder.
        notices: what the reader of the values should know.
    """

    index: int
    count: int
    identity: str
    files: dict[ShardFile, str] = Field(default_factory=dict)
    notices: list[str] = Field(default_factory=list)

    @property
    def share(self) -> Share:
        """The share that the process had."""
        return Share(self.index, self.count)

    def write(self, run: Path) -> None:
        """Writes it to a run folder in one step."""
        path = run / PARTIAL / f"share-{self.index}-of-{self.count}.json"
        write_text(path, self.model_dump_json(indent=2) + "\n")


def read_records(run: Path, identity: str) -> list[ShareRecord]:
    """Records of the processes that work on a run of an identity.

    Raises:
        StoreError: a file is damaged, or comes from a run with other inputs or settings.
    """
    found = []
    for path in sorted((run / PARTIAL).glob("share-*.json")):
        try:
            record = ShareRecord.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            what = str(error) if isinstance(error, OSError) else printable(first_fault(error))
            raise StoreError(f"{path}: damaged ({what}); delete it and run that share again") from None
        if record.identity != identity:
            raise StoreError(
                f"{path}: this share was made from other inputs, with other settings or by other versions of packages "
                "than are here now; undo what was changed since, or delete it and run the share again"
            )
        found.append(record)
    return found


def identity_of(plan: RunPlan) -> str:
    """A SHA-256 of everything that influences a value of a run, and of what its shares have to agree on."""
    parts = [plan.inputs.model_dump(), package_versions(), _kept_settings(plan.config)]
    return sha256(json.dumps(parts, sort_keys=True).encode())


def _kept_settings(config: Config) -> dict[str, Any]:
    """Settings that all shares have to agree on, because one `config.yaml` has them for the run."""
    return settings_of(config, Influence.MODELS, Influence.REPORT)
