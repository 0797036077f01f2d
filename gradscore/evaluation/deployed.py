"""Which OOD model of a run decides on new samples."""

from __future__ import annotations

import numpy as np

from ..config import Protocol
from ..meta import MARGIN, read_notes
from ..store import RunFolder
from .score_tables import MISCLASSIFICATION_MODEL, ood_place

DEPLOYABLE = {"known": 0.05, "auxiliary": MARGIN, "in_dist_only": MARGIN}
"""Protocols with one OOD model for everything, the preferred one first, and the AUROC on left-out sets that each may be
behind: a few sets tell no smaller difference, and what left-out sets do not show is how much better `known` finds the
kinds that are expected."""


def deployed_protocol(run: RunFolder) -> Protocol | None:
    """The protocol whose OOD model finds best what it was not fitted on; the first there is where nobody knows.

    Judged by the mean AUROC of OOD sets that were left out of its fits, the auxiliary ones where these are enough. One
    that knows more stays unless another is ahead by more than `DEPLOYABLE` says; the model of in-distribution samples
    alone, the last, gives no probability. Both a bundle and a check look at this one.

    Args:
        run: a run folder with meta models.

    Returns:
        A name in `DEPLOYABLE`, or None without an OOD model.

    Raises:
        StoreError: a damaged model.
    """
    wanted = [name for name in DEPLOYABLE if name in run.config.evaluate.protocols]
    there = [name for name in wanted if (run.meta_path / ood_place(name)).is_dir()]
    found = {name: auroc_left_out(run, name) for name in there}
    return next((name for name in there if found[name] >= max(found.values()) - DEPLOYABLE[name]), None)


def places_of_models(protocol: str | None) -> dict[str, str]:
    """Folders of a bundle's meta models in the run, by task; without a protocol there is no OOD model."""
    return {"misclassification": MISCLASSIFICATION_MODEL} | ({} if protocol is None else {"ood": ood_place(protocol)})


def auroc_left_out(run: RunFolder, protocol: str) -> float:
    """The mean AUROC that the OOD model of a protocol is judged by, minus infinity if it is not judged by sets."""
    notes = read_notes(run.meta_path / ood_place(protocol))
    found = notes.get("judged")
    return float(found) if notes.get("judged_by") == "sets" and isinstance(found, float) else -np.inf
