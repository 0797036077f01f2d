"""`gradscore bundle`: from a run folder to one file that decides on new samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .options import RunArgument, TrustOption

if TYPE_CHECKING:
    from gradscore.bundle import Bundle

WHAT = {"wrong": "wrong predictions", "ood": "OOD samples"}


def bundle(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The bundle to write.")] = Path("scorer.gradscore"),
    alpha: Annotated[
        float, typer.Option("--alpha", help="Bound of the share of ordinary samples that are rejected.")
    ] = 0.05,
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="Put the weights inside, instead of naming their file.")
    ] = False,
    trust_code: TrustOption = False,
) -> None:
    """Pack what a decision on new samples needs into one file without pickle: meta models, calibration, thresholds.

    Example: gradscore bundle runs/digits/run --out scorer.gradscore --alpha 0.05 --trust-code
    """
    from gradscore.bundle import write_bundle  # imports PyTorch, which help need not wait for
    from gradscore.bundling import make_bundle
    from gradscore.store import RunFolder

    made = make_bundle(RunFolder(run), alpha=alpha, with_weights=with_weights, trust_code=trust_code)
    _print(Console(), made, out=out, sha256=write_bundle(out, made))


def _print(console: Console, made: Bundle, *, out: Path, sha256: str) -> None:
    table = Table("tells", "meta model", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("calibration\nsamples", "false alarms\nat most", "90 % of\ncalibrations", "threshold"):
        table.add_column(heading, justify="right")
    for name, detector in made.detectors.items():
        limit = detector.threshold
        low, high = limit.realised_rate()
        cells = (str(limit.n), f"{limit.alpha:.4g}", f"{low:.3f}-{high:.3f}", f"{limit.value:.4g}")
        table.add_row(WHAT[name], detector.protocol, *cells)
    console.print(table)
    lines = [
        f"at most {made.alpha:.4g} of in-distribution samples are predicted right and yet rejected",
        *(f"note: {notice}" for notice in made.notices),
        f"weights: {'inside' if made.weights is not None else made.model.checkpoint}",
        f"bundle: {out} ({out.stat().st_size / 1024:.0f} KiB)",
        f"sha256: {sha256}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
