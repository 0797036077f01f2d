"""Are the rows that a run folder kept still those of the samples and of the model?

Manifests tell a change by what can be looked at without reading all samples: names and sizes of image files, the code
of a data source, parameters. Here every sample is read again, and a few are sent through the network.
"""

from __future__ import annotations

import numpy as np

from ..columns import logit_columns
from ..errors import StoreError
from ..store import RunFolder
from ..system import FloatArray, Inputs, rows_of
from .run_plan import RunPlan

PROBED = 8
"""Samples of each split whose logits are computed again."""

MOVED = 0.02
"""The largest difference of logits that is rounding, relative to the range of all: half precision moves by less."""

ADVICE = "the rows of this run are not of what is there now; remove the run folder, or give another one (--out)"


def check_kept_rows(plan: RunPlan, run: RunFolder, splits: list[str]) -> None:
    """Makes sure that stored rows are of the samples that are there, by content, and of this model.

    Args:
        plan: of the run.
        run: the finished run folder.
        splits: those that were not computed just now.

    Raises:
        StoreError: a sample, a label or a logit is another one.
        DataError: a sample that cannot be used.
    """
    for split in splits:
        _check_split(plan, run, split)


def _check_split(plan: RunPlan, run: RunFolder, split: str) -> None:
    stored = run.read(split)
    logits = stored[logit_columns(stored.columns)].to_numpy(dtype=np.float64)
    kept = list(zip(stored["sample_id"], stored["content_hash"], stored["label"], strict=True))
    done = 0
    for batch in plan.all_batches(split):
        now = list(zip(batch.sample_ids, batch.content_hashes, batch.labels.tolist(), strict=True))
        for before, found in zip(kept[done : done + len(now)], now, strict=False):
            if before != found:
                what = "sample" if before[0] != found[0] else "content" if before[1] != found[1] else "label"
                raise StoreError(f"{run.path}: {split}, {found[0]}: another {what} than when it was computed; {ADVICE}")
        if done == 0 and len(now):
            _check_logits(plan, run, split, rows_of(batch.images, slice(PROBED)), logits)
        done += len(now)
    if done != len(kept):
        raise StoreError(f"{run.path}: {split}: {len(kept)} samples then, {done} now; {ADVICE}")


def _check_logits(plan: RunPlan, run: RunFolder, split: str, images: Inputs, logits: FloatArray) -> None:
    now = plan.extractor.forward_values(images)[:, : logits.shape[1]]
    before = logits[: len(now)]
    known = logits[np.isfinite(logits)]
    limit = MOVED * float(np.ptp(known)) if len(known) else 0.0
    same = np.isclose(now, before, rtol=0.0, atol=limit, equal_nan=True)
    if not same.all():
        raise StoreError(
            f"{run.path}: {split}: the network says something else of the first samples than when they were computed, "
            f"though its weights have the same hash (does its code read other files, or the environment?); {ADVICE}"
        )
