"""`gradscore doctor`: is the model of a configuration fit to be scored?"""

from __future__ import annotations

from typing import Annotated

import typer

from gradscore.config import load_config

from .options import ConfigArgument, SetOption, TrustOption

MEANINGLESS = 2
"""The exit code when scores would be meaningless."""


def doctor(
    config: ConfigArgument,
    settings: SetOption = None,
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="So many inputs of in_dist.test are drawn at random.")
    ] = 256,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="List how the gradients of every parameter are computed.")
    ] = False,
    trust_code: TrustOption = False,
) -> None:
    """Look for what would make the scores of a model wrong, useless or slow.

    One line for each finding: problems make scores meaningless, and the exit code is 2 if there is one.

    Example: gradscore doctor configs/digits.yaml --trust-code
    """
    from gradscore.doctor import check_config  # imports PyTorch, which help and errors need not wait for

    diagnosis = check_config(load_config(config, settings or ()), samples=samples, trust_code=trust_code)
    if coverage:
        for name, way in diagnosis.coverage.items():
            typer.echo(f"{name}: {way}")
    for finding in diagnosis.findings:
        typer.echo(str(finding))
    if not diagnosis.usable:
        typer.echo("scores of this model would be meaningless: see the problems above", err=True)
        raise typer.Exit(MEANINGLESS)
    typer.echo("fit to be scored")
