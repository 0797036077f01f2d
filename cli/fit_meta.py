"""`gradscore fit-meta`: from the feature tables of a run to its meta models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscore.notices import urgent

from .options import (
    AgainOption,
    JsonOption,
    NothingToTrustOption,
    ProtocolsOption,
    QuietOption,
    RunArgument,
    SetOption,
    TablesOption,
    ThreadsOption,
    settings_of,
)
from .output import Output, by_level, doing, figures_table

if TYPE_CHECKING:
    from gradscore.evaluation import FitReport, Fitted

STRONGEST = 5


def fit_meta(
    run: RunArgument,
    overrides: SetOption = None,
    protocols: ProtocolsOption = None,
    again: AgainOption = False,
    tables: TablesOption = False,
    _threads: ThreadsOption = None,
    _trust: NothingToTrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit the meta models of a run: for wrong predictions, and for OOD those of each protocol.

    Settings of the sections meta and evaluate may be changed; they are stored in the run. Models that are there already
    and would be fitted to the same samples with the same settings are kept.

    After gradscore demo: gradscore fit-meta demo/run --protocols auxiliary,in_dist_only --set meta.cv_folds=10
    """
    output = Output(as_json=as_json, quiet=quiet)
    found = fitted(output, run, settings=settings_of(overrides, protocols=protocols), again=again)
    report(output, found, tables=tables)
    output.document(document(found))


def fitted(output: Output, run: Path, *, settings: Sequence[str] = (), again: bool = False) -> FitReport:
    """Fits, and says what has to be read before any figure."""
    from gradscore.evaluation import fit_run  # imports scikit-learn, which help need not wait for
    from gradscore.store import RunFolder

    with doing(quiet=output.quiet) as tell:
        folder = RunFolder(run).with_settings(settings, sections=("meta", "evaluate"))
        found = fit_run(folder, again=again, progress=lambda label: tell(f"fitting {label}"))
    output.tell(*urgent(found.notices))
    return found


def document(report: FitReport) -> dict[str, Any]:
    """What was fitted, for a program."""
    models = [
        {
            "name": fitted.spec.label,
            "fit_on": fitted.model.notes["n"],
            "positive": fitted.model.notes["n_positive"],
            "left_out": fitted.spec.duplicates,
            "C": fitted.model.notes.get("C"),
            "converged": fitted.model.notes.get("converged", True),
            "strongest": [{"name": name, "value": value} for name, value in fitted.model.strongest(STRONGEST)],
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


def report(output: Output, found: FitReport, *, tables: bool) -> None:
    """Says how many models were fitted; with `tables` on what, and what matters most to each."""
    if tables:
        table = figures_table(["meta model"], ["fit on", "positive", "left out", "C"])
        for fitted in found.models:
            table.add_row(*_row(fitted))
        output.show(table)
        output.say(
            "left out: samples whose content is also (on request: or nearly) among the reported ones",
            "C: inverse penalty, chosen by cross-validation on the samples that fit",
            *(line for fitted in found.models for line in _strongest(fitted)),
            detail=True,
        )
    output.tell(*(f"skipped: {line}" for line in found.skipped))
    output.tell(*found.notices, rest="gradscore fit-meta --json")
    kept = f", {len(found.kept)} of them kept as they were" if found.kept else ""
    output.say(f"{len(found.models)} meta models{kept}: {found.path}")


def _row(fitted: Fitted) -> tuple[str, ...]:
    notes = fitted.model.notes
    c = f"{notes['C']:g}" if "C" in notes else "-"
    if not notes.get("converged", True):
        c += " (not converged)"
    return fitted.spec.label, str(notes["n"]), str(notes["n_positive"]), str(fitted.spec.duplicates), c


def _strongest(fitted: Fitted) -> list[str]:
    strongest = [f"  {value:+.3g} {name}" for name, value in fitted.model.strongest(STRONGEST)]
    return [f"features that matter most for {fitted.spec.label}:", *strongest] if strongest else []
