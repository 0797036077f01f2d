"""`gradscore fit-meta`: from the feature tables of a run to its meta models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from .options import RunArgument
from .rendering import Terminal, figures_table, notes, say, warnings

if TYPE_CHECKING:
    from gradscore.evaluation import FitReport, Fitted

STRONGEST = 5


def fit_meta(run: RunArgument) -> None:
    """Fit the meta models of a run: one for misclassification, and for OOD those of each protocol.

    Example: gradscore fit-meta runs/digits
    """
    from gradscore.evaluation import fit_run  # imports scikit-learn, which help need not wait for
    from gradscore.store import RunFolder

    with Terminal(stderr=True).status("reading") as status:
        report = fit_run(RunFolder(run), progress=lambda label: status.update(f"fitting {label}"))
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
