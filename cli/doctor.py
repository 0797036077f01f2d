"""`gradscore doctor`: is the model of a configuration fit to be scored?"""

from __future__ import annotations

from typing import Annotated

import typer

from .options import ConfigArgument, JsonOption, QuietOption, SetOption, ThreadsOption, TrustOption
from .output import Output

MEANINGLESS = 2
"""The exit code when scores would be meaningless, or samples cannot be scored."""

COLOURS = {"problem": "red", "warning": "yellow"}


def doctor(
    config: ConfigArgument,
    settings: SetOption = None,
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="Inputs of in_dist.test to look at, drawn at random.")
    ] = 256,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="List how the gradients of every parameter are computed.")
    ] = False,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check a model for what would make its scores wrong, useless or slow.

    One line for each remark: problems make scores meaningless or impossible, and the exit code is 2 if there is one.

    After gradscore demo: gradscore doctor demo/gradscore.yaml --trust-code
    """
    from gradscore.config import load_config
    from gradscore.doctor import check_config

    diagnosis = check_config(load_config(config, settings or ()), samples=samples)
    output = Output(as_json=as_json, quiet=quiet)
    covered = diagnosis.coverage if coverage else {}
    output.document({"usable": diagnosis.usable, "remarks": diagnosis.remarks, "coverage": covered})
    output.say(*(f"{name}: {way}" for name, way in covered.items()))
    # A note is no result, whatever else is said of the model.
    for remark in (each for each in diagnosis.remarks if not quiet or each.severity in COLOURS):
        output.say(str(remark), style=COLOURS.get(remark.severity))
    if not diagnosis.usable:
        why = (
            "some samples cannot be scored" if diagnosis.is_of_samples else "scores of this model would be meaningless"
        )
        typer.echo(f"{why}: see the problems above", err=True)
        raise typer.Exit(MEANINGLESS)
    output.say("usable")
