"""The command `gradscore`: its sub-commands, and what becomes of errors."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gradscore.errors import GradscoreError

from .bundle import bundle
from .check import check
from .compare import compare
from .config import app as config_app
from .doctor import doctor
from .evaluate import evaluate
from .extract import extract
from .fit_meta import fit_meta
from .inspect import inspect
from .options import INTERRUPTED
from .score import score


class _ErrorsAsMessages(TyperGroup):
    """Turns errors raised on purpose into one line on standard error and the exit code of their class."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GradscoreError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_ErrorsAsMessages,
    help="Tell from per-sample gradients whether a prediction is wrong or a sample is out of distribution.\n\n"
    "Example: gradscore extract configs/digits.yaml --trust-code",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("doctor")(doctor)
app.command("extract")(extract)
app.command("fit-meta")(fit_meta)
app.command("evaluate")(evaluate)
app.command("compare")(compare)
app.command("bundle")(bundle)
app.command("score")(score)
app.command("check")(check)
app.command("inspect")(inspect)
app.add_typer(config_app, name="config")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradscore {version('gradscore')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line and exits with 0 (fine), 1 (a gate failed), 2 (unusable input), 3 (inconclusive) or 130."""
    app(prog_name="gradscore")
