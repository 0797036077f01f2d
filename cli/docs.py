"""`gradscore docs`: the pages of the manual, which come with the package."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from gradscore.errors import ConfigError

from .output import Output

SHIPPED = Path(__file__).parent / "pages"
"""Where setup.py puts the pages of docs/ in a wheel."""

PageArgument = Annotated[
    str | None, typer.Argument(metavar="[PAGE]", help="Its name; without one, all are listed.", show_default=False)
]


def docs(page: PageArgument = None) -> None:
    """Show a page of the manual, or list all of them.

    Example: gradscore docs

    Example: gradscore docs evaluation
    """
    pages = _pages()
    if page is None:
        width = max(map(len, pages))
        Output().say(*(f"{name:{width}}  {_title(path)}" for name, path in pages.items()))
        return
    name = page.removesuffix(".md")
    if name not in pages:
        near = get_close_matches(name, pages, n=3, cutoff=0.4)
        advice = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"{page}: the manual has no such page; {advice}gradscore docs lists all")
    text = pages[name].read_text(encoding="utf-8")
    if _is_terminal():
        Console().print(Markdown(text))
    else:
        typer.echo(text, nl=False)


def _pages() -> dict[str, Path]:
    """The pages by name, the first one first; in a checkout, those of docs/."""
    folder = SHIPPED if SHIPPED.is_dir() else Path(__file__).parent.parent / "docs"
    found = {
        path.stem: path for path in sorted(folder.glob("*.md"), key=lambda path: (path.stem != "index", path.stem))
    }
    if not found:
        raise ConfigError(f"{folder}: the pages of the manual are not there; install the package anew")
    return found


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _title(page: Path) -> str:
    """The first heading of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
