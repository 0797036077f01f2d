"""Names of the columns of a feature table.

`META_COLUMNS`, then `logit_0` ..., `penultimate_0` ... if they are stored, then features: `<loss>/<parameter or
module>/<statistic>`, where `FORWARD` stands in the place of a loss for what depends on none.
"""

from __future__ import annotations

from collections.abc import Iterable

META_COLUMNS = ("sample_id", "split", "label", "prediction", "correct", "content_hash")
"""The columns before the logits and the features."""

LOGIT = "logit_"
PENULTIMATE = "penultimate_"

FORWARD = "forward"

NORM, RATE, COSINE = "output_gradient_norm", "activation_rate", "gradient_cosine"
"""Features that are no statistics of parameter gradients; see `gradscore.features`."""

EXTRA_COLUMNS = (NORM, RATE, COSINE)
"""What `features.columns` may name."""


def feature_columns(names: Iterable[str]) -> list[str]:
    """The names of the features among those of a feature table (or the table itself), in order."""
    return [name for name in names if "/" in name]


def logit_columns(names: Iterable[str]) -> list[str]:
    """The names of the logits, by class; see `feature_columns`."""
    return [name for name in names if name.startswith(LOGIT) and "/" not in name]


def penultimate_columns(names: Iterable[str]) -> list[str]:
    """The names of the penultimate features, none unless they were asked for; see `feature_columns`."""
    return [name for name in names if name.startswith(PENULTIMATE) and "/" not in name]
