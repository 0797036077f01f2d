"""One run of the shares that several processes made."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..extractor import MeanGradients
from ..models import trusting_code
from ..pipeline import ExtractSummary, Maker, OnBatch, Progress, RunPlan, complete_run
from ..printable import printable
from ..store import (
    MANIFEST,
    MEAN_GRADIENTS,
    PARTIAL,
    RunFolder,
    RunWriter,
    is_complete,
    listed_shards,
    package_versions,
    read_manifest,
)
from ..system import file_sha256, replacing, some
from .ledger import Ledger, check_settings, identity_of, read_ledgers, recorded, settings_said
from .work import SUMS, Shard, add_up, sum_shards, table_shards


def merge(
    run: Path, sources: Sequence[Path] = (), *, trust_code: bool = False, progress: Progress | None = None
) -> ExtractSummary:
    """Makes a finished run of the shares in its folder; nothing is computed but what the first samples show.

    A run that is finished, perhaps by another process meanwhile, is left as it is.

    Args:
        run: the run folder that the shares were written into.
        sources: run folders with shares of the same run, which are copied into it first.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        progress: told how many samples are there.

    Returns:
        A summary of the run, which is equal to that of one process.

    Raises:
        StoreError: a shard is missing, damaged, or none of this run; the message names it. Or shares have other
            settings, or another process is writing to the run.
    """
    for source in sources:
        _take_in(run.absolute(), source)
    folder = RunFolder(run)
    config = folder.config.model_copy(update={"run": run.absolute()})
    with trusting_code(trust_code):
        plan = RunPlan.of(config)
    if is_complete(config.run, folder.manifest):
        return complete_run(plan, _Merging([]), progress=progress)
    if folder.manifest["finished"] and (gone := _gone(config.run, folder.manifest)):
        raise StoreError(
            f"{config.run}: this run was finished, and {some(gone)} went missing since; restore it, or compute it anew "
            "(gradscore extract without --shard)"
        )
    try:
        ledgers = _checked_ledgers(plan)
    except StoreError:
        if not is_complete(config.run, read_manifest(config.run)):
            raise
        ledgers = []  # another process has merged them meanwhile
    return complete_run(plan, _Merging(ledgers), progress=progress)


class _Merging(Maker):
    """Computes nothing: whatever is missing is refused."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.notices = [notice for ledger in ledgers for notice in ledger.notices]

    def mean_gradients(self, plan: RunPlan, *, on_batch: OnBatch) -> MeanGradients:
        on_batch(sum_shards(plan)[0].split, len(next(iter(plan.datasets.values()))))
        return add_up(plan)

    def shards(self, plan: RunPlan, split: str, numbers: Sequence[int], *, on_batch: OnBatch) -> None:  # noqa: ARG002
        raise StoreError(_missing(plan.config.run, [Shard(split, number).file for number in numbers]))


def _checked_ledgers(plan: RunPlan) -> list[Ledger]:
    """What the shares of a run say, if every shard is there as one of them wrote it, and no other."""
    run = plan.config.run
    identity = identity_of(plan.inputs, package_versions())
    ledgers = read_ledgers(run, identity=identity, settings=settings_said(plan.config))
    known = recorded(ledgers)
    tables = [shard.file for shard in table_shards(plan)]
    wanted = [*(shard.file for shard in sum_shards(plan)), *tables]
    missing = [name for name in wanted if name not in known or not (run / name).is_file()]
    there = [path.relative_to(run).as_posix() for path in sorted((run / "features").rglob("*.parquet"))]
    foreign = [name for name in there if name not in set(tables)]
    if foreign:
        raise StoreError(f"{run}: {some(foreign)}: no share of this run wrote this; remove it")
    unrecorded = [name for name in there if name not in known]
    if unrecorded:
        raise StoreError(
            f"{run}: {some(unrecorded)}: no share of this run wrote this, as far as {run / PARTIAL} says"
            f"{_lost(ledgers)}; restore what is missing there, or run the share again (gradscore extract --shard i/n), "
            "then merge"
        )
    if missing:
        raise StoreError(_missing(run, missing))
    for name in wanted:
        digest = file_sha256(run / name)
        others = [f"{share}" for recorded_digest, share in sorted(known[name]) if recorded_digest != digest]
        if others:
            raise StoreError(
                f"{run / name}: not what --shard {others[0]} wrote; delete it and run that share again, or restore it"
            )
    made_with = {ledger.means_sha256 for ledger in ledgers if ledger.means_sha256 is not None}
    if len(made_with) > 1:
        raise StoreError(f"{run / MEAN_GRADIENTS}: shares were made with different ones; begin in another folder")
    return ledgers


def _gone(run: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The files of a finished run that are not there."""
    wanted = [*listed_shards(run, manifest), *([run / MEAN_GRADIENTS] if "mean_gradients_sha256" in manifest else [])]
    return [path.relative_to(run).as_posix() for path in wanted if not path.exists()]


def _lost(ledgers: Sequence[Ledger]) -> str:
    """Which shares say nothing, where all others agree how many there are."""
    counts, said = {ledger.count for ledger in ledgers}, {ledger.index for ledger in ledgers}
    lost = [f"{index}/{count}" for count in counts for index in range(count) if index not in said]
    return f", where nothing is of share {some(lost)}" if len(counts) == 1 and lost else ""


def _missing(run: Path, names: Sequence[str]) -> str:
    return (
        f"{run}: {len(names)} shard{'s are' if len(names) > 1 else ' is'} missing: {some(names)}; run the shares that "
        "make them again (gradscore extract --shard i/n), then merge"
    )


def _take_in(run: Path, source: Path) -> None:
    """Copies the shares of a run folder into another, which begins as a copy of it."""
    manifest = read_manifest(source)
    said = settings_said(RunFolder(source).config)
    begun = RunFolder(run) if (run / MANIFEST).exists() else None
    if begun is not None and (begun.manifest["inputs"], begun.manifest["versions"]) != (
        manifest["inputs"],
        manifest["versions"],
    ):
        raise StoreError(
            f"{source}: this run folder was made from other inputs or by other versions of packages than {run}; merge "
            "shares of one run"
        )
    if begun is not None:
        check_settings(source, run=settings_said(begun.config), share=said)
        if is_complete(run, begun.manifest):
            return
    ledgers = read_ledgers(source, identity=identity_of(manifest["inputs"], manifest["versions"]), settings=said)
    for ledger in ledgers:
        _check_names(source, ledger, splits=manifest["splits"])
        _check_whole(source, ledger)
    if begun is None:
        config = RunFolder(source).config.model_copy(update={"run": run})
        with RunWriter.opened(run, config=config, inputs=manifest["inputs"]):
            pass
    for ledger in ledgers:
        for name in ledger.files:
            _copy(source / name, run / name)
        ledger.write(run)


def _check_names(source: Path, ledger: Ledger, *, splits: Collection[str]) -> None:
    """Refuses a share that names what is no shard of its run: a name chosen by others may lead anywhere."""
    for name in ledger.files:
        shard = Shard.of_file(name)
        if shard is None or shard.split not in {*splits, SUMS}:
            raise StoreError(
                f"{ledger.path(source)}: names {printable(name)!r}, wanted shards of this run alone; delete it and run "
                "that share again"
            )


def _check_whole(source: Path, ledger: Ledger) -> None:
    """Refuses a share that is damaged before anything of it is copied."""
    for name, digest in ledger.files.items():
        if not (source / name).is_file():
            raise StoreError(f"{source / name}: this shard is missing; run its share again")
        if file_sha256(source / name) != digest:
            raise StoreError(
                f"{source / name}: not what --shard {ledger.name} wrote; delete it and run that share again, or "
                "restore it"
            )


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
