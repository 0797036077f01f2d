"""`gradscore demo`: all steps from training to decisions, on real images that the package brings along."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradscore.errors import ConfigError

from .options import UNDECIDED, QuietOption, ThreadsOption
from .output import Output

if TYPE_CHECKING:
    from gradscore.demo import Step

EXTRAS = {"fast": ("numba", "gradients are computed without compiled loops"), "report": ("jinja2", "there is no page")}
"""Optional packages that the demo would use, and what is so without them."""


def demo(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to make; there must be none of that name yet.")
    ] = Path("demo"),
    _threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run every step on example images, in about a minute.

    A small part of Fashion-MNIST comes with the package: eight kinds of clothes that the network learns, and two that
    it never sees. Every command is shown as it can be typed, and the folder is a project to look at and change.

    Example: gradscore demo
    """
    from gradscore.demo import example, project, steps, train
    from gradscore.system import as_address, is_address

    if is_address(folder):
        raise ConfigError(f"{as_address(folder)}: the demo is made in a local folder; name one")
    if str(folder).startswith("-"):
        raise ConfigError(f"{folder}: commands would take this for an option; name a folder without a dash in front")
    output = Output(quiet=quiet)
    try:
        with project(folder):
            output.say(f"{folder}: images, and the code of a network", detail=True)
            _announce(output, "train the network", "python", [str(folder / "net.py")])
            output.say(train(folder), detail=True)
            found = [_done(context, output, step) for step in steps(folder)]
            _done(context, output, example(folder))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{folder} was removed again; the same command starts anew") from None
    evaluation, bundle, *_ = found
    if evaluation is not None:
        output.say("", *evaluation["answer"]["sentences"][:2], f"{bundle['bundle']}: {bundle['sentence']}", detail=True)
    missing = {extra: without for extra, (package, without) in EXTRAS.items() if find_spec(package) is None}
    if missing:
        output.tell(f"note: {'; '.join(missing.values())}: pip install 'gradscore[{','.join(missing)}]' has that")
    page = folder / "run" / "evaluation" / "report.html"
    output.say(*([f"The page: {page}"] if page.is_file() else []), detail=True)
    output.say("Next, for a network and images of your own: gradscore init FOLDER", detail=True)


def _announce(output: Output, what: str, program: str, words: Any) -> None:
    output.say("", f"# {what}", f"$ {program} {join(words)}", detail=True)


def _done(context: typer.Context, output: Output, step: Step) -> Any:
    """Runs a command of this program and returns what it does; one that comes to no verdict is no failure."""
    _announce(output, step.what, "gradscore", step.words)
    name, *given = [*step.words, *(["--quiet"] if output.quiet else [])]
    program: Any = context.find_root().command
    command = program.commands[name]
    try:
        with command.make_context(name, given, parent=context) as inner:
            return command.invoke(inner)
    except typer.Exit as end:
        if end.exit_code != UNDECIDED:
            raise
        return None
