"""Names of the columns of a feature table.

`META_COLUMNS`, then `logit_0` ..., `penultimate_0` ... if they are stored, the same of every view of the sample as
`view/<view>/logit_0` ... and `view/<view>/penultimate_0` ..., then features: `<loss>/<parameter or
module>/<statistic>`, where `FORWARD` stands in the place of a loss for what depends on none.
"""

from __future__ import annotations

from collections.abc import Iterable

META_COLUMNS = ("sample_id", "split", "label", "prediction", "correct", "content_hash")
"""The columns before the logits and the features."""

RECOMPUTED = "recomputed"
"""A column of `in_dist.fit`: for a few samples all values after `META_COLUMNS` once more, computed in another batch."""

LOGIT = "logit_"
PENULTIMATE = "penultimate_"

FORWARD = "forward"
VIEW = "view"
"""Starts the names of the columns of views, so no loss is called so."""

NORM, RATE, COSINE = "output_gradient_norm", "activation_rate", "gradient_cosine"
"""Features that are no statistics of parameter gradients; see `gradscore.features`."""

EXTRA_COLUMNS = (NORM, RATE, COSINE)
"""What `features.columns` may name."""


def feature_columns(names: Iterable[str]) -> list[str]:
    """The names of the features among those of a feature table (or the table itself), in order."""
    return [name for name in names if "/" in name and not name.startswith(f"{VIEW}/")]


def logit_columns(names: Iterable[str], *, view: str | None = None) -> list[str]:
    """The names of the logits, by class, of the samples themselves or of one of their views; see `feature_columns`."""
    return _of(names, LOGIT, view)


def penultimate_columns(names: Iterable[str], *, view: str | None = None) -> list[str]:
    """The names of the penultimate features, none unless they were asked for; see `logit_columns`."""
    return _of(names, PENULTIMATE, view)


def view_column(view: str, name: str) -> str:
    """What the column `name` is called for a view of the samples."""
    return f"{VIEW}/{view}/{name}"


def views_of(names: Iterable[str]) -> list[str]:
    """The names of the views that have columns, in order; see `feature_columns`."""
    parts = (name.removeprefix(f"{VIEW}/").rpartition("/") for name in names if name.startswith(f"{VIEW}/"))
    return list(dict.fromkeys(view for view, _, _ in parts))


def _of(names: Iterable[str], kind: str, view: str | None) -> list[str]:
    start = kind if view is None else view_column(view, kind)
    return [name for name in names if name.startswith(start) and "/" not in name[len(start) :]]
