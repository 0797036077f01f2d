"""The pass over `in_dist.fit` that comes before all features: mean gradients by predicted class."""

from __future__ import annotations

from collections.abc import Callable

from ..config import Config
from ..data import FIT, Batch, SampleDataset, count_shards, load_batches, plan_batches
from ..errors import DataError, StoreError
from ..store import MEAN_GRADIENTS, RunWriter
from .class_gradients import MeanGradients, read_means, write_means
from .extractor import Extractor


def mean_gradients(
    extractor: Extractor,
    dataset: SampleDataset,
    writer: RunWriter,
    *,
    config: Config,
    progress: Callable[[int], None],
) -> MeanGradients:
    """The mean gradients of a run: those in its folder, or computed and written there.

    The batches are those of the feature table, so that a sample is taken out of its mean to the last bit.

    Args:
        extractor: of the run.
        dataset: the split `in_dist.fit`.
        writer: of the run.
        config: the settings.
        progress: told after every batch how many samples it had.

    Returns:
        The mean gradients.

    Raises:
        DataError: a sample that cannot be used.
        StoreError: the folder has others than its feature tables were made with.
    """
    known = writer.manifest.get("mean_gradients_sha256")
    if known is not None and (writer.path / MEAN_GRADIENTS).exists():
        progress(len(dataset))
        return read_means(writer.path, sha256=known)
    options = config.extract
    planned = plan_batches(
        len(dataset),
        shards=range(count_shards(len(dataset), shard_size=options.part_size)),
        shard_size=options.part_size,
        batch_size=options.batch_size,
    )
    batches = load_batches(dataset, planned, workers=options.workers, pin=extractor.device.type == "cuda")
    sums = extractor.class_sums()
    content_hashes: list[str] = []
    for plan, batch in zip(planned, batches, strict=True):
        check_samples(batch, split=FIT, on_error=options.on_error)
        extractor.add_to(sums, batch.images)
        content_hashes += batch.content_hashes
        progress(plan.stop - plan.start)
    means = sums.finished(content_hashes)
    sha256 = write_means(writer.path, means)
    if known not in (None, sha256):
        raise StoreError(
            f"{writer.path / MEAN_GRADIENTS}: it was missing, and what was computed anew is not what the feature "
            "tables were made with; restore it from a copy, or extract into another folder"
        )
    writer.note(mean_gradients_sha256=sha256)
    return means


def check_samples(batch: Batch, *, split: str, on_error: str) -> None:
    """Makes sure that all samples of a batch can be used, unless others are to be skipped.

    Raises:
        DataError: one cannot.
    """
    if batch.bad and on_error == "fail":
        first = batch.bad[0]
        raise DataError(
            f"split {split}, sample {first.sample_id}: {first.error}; repair or remove it, "
            "or set extract.on_error=skip to go on without such samples; the same run folder keeps what is there"
        )
