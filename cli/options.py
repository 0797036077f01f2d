"""Arguments, options and exit codes that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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


class TrustsOneFile(TyperCommand):
    """A command whose `--trust-code=SHA256` says `--trust-code` and `--sha256 SHA256`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes the SHA-256 apart; only after `=`, so that no file is taken for one."""
        end = args.index("--") if "--" in args else len(args)
        given = [arg.partition("=")[2] for arg in args[:end] if arg.startswith("--trust-code=")]
        rest = ["--trust-code" if arg.startswith("--trust-code=") else arg for arg in args[:end]]
        return super().parse_args(ctx, [*rest, *(f"--sha256={digest}" for digest in given), *args[end:]])
