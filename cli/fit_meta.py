"""`gradscore fit-meta`: from the feature tables of a run to its meta models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscore.notices import urgent

from .options import (
    JsonOption,
    NothingToTrustOption,
    QuietOption,
    RunArgument,
    SetOption,
    ThreadsOption,
)
from .output import Output, by_level, doing

if TYPE_CHECKING:
    from gradscore.evaluation import FitReport


def fit_meta(
    run: RunArgument,
    settings: SetOption = None,
    _threads: ThreadsOption = None,
    _trust: NothingToTrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit the models that find wrong predictions and OOD samples.

    Settings of the sections meta and evaluate may be changed; they are stored in the run. Models that are there already
    and would be fitted to the same samples with the same settings are kept.

    After gradscore demo: gradscore fit-meta demo/run --set "evaluate.protocols=[auxiliary,in_dist_only]"
    """
    output = Output(as_json=as_json, quiet=quiet)
    found = fitted(output, run, settings=settings or ())
    output.tell(*(f"skipped: {line}" for line in found.skipped))
    output.tell(*found.notices, rest="gradscore fit-meta --json")
    kept = f", {len(found.kept)} of them kept as they were" if found.kept else ""
    output.say(f"{len(found.models)} meta models{kept}: {found.path}")
    output.document(document(found))


def fitted(output: Output, run: Path, *, settings: Sequence[str] = ()) -> FitReport:
    """Fits, and says what has to be read before any figure."""
    from gradscore.evaluation import fit_run
    from gradscore.store import RunFolder

    with doing(quiet=output.quiet) as tell:
        folder = RunFolder(run).with_settings(settings, sections=("meta", "evaluate"))
        found = fit_run(folder, progress=lambda label: tell(f"fitting {label}"))
    output.tell(*urgent(found.notices))
    return found


def document(report: FitReport) -> dict[str, Any]:
    """The fits as plain values, for `--json`."""
    models = [
        {
            "name": fitted.spec.label,
            "fit_on": fitted.model.notes["n"],
            "positive": fitted.model.notes["n_positive"],
            "left_out": fitted.spec.duplicates,
            "penalties": fitted.model.notes.get("penalties", []),
            "converged": fitted.model.notes.get("converged", True),
        }
        for fitted in report.models
    ]
    return {
        "models": models,
        "kept": report.kept,
        "left_out_inputs": report.left_out,
        "skipped": report.skipped,
        **by_level(report.notices),
        "path": report.path,
    }
