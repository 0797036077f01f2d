"""Names of the columns of a feature table.

`META_COLUMNS`, then `logit_0` ..., `penultimate_0` ... if they are stored, the same of every augmentation of the sample
as `augmentation/<augmentation>/logit_0` ... and `augmentation/<augmentation>/penultimate_0` ..., then features:
`<loss>/<parameter or module>/<statistic>`.
"""

from __future__ import annotations

from collections.abc import Iterable

META_COLUMNS = ("sample_id", "split", "label", "prediction", "correct", "content_hash")
"""The columns before the logits and the features."""

RECOMPUTED = "recomputed"
"""A column of `in_dist.fit`: for a few samples all values after `META_COLUMNS` once more, computed in another batch."""

SIGNATURE = "signature"
"""A column of splits of images: what near-duplicates are found by; see `gradscore.data.signature_of`."""

BESIDE = (RECOMPUTED, SIGNATURE)
"""Columns of shards that are no columns of the feature table."""

LOGIT = "logit_"
PENULTIMATE = "penultimate_"

AUGMENTATION = "augmentation"
"""Starts the names of the columns of augmentations, so no loss is called so."""


def feature_columns(names: Iterable[str]) -> list[str]:
    """The names of the features among those of a feature table (or the table itself), in order."""
    return [name for name in names if "/" in name and not name.startswith(f"{AUGMENTATION}/")]


def logit_columns(names: Iterable[str], *, augmentation: str | None = None) -> list[str]:
    """The names of the logits, by class, of the samples or of one of their augmentations; see `feature_columns`."""
    return _of(names, LOGIT, augmentation)


def penultimate_columns(names: Iterable[str], *, augmentation: str | None = None) -> list[str]:
    """The names of the penultimate features, none unless they were asked for; see `logit_columns`."""
    return _of(names, PENULTIMATE, augmentation)


def augmentation_column(augmentation: str, name: str) -> str:
    """Name of the column `name` for an augmentation of the samples."""
    return f"{AUGMENTATION}/{augmentation}/{name}"


def augmentations_of(names: Iterable[str]) -> list[str]:
    """The names of the augmentations that have columns, in order; see `feature_columns`."""
    parts = (
        name.removeprefix(f"{AUGMENTATION}/").rpartition("/") for name in names if name.startswith(f"{AUGMENTATION}/")
    )
    return list(dict.fromkeys(augmentation for augmentation, _, _ in parts))


def _of(names: Iterable[str], kind: str, augmentation: str | None) -> list[str]:
    start = kind if augmentation is None else augmentation_column(augmentation, kind)
    return [name for name in names if name.startswith(start) and "/" not in name[len(start) :]]
