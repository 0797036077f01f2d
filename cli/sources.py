"""What commands look at that take a configuration as well as a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscore.errors import ConfigError

from .addresses import run_at_hand
from .output import Output

if TYPE_CHECKING:
    from gradscore.config import Config
    from gradscore.models import CodeTrust
    from gradscore.store import RunFolder

SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|RUN",
        help="A YAML configuration file or a run folder.",
        callback=run_at_hand,
        show_default=False,
    ),
]


def opened(source: Path, settings: list[str], *, folder: str) -> tuple[Config, Path, RunFolder | None]:
    """The configuration, where the files go, and the run folder that it is of.

    Args:
        source: a configuration file or a run folder.
        settings: of `--set`, for a configuration file.
        folder: what the folder of the files is called, in the run folder or beside it; beside the configuration, where
            the run is in object storage.

    Raises:
        ConfigError: settings for a run folder, which has its own.
    """
    # These import PyTorch, which help need not wait for.
    from gradscore.config import load_config
    from gradscore.store import RunFolder
    from gradscore.system import is_address

    if not source.is_dir():
        config = load_config(source, settings)
        beside = source if is_address(config.run) else config.run
        return config, beside.parent / folder, None
    if settings:
        raise ConfigError("--set changes a configuration; a run folder has its own: give the configuration file")
    run = RunFolder(source)
    return run.config, source / folder, run


def trust_of(run: RunFolder | None, output: Output, trust_code: bool) -> bool | CodeTrust:
    """Which code may run: of a run folder what it was made with, which is said before it does."""
    return trust_code if run is None else run.trust(trust_code, tell=output.code)
