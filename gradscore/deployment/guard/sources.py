"""Is a run still of the model and the data that it was made from? A comparison of an old one says nothing of these."""

from __future__ import annotations

from typing import Literal

from ...errors import StoreError
from ...features import outdated
from ...store import RunFolder
from ...system import some

Sources = Literal["compared", "extracted", "left out"]
"""What is done about the model and the data that a run was made from: they are compared with it; they were, by an
extraction just now; or the stored run alone is meant."""

STORED = "the stored run alone was compared, without a look at its model and data"


def caveats_of(run: RunFolder, sources: Sources) -> list[str]:
    """Makes sure that a run is of its model and data as they are now; nothing of them runs.

    Returns:
        What nobody looked at.

    Raises:
        StoreError: something changed since the run was made, or is no longer there.
    """
    if sources == "left out":
        return [STORED]
    found = outdated(run) if sources == "compared" else None
    if found is None:
        return []
    if found.changed:
        raise StoreError(
            f"{run.path}: this run was made from something else than there is now: {some(found.changed, shown=4)}; "
            "give the configuration in place of the run (gradscore check CONFIG), with --out where the model changed, "
            "or --without-sources to compare the stored run as it is"
        )
    if found.gone:
        raise StoreError(
            f"{run.path}: what this run was made from is missing, so it cannot be compared with that: "
            f"{some(found.gone, shown=4)}; bring it back, give the configuration in place of the run, or "
            "--without-sources to compare the stored run"
        )
    return [f"not looked at: {each}" for each in found.unseen]
