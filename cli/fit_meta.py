"""`gradscore fit-meta`: from the feature tables of a run to its meta models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .options import ProtocolsOption, RunArgument, SetOption, with_protocols
from .rendering import Terminal, figures_table, notes, say, warnings

if TYPE_CHECKING:
    from gradscore.evaluation import FitReport, Fitted

STRONGEST = 5


AgainOption = Annotated[
    bool, typer.Option("--again", help="Fit all models anew, also those whose samples and settings are the same.")
]


def fit_meta(
    run: RunArgument, overrides: SetOption = None, protocols: ProtocolsOption = None, again: AgainOption = False
) -> None:
    """Fit the meta models of a run: one for misclassification, and for OOD those of each protocol.

    Settings of the sections meta and evaluate may be changed; they are stored in the run. Models that are there already
    and would be fitted to the same samples with the same settings are kept.

    Example: gradscore fit-meta runs/digits --protocols auxiliary,in_dist_only --set meta.cv_folds=10
    """
    from gradscore.evaluation import fit_run  # imports scikit-learn, which help need not wait for
    from gradscore.store import RunFolder

    with Terminal(stderr=True).status("reading") as status:
        folder = RunFolder(run).with_settings(with_protocols(overrides, protocols), sections=("meta", "evaluate"))
        report = fit_run(folder, again=again, progress=lambda label: status.update(f"fitting {label}"))
    _print(Terminal(), report)


def _print(console: Console, report: FitReport) -> None:
    say(console, *warnings(report.warnings))
    table = figures_table(["meta model"], ["fit on", "positive", "left out", "strength"])
    for fitted in report.models:
        table.add_row(*_row(fitted))
    console.print(table)
    say(
        console,
        "left out: samples whose content is also (on request: or nearly) among the reported ones",
        "strength: inverse regularisation, chosen by cross-validation on the samples that fit",
        *(line for fitted in report.models for line in _strongest(fitted)),
        *([f"kept as they were: {', '.join(report.kept)}"] if report.kept else []),
        *(f"skipped: {line}" for line in report.skipped),
        *notes(report.notices),
        f"meta models: {report.path}",
    )


def _row(fitted: Fitted) -> tuple[str, ...]:
    notes = fitted.model.notes
    strength = f"{notes['strength']:g}" if "strength" in notes else "-"
    if not notes.get("converged", True):
        strength += " (not converged)"
    return fitted.spec.label, str(notes["n"]), str(notes["n_positive"]), str(fitted.spec.duplicates), strength


def _strongest(fitted: Fitted) -> list[str]:
    strongest = [f"  {value:+.3g} {name}" for name, value in fitted.model.strongest(STRONGEST)]
    return [f"features that matter most for {fitted.spec.label}:", *strongest] if strongest else []
