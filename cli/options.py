"""Arguments, options and exit codes that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .addresses import run_at_hand

INCONCLUSIVE = 3
"""The exit code where there are too few samples to tell, or no verdict."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML configuration file.", show_default=False)
]

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder, as extract writes it, or the address of one: s3://bucket/run.",
        callback=run_at_hand,
        show_default=False,
    ),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, for example features.granularity=module; may be given several times.",
        show_default=False,
    ),
]


ProtocolsOption = Annotated[
    str | None,
    typer.Option(
        "--protocols",
        metavar="NAME,NAME...",
        help="Which protocols of OOD detection: known, leave_one_dataset_out, auxiliary, in_dist_only.",
        show_default=False,
    ),
]


def with_protocols(overrides: list[str] | None, protocols: str | None) -> list[str]:
    """The overrides of `--set`, and that of `--protocols`."""
    names = [] if protocols is None else [name.strip() for name in protocols.split(",")]
    return [*(overrides or ()), *([f"evaluate.protocols=[{', '.join(names)}]"] if protocols is not None else [])]


QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say results and warnings only: no progress, no notes, no explanations.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON; notes go to standard error.")]


DEVICES = "auto|cpu|cuda|..."
"""What `--device` takes: any device of PyTorch's."""


TrustOption = Annotated[bool, typer.Option("--trust-code", help="Allow a python: model, whose code is run.")]
