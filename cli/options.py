"""Arguments, options and exit codes that several commands share, and what they open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscore.errors import ConfigError

from .addresses import run_at_hand
from .output import Output

if TYPE_CHECKING:
    from gradscore.config import Config
    from gradscore.store import RunFolder

INCONCLUSIVE = 3
"""The exit code where there are too few samples to tell, or no verdict."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|RUN",
        help="A YAML configuration file or a run folder.",
        callback=run_at_hand,
        show_default=False,
    ),
]

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


def trust(context: typer.Context, allowed: bool) -> bool:
    """Lets code of others run until the command ends, and says which it is before it does."""
    if allowed or "GRADSCORE_TRUST_CODE" in os.environ:
        from gradscore.models import trusting_code  # imports PyTorch, which help need not wait for

        def tell(code: object) -> None:
            Output(quiet=context.params["quiet"]).tell(f"running {code}", stderr=True)

        context.with_resource(trusting_code(allowed, tell=tell))
    return allowed


TrustOption = Annotated[
    bool, typer.Option("--trust-code", help="Allow a python: model, whose code is run.", callback=trust)
]


def opened(
    context: typer.Context, source: Path, settings: list[str], *, folder: str
) -> tuple[Config, Path, RunFolder | None]:
    """The configuration, where the files go, and the run folder that it is of.

    Of a run folder, code runs that it was made with, and no other.

    Args:
        context: of the command.
        source: a configuration file or a run folder.
        settings: of `--set`, for a configuration file.
        folder: what the folder of the files is called, in the run folder or beside it; beside the configuration, where
            the run is in object storage.

    Raises:
        ConfigError: settings for a run folder, which has its own.
    """
    # These import PyTorch, which help need not wait for.
    from gradscore.config import load_config
    from gradscore.models import trusting_code
    from gradscore.store import RunFolder
    from gradscore.system import is_address

    if not source.is_dir():
        config = load_config(source, settings)
        beside = source if is_address(config.run) else config.run
        return config, beside.parent / folder, None
    if settings:
        raise ConfigError("--set changes a configuration; a run folder has its own: give the configuration file")
    run = RunFolder(source)
    context.with_resource(trusting_code(False, origin=run.code))  # nothing else, trusted or not
    return run.config, source / folder, run
