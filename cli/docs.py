"""`gradscore docs`: the pages of the manual, which come with the package."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from gradscore.errors import ConfigError

from .output import Output

SHIPPED = Path(__file__).parent / "pages"
"""Folder where setup.py puts the pages of docs/ in a wheel."""


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", help="Its name; without one, all are listed.", show_default=False)
    ] = None,
) -> None:
    """Show a page of the manual, or list all of them.

    Example: gradscore docs

    Example: gradscore docs evaluation
    """
    pages = _pages()
    if page is None:
        width = max(map(len, pages))
        Output().say(*(f"{name:{width}}  {_title(path)}" for name, path in pages.items()))
        return
    name = page.lower().removesuffix(".md")
    if name not in pages:
        from gradscore.system import closest

        raise ConfigError(f"{page}: the manual has no such page; {closest(name, pages)}")
    text = _COMMENT.sub("", _with_names(page_text(pages[name])))
    if _is_terminal():
        encoding = sys.stdout.encoding
        console = Console(emoji=False)
        with console.capture() as laid_out:
            console.print(Markdown(text))
        typer.echo(laid_out.get().encode(encoding, "replace").decode(encoding), nl=False)
    else:
        typer.echo(text, nl=False)


def _pages() -> dict[str, Path]:
    """The pages by name, the first one first; in a checkout, those of docs/."""
    folder = SHIPPED if SHIPPED.is_dir() else Path(__file__).parent.parent / "docs"
    written = [*folder.glob("*.md"), *folder.glob("*.ipynb")]
    found = {path.stem: path for path in sorted(written, key=lambda path: (path.stem != "index", path.stem))}
    if not found:
        raise ConfigError(f"{folder}: the pages of the manual are not there; install the package anew")
    return found


def page_text(page: Path) -> str:
    """A page in Markdown: of a notebook its texts, its code, and what that shows as text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        shown = ["".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output]
        parts += [f"```python\n{source}\n```", *(f"```text\n{each}\n```" for each in shown)]
    return "\n\n".join(parts) + "\n"


def _with_names(text: str) -> str:
    """The text of a page, where the names whose docstrings `make docs` fills in stand with the first lines of these."""

    def filled(found: re.Match[str]) -> str:
        from gradscore.system import first_line  # imports NumPy, which other pages need not wait for

        name, heading, members = found["name"], found["heading"], found["members"]
        names = [f"{name}.{each.strip()}" for each in members.split(",")] if members else [name]
        lines = [f"- `{heading or each}`: {first_line(resolve_name(each))}" for each in names]
        return "\n".join(lines) + "\n"

    return _FILLED_IN.sub(filled, text)


_FILLED_IN = re.compile(
    r"^::: (?P<name>[\w.]+)\n"
    r'(?: +options: \{(?:heading: "(?P<heading>[^"]*)"|members: \[(?P<members>[^]]*)\])?.*\}\n)?',
    re.MULTILINE,
)
"""Pattern of the directives that mkdocstrings replaces by docstrings."""


_COMMENT = re.compile(r"^<!-- .* -->\n\n?", re.MULTILINE)
"""Pattern of the marks around what is generated."""


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _title(page: Path) -> str:
    """The first heading of a page."""
    lines = page_text(page).splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
