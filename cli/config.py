"""`gradscore config`: what a configuration says."""

from __future__ import annotations

import typer

from .options import ConfigArgument, JsonOption, SetOption
from .output import json_text

config = typer.Typer(help="Look at configurations.", no_args_is_help=True)


@config.command("show")
def show(config: ConfigArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Print every setting of a configuration, defaults included.

    After gradscore demo: gradscore config show demo/gradscore.yaml --set extract.batch_size=32
    """
    from gradscore.config import dump_config, load_config  # imports PyTorch, which help need not wait for

    loaded = load_config(config, settings or ())
    typer.echo(json_text(loaded.model_dump(mode="json")) + "\n" if as_json else dump_config(loaded), nl=False)


@config.callback()
def _config() -> None:
    pass
