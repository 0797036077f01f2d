"""Arguments, options and exit codes that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML configuration file.", show_default=False)
]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, as extract writes it.", show_default=False)
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


class DeviceChoice(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


TrustOption = Annotated[bool, typer.Option("--trust-code", help="Allow a python: model, whose code is run.")]
