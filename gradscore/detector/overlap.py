"""Reported samples that were among those that fit."""

from __future__ import annotations

from collections.abc import Callable

from ..data import CALIBRATION
from ..errors import EvaluationError
from ..evaluation import fit_run
from ..store import RunFolder


def fit_without_reported(run: RunFolder, fitted: RunFolder, *, progress: Callable[[str], None] | None) -> list[str]:
    """Fits the meta models of a run without the samples it reports; those fitted on the same samples before stay.

    Args:
        run: the run that reports.
        fitted: the run of the fit.
        progress: told the name of each model before it is fitted.

    Returns:
        What a reader should know first: that reported samples were among those that fit, if some were.

    Raises:
        EvaluationError: not a single model can be fitted.
        StoreError: a damaged run.
    """
    sources = [info.name for info in fitted.splits() if info.kind != CALIBRATION]
    contents = {content for name in sources for content in fitted.read(name, ["content_hash"])["content_hash"]}
    reported = [run.read(info.name, ["content_hash"])["content_hash"] for info in run.splits() if info.is_reported]
    shared = sum(int(each.isin(contents).sum()) for each in reported)
    samples = sum(map(len, reported))
    try:
        fit_run(run, progress=progress)
    except EvaluationError as error:
        if not shared:
            raise
        raise EvaluationError(
            f"evaluate: {shared} of {samples} reported samples were among those that fit, and nothing can be fitted "
            f"without them ({error}); give samples that fit() did not have"
        ) from None
    if not shared:
        return []
    were = "1 reported sample was" if shared == 1 else f"{shared} reported samples were"
    return [
        f"{were} among those that fit; the models of this report were fitted anew without them and are not those that "
        "score() uses"
    ]
