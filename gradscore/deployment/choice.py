"""Which OOD model of a run is deployed, and which a check looks at: one answer for both."""

from __future__ import annotations

import numpy as np

from ..meta import read_notes
from ..store import RunFolder

PROTOCOLS = ("known", "auxiliary", "in_dist_only")
"""Protocols with one OOD model for everything, the preferred one first."""


def ood_place(protocol: str) -> str:
    """Where the OOD model of a protocol lies below the meta models of a run."""
    return f"ood/{protocol}/all"


def deployed_protocol(run: RunFolder) -> str | None:
    """The protocol whose OOD model finds best what it was not fitted on; the first there is where nobody knows.

    Judged by the mean AUROC of OOD sets that were left out of its fits, auxiliary ones where there are enough.

    Args:
        run: a run folder with meta models.

    Returns:
        A name in `PROTOCOLS`, or None without an OOD model.

    Raises:
        StoreError: a damaged model.
    """
    asked_for = [name for name in PROTOCOLS if name in run.config.evaluate.protocols]
    there = [name for name in asked_for if (run.meta_path / ood_place(name)).is_dir()]
    return max(there, key=lambda name: judged(run, name), default=None)


def judged(run: RunFolder, protocol: str) -> float:
    """The mean AUROC that the OOD model of a protocol is judged by, minus infinity if it is not judged by sets."""
    notes = read_notes(run.meta_path / ood_place(protocol))
    found = notes.get("judged")
    return float(found) if notes.get("judged_by") == "sets" and isinstance(found, float) else -np.inf
