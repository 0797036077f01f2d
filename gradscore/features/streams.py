"""From samples that a program gives to feature tables: each is looked at once, in the order it comes, and let go of."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..columns import COSINE
from ..config import Config
from ..data import FIT, Batch, planned_splits
from ..errors import DataError
from ..gradients import GradientWarning
from ..store import RunFolder, RunWriter, ShardNote, label_warnings, write_head
from .class_gradients import MeanGradients, write_means
from .cutting import Cut, Cutter
from .extraction import ExtractSummary, SplitSummary, summary_of
from .extractor import Extractor
from .live_model import LiveModel
from .progress import Counter, Pace, Progress
from .split_rows import SplitRows

Stream = Iterable[tuple[str, Batch]]
"""Batches of any sizes with the split each belongs to; those of several splits may come mixed."""


def extract_streams(
    config: Config,
    live: LiveModel,
    stream: Stream,
    *,
    onto: RunFolder | None = None,
    fit_again: Callable[[], Iterator[Batch]] | None = None,
    progress: Progress | None = None,
    total: int = 0,
) -> ExtractSummary:
    """Computes the feature tables of a run, or of splits that are new to it, from samples as they come.

    Batches are cut as `extract` cuts them, so that the same samples give the same values bit for bit on one processor
    with one number of threads.

    Args:
        config: the settings; where it says that samples come from does not matter.
        live: the model, warmed up, and what computes its features.
        stream: the samples of the splits that are not there yet.
        onto: the run in `config.run` that goes on; None for a new one.
        fit_again: the samples of `in_dist.fit` once more, for `gradient_cosine`.
        progress: told after every batch.
        total: how many samples there are, for `progress`; 0 if that is unknown.

    Returns:
        A summary of the run.

    Raises:
        DataError: samples that cannot be used, or none of a split; or other samples the second time.
        ModelError: the model cannot take them.
        StoreError: a run folder of something else, or made with other weights or settings.
        EngineError: gradients that cannot be computed.
    """
    known = {} if onto is None else onto.manifest["splits"]
    new = [name for name in planned_splits(config.data) if name not in known]
    inputs = _described(config, live, onto)
    with (
        warnings.catch_warnings(),
        RunWriter.opened(config.run, config=config, inputs=inputs) as writer,
    ):
        warnings.simplefilter("ignore", GradientWarning)  # the notices of the summary say it
        task = _Writing(config, live.extractor, writer, Counter(total, progress))
        if onto is None:
            if live.layer is not None:
                write_head(config.run, live.layer.head)
            task.compare_with_means(fit_again)
        for split, batch in stream:
            task.take(split, batch)
        summaries = [task.finished(split) for split in new]
        notices = list(live.extractor.notices)
        writer.finish(feature_count=len(live.extractor.feature_names), notices=notices)
    run = RunFolder(config.run)
    return ExtractSummary(
        run=config.run,
        device=live.extractor.device.type,
        splits=[*(summary_of(name, known[name], computed=0, seconds=0.0) for name in known), *summaries],
        feature_count=len(live.extractor.feature_names),
        notices=notices,
        was_complete=False,
        warnings=label_warnings(run),
    )


def _described(config: Config, live: LiveModel, onto: RunFolder | None) -> dict[str, Any]:
    """The inputs of the run; fingerprints of samples that nobody has seen yet are empty."""
    before: dict[str, Any] = {} if onto is None else onto.manifest["inputs"]["data"]
    known = {name: before.get(name, {}).get("fingerprint", "") for name in planned_splits(config.data)}
    return live.inputs(config, known)


class _Writing:
    """Writes the tables of splits whose samples come one batch after the other."""

    def __init__(self, config: Config, extractor: Extractor, writer: RunWriter, counter: Counter) -> None:
        self._config, self._extractor, self._writer, self._counter = config, extractor, writer, counter
        self._splits: dict[str, _Split] = {}
        self._means: MeanGradients | None = None

    def compare_with_means(self, fit_again: Callable[[], Iterator[Batch]] | None) -> None:
        """Computes the mean gradients that samples are compared with, where that is asked for."""
        if COSINE not in self._config.features.columns:
            return
        if fit_again is None:
            raise DataError(
                f"features.columns: {COSINE} looks at the samples of {FIT} twice, and an iterator can be read only "
                "once; give a DataLoader or a list"
            )
        sums = self._extractor.class_sums()
        for cut in self._cutter().cuts(fit_again()):
            self._extractor.add_to(sums, cut.batch.images)
            sums.note_contents(cut.batch.content_hashes)
            if cut.last:
                sums.end_shard()
            self._counter.add(FIT, len(cut.batch.sample_ids))
        self._means = sums.finished()
        self._writer.note(mean_gradients_sha256=write_means(self._config.run, self._means))
        self._extractor.compare_with(self._means)

    def take(self, split: str, batch: Batch) -> None:
        """Computes what makes a whole batch of the run with what came before, and keeps the rest."""
        if split not in self._splits:
            rows = SplitRows(self._extractor, split=split, num_classes=self._config.model.num_classes)
            self._splits[split] = _Split(self._cutter(), rows)
        found = self._splits[split]
        found.note_samples(batch)
        self._compute(split, found.cutter.add(batch))

    def finished(self, split: str) -> SplitSummary:
        """Computes what is left of a split, and enters it into the manifest.

        Raises:
            DataError: no sample of it came, or others than the first time.
        """
        if split not in self._splits:
            raise DataError(f"split {split}: wanted samples, got none; give more")
        found = self._splits[split]
        self._compute(split, found.cutter.rest())
        if found.rows.are_waiting:
            found.notes.append(self._writer.write(split, len(found.notes), found.rows.taken()))
        if split == FIT and self._means is not None and not self._means.are_of(found.content_hashes):
            raise DataError(
                f"features.columns: {COSINE} looks at the samples of {FIT} twice, and they were others the second "
                "time; give them in one order, without random changes (shuffle=False, no augmentation)"
            )
        self._writer.manifest["inputs"]["data"][split]["fingerprint"] = found.digest.hexdigest()
        entry = self._writer.finish_split(split, found.notes, samples=found.samples, seconds=found.seconds)
        return summary_of(split, entry, computed=found.samples, seconds=found.seconds, rate=found.pace.rate)

    def _compute(self, split: str, cuts: Iterable[Cut]) -> None:
        found, began = self._splits[split], time.perf_counter()
        for cut in cuts:
            found.rows.compute(cut.batch)
            found.pace.add(len(cut.batch.sample_ids))
            self._counter.add(split, len(cut.batch.sample_ids))
            if cut.last:
                found.notes.append(self._writer.write(split, cut.shard, found.rows.taken()))
        found.seconds += time.perf_counter() - began

    def _cutter(self) -> Cutter:
        return Cutter(batch_size=self._config.extract.batch_size, shard_size=self._config.extract.part_size)


@dataclass
class _Split:
    """What is known of a split that is being written."""

    cutter: Cutter
    rows: SplitRows
    pace: Pace = field(default_factory=Pace)
    notes: list[ShardNote] = field(default_factory=list)
    content_hashes: list[str] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    samples: int = 0
    seconds: float = 0.0

    def note_samples(self, batch: Batch) -> None:
        """Takes ids, labels and content into the fingerprint."""
        self.samples += len(batch.sample_ids)
        self.content_hashes += batch.content_hashes
        for row in zip(batch.sample_ids, batch.labels.tolist(), batch.content_hashes, strict=True):
            self.digest.update(json.dumps(row).encode())
