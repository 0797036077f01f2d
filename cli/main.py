"""The command `gradscore`: its sub-commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from rich.markup import escape

from gradscore.errors import ConfigError, GradscoreError
from gradscore.notices import printable

from .options import INTERRUPTED, Command, Group, wait_asleep
from .output import documents_alone, escape_remarks_of_others, printable_lines

BUG = 70
"""The exit code of what was not foreseen, as in sysexits.h."""


_WRITTEN = "gradscore: arguments as they are written"


class _ErrorsAsMessages(Group):
    """Turns errors into one line on standard error and an exit code; none of them is a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_WRITTEN] = [*args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            _check_addresses(ctx.meta[_WRITTEN])
            with documents_alone() if "--json" in ctx.meta[_WRITTEN] else nullcontext():
                return super().invoke(ctx)
        except BaseException as error:
            if isinstance(error, typer.BadParameter):
                error.message = error.message.removeprefix("Value error, ")  # of Pydantic, by which Typer reads choices
            if type(error).__module__.partition(".")[0] in ("click", "typer"):
                raise  # how a command ends, or wrong usage
            message, code = _said(error)
            typer.echo(message, err=True)
            raise typer.Exit(code) from None


def _said(error: BaseException) -> tuple[str, int]:
    """Message and exit code of a command that ends by an error."""
    shown, kind = printable_lines(str(error)), type(error).__name__
    if isinstance(error, GradscoreError):
        return f"error: {shown}", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {str(error) or 'run the same command again'}", INTERRUPTED
    if isinstance(error, OSError):
        where = "" if error.filename is None else printable(f"{error.filename}: ")
        what = f"{where}{error.strerror or error}; check the path, its permissions and the disk"
    elif isinstance(error, MemoryError) or kind == "OutOfMemoryError":  # the second is PyTorch's
        what = (
            f"memory ran out ({kind}: {shown}); take fewer samples at a time (--batch-size, extract.batch_size), or "
            "free some"
        )
    elif isinstance(error, Exception):
        return f"internal error: {kind}: {shown}\n{_report(error)}", BUG
    else:  # sys.exit, or something no less odd: commands end by typer.Exit
        what = f"code of the model or of an augmentation ended the program ({kind}: {shown}); take that out of it"
    return f"error: {what}", GradscoreError.exit_code


def _check_addresses(arguments: Sequence[str]) -> None:
    """Refuses addresses with a mistake in them, among arguments as they are written: paths made of them lose it."""
    values = [each.partition("=")[2] if each.startswith("--") else each for each in arguments]
    if not any(":" in value for value in values):
        return
    from gradscore.system import address_problem

    for value in values:
        if problem := address_problem(value):
            raise ConfigError(problem)


def _report(error: Exception) -> str:
    """Writes down what happened and says where; the traceback itself where it cannot be written."""
    import traceback
    from importlib.metadata import version
    from tempfile import NamedTemporaryFile

    lines = "".join(traceback.format_exception(error))
    try:
        with NamedTemporaryFile("w", prefix="gradscore-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(f"gradscore {version('gradscore')}\n{' '.join(sys.argv)}\n\n{lines}")
    except OSError:
        return lines
    return f"this is a bug in gradscore; please report it with {file.name}, which holds the traceback"


app = typer.Typer(
    cls=_ErrorsAsMessages,
    help="Is this prediction wrong? Is this sample out of distribution? Scores for a trained classifier.\n\n"
    "Example: gradscore demo",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

START = "Start: from files to a verdict"
DECIDE = "Decide: on new samples"
GUARD = "Guard: models and runs, for CI"
STEPS = "Steps: what run does, one by one"
LOOK = "Look: into models, labels and gradients"

COMMANDS: dict[str, str] = {
    "demo": START,
    "init": START,
    "doctor": START,
    "run": START,
    "docs": START,
    "extract": STEPS,
    "merge": STEPS,
    "fit-meta": STEPS,
    "evaluate": STEPS,
    "bundle": DECIDE,
    "score": DECIDE,
    "monitor": DECIDE,
    "check": GUARD,
    "compare": GUARD,
    "verify": GUARD,
    "inspect": LOOK,
    "audit": LOOK,
    "project": LOOK,
}
"""All commands in the order of `--help`, each a function in the file of its name: the group that it is shown in."""


def _flowing(text: str | None) -> str:
    """A docstring with each paragraph on one line, for the terminal to break, and brackets that are no markup."""
    return escape("\n\n".join(" ".join(part.split()) for part in cleandoc(text or "").split("\n\n")))


for _name, _group in COMMANDS.items():
    _command = getattr(import_module(f".{_name.replace('-', '_')}", __package__), _name.replace("-", "_"))
    app.command(_name, cls=Command, help=_flowing(_command.__doc__), rich_help_panel=_group)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
    """Runs the command line.

    Exits with 0 (fine), 1 (a test failed), 2 (unusable input), 3 (undecided), 70 (a bug) or 130 (interrupted).
    """
    _open_closed_streams()
    sys.stdout, sys.stderr = (cast(TextIO, _Lasting(each)) for each in (sys.stdout, sys.stderr))
    escape_remarks_of_others()
    wait_asleep()
    app(prog_name="gradscore")


class _Lasting:
    """A standard stream that leads nowhere once its reader has seen enough (gradscore ... | head).

    The command goes on and ends with an exit code of its own: a failed gate fails.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._without_reader():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._without_reader():
            self._stream.flush()

    @contextmanager
    def _without_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_closed_streams() -> None:
    """Leads standard streams that are closed nowhere: a file that is opened later would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # for as long as it runs
