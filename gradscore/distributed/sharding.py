"""The share of one process of several that know nothing of each other but the run folder, as in a SLURM array."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ..config import Config, placed
from ..data import FIT
from ..errors import ConfigError, StoreError
from ..extractor import read_means, write_means
from ..models import trusting_code
from ..pipeline import Progress, RunPlan
from ..store import (
    CONFIG,
    MANIFEST,
    MEAN_GRADIENTS,
    RunFolder,
    RunWriter,
    check_target,
    is_complete,
    package_versions,
    write_head,
)
from .ledger import Ledger, check_settings, identity_of, read_ledgers, settings_said
from .work import Shard, add_up, make_shard, needs_means, sum_shards, table_shards

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
                f"--shard {text}: wanted i/n with i from 0 to n - 1 and n at most {_MOST_SHARES}, for example 0/4; "
                "give such a share"
            )
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The share that RANK and WORLD_SIZE name; None where they do not name one of several.

        Raises:
            ConfigError: they are no share.
        """
        rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
        if rank is None or size is None or size == "1":
            return None
        try:
            return cls.parsed(f"{rank}/{size}")
        except ConfigError:
            raise ConfigError(
                f"RANK={rank}, WORLD_SIZE={size}: wanted a rank from 0 to the size - 1; mend or unset them, or give "
                "--shard i/n"
            ) from None


@dataclass(frozen=True)
class ShareSummary:
    """What a process did for its share of a run.

    Attributes:
        run: the run folder.
        shard: the share, as `i/n`.
        shards: shards of tables that the share has.
        computed: samples looked at this time.
        seconds: spent on them.
        waiting_for: sums of gradients of other shares that are lacking; the tables are made when all are there.
        was_complete: the run was finished already.
    """

    run: Path
    shard: str
    shards: int
    computed: int = 0
    seconds: float = 0.0
    waiting_for: list[str] = field(default_factory=list)
    was_complete: bool = False


def extract_share(
    config: Config,
    share: Share,
    *,
    out: Path | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> ShareSummary:
    """Computes the shards of one share of a run, or what is missing of them; `merge` makes a run of all shares.

    Any number of processes may write into one run folder, each its share. With `gradient_cosine`, the shares first add
    up gradients; where those of other shares are not there yet, the same command makes the tables later.

    Args:
        config: the settings.
        share: which shards.
        out: the run folder, instead of `config.run`.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        progress: told after every batch.

    Raises:
        StoreError: the run folder was begun with other inputs or settings, or has a damaged share.
        GradscoreError: as `gradscore.pipeline.extract`.
    """
    config = placed(config, out)
    with trusting_code(trust_code):
        plan = RunPlan.of(config)
    target = check_target(config.run, config, plan.inputs)
    mine = table_shards(plan)[share.index :: share.count]
    name = f"{share.index}/{share.count}"
    if is_complete(config.run, target.manifest):
        _check_settings(config)
        return ShareSummary(config.run, name, len(mine), was_complete=True)
    if target.changes.sentences or target.changes.added:
        raise StoreError(
            f"{config.run}: the inputs of this run changed since it was begun "
            f"({'; '.join([*target.changes.sentences, *target.changes.added])}), which shares cannot go on from; "
            "extract without --shard, or give another folder (--out)"
        )
    plan.warm_up()
    _begin(plan)
    _check_settings(config)
    return _Process(plan, share, progress).summary(mine, name)


def _begin(plan: RunPlan) -> None:
    """Makes the run folder, unless another process did or does."""
    run = plan.config.run
    until = time.monotonic() + _PATIENCE
    while not ((run / MANIFEST).exists() and (run / CONFIG).exists()):
        try:
            with RunWriter.opened(run, config=plan.config, inputs=plan.inputs):
                pass
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    if plan.extractor.last_layer is not None:
        write_head(run, plan.extractor.last_layer.head)


def _check_settings(config: Config) -> None:
    """Refuses settings that would be lost: the run has those that it was begun with."""
    check_settings(config.run, run=settings_said(RunFolder(config.run).config), share=settings_said(config))


class _Process:
    """Makes the shards of a share and keeps its ledger."""

    def __init__(self, plan: RunPlan, share: Share, progress: Progress | None) -> None:
        self._plan, self._share, self._progress = plan, share, progress
        self._run = plan.config.run
        self._identity = identity_of(plan.inputs, package_versions())
        self._settings = settings_said(plan.config)
        own = Ledger(share.index, share.count, self._identity, settings=self._settings)
        known = {ledger.name: ledger for ledger in self._ledgers()}
        self._ledger = known.get(own.name, own)
        self._ledger.write(self._run)
        self._done = self._total = self._computed = 0

    def summary(self, mine: list[Shard], name: str) -> ShareSummary:
        began = time.perf_counter()
        sums = sum_shards(self._plan)[self._share.index :: self._share.count]
        self._total = sum(map(self._samples, [*sums, *mine]))
        self._make(sums)
        waiting = self._waiting_for()
        if not waiting:
            if needs_means(self._plan):
                self._compare_with_means()
            self._make(mine)
        seconds = time.perf_counter() - began
        return ShareSummary(self._run, name, len(mine), self._computed, seconds, waiting)

    def _make(self, shards: list[Shard]) -> None:
        for shard in shards:
            samples = self._samples(shard)
            if shard.file in self._ledger.files and (self._run / shard.file).is_file():
                self._tell(shard.split, samples)
                continue
            self._ledger.files[shard.file] = make_shard(self._plan, shard, on_batch=self._tell)
            self._ledger.notices = list(dict.fromkeys([*self._ledger.notices, *self._plan.extractor.notices]))
            self._ledger.write(self._run)
            self._computed += samples

    def _waiting_for(self) -> list[str]:
        """The sums that no share has written yet."""
        there = {name for ledger in self._ledgers() for name in ledger.files}
        return [shard.file for shard in sum_shards(self._plan) if shard.file not in there]

    def _compare_with_means(self) -> None:
        ledgers = self._ledgers()
        known = next((each.means_sha256 for each in ledgers if each.means_sha256 is not None), None)
        if known is not None and (self._run / MEAN_GRADIENTS).exists():
            means = read_means(self._run, sha256=known)
        else:
            means = add_up(self._plan)
            known = write_means(self._run, means)
        self._plan.extractor.compare_with(means)
        self._ledger.means_sha256 = known
        self._ledger.write(self._run)

    def _ledgers(self) -> list[Ledger]:
        return read_ledgers(self._run, identity=self._identity, settings=self._settings)

    def _samples(self, shard: Shard) -> int:
        split = shard.split if shard.split in self._plan.datasets else FIT
        return self._plan.samples_of(split, [shard.number])

    def _tell(self, split: str, samples: int) -> None:
        self._done += samples
        if self._progress is not None:
            self._progress(split, self._done, self._total)
