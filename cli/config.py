"""`gradscore config`: what a configuration says."""

from __future__ import annotations

import typer

from gradscore.config import dump_config, load_config

from .options import ConfigArgument, SetOption

app = typer.Typer(help="Look at configurations.", no_args_is_help=True)


@app.command("show")
def show(config: ConfigArgument, settings: SetOption = None) -> None:
    """Print every setting of a configuration, defaults included.

    Example: gradscore config show configs/digits.yaml --set extract.batch_size=32
    """
    typer.echo(dump_config(load_config(config, settings or ())), nl=False)


@app.callback()
def _config() -> None:
    pass
