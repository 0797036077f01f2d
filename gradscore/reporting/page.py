"""Pages that need nothing but a browser: plots, scripts and texts in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingExtraError
from ..printable import printable
from ..system import write_text
from .plots import Plot

if TYPE_CHECKING:
    from markupsafe import Markup

PACKAGES = ("jinja2", "matplotlib", "plotly")
"""What pages need: the extra `report`."""

TEMPLATES = Path(__file__).parent / "templates"
"""Templates that all pages share."""

_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*[]<>|#"} | {"\n": " ", "\r": " "})


def check_packages(what: str, again: str) -> None:
    """Makes sure that the extra `report` is installed.

    Args:
        what: cannot be made without it.
        again: what to do once it is there.

    Raises:
        MissingExtraError: it is not.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"no {what}: it needs {', '.join(missing)}; run `pip install 'gradscore[report]'` and {again}"
        )


def write_plots(plots: Sequence[Plot], folder: Path) -> list[Path]:
    """Writes every plot as PNG and SVG to a folder, where no other plot stays, and returns the files."""
    from .drawing import draw  # imports matplotlib

    drawn = [path for plot in plots for path in draw(plot, folder)]
    for path in {*folder.glob("*.png"), *folder.glob("*.svg")} - set(drawn):
        path.unlink()  # of an earlier report
    return drawn


def write_page(path: Path, template: Path, content: Mapping[str, object], plots: Sequence[Plot]) -> None:
    """Writes a page that extends `base.html.jinja`.

    Args:
        path: the file.
        template: its template.
        content: what the template asks for.
        plots: those whose names the page mentions.
    """
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from .interactive import figure

    figures = script_json({plot.name: figure(plot) for plot in plots})
    write_text(path, render(template, {**content, "figures": figures, "plotly": Markup(get_plotlyjs())}))


def render(template: Path, content: Mapping[str, object]) -> str:
    """Fills a template; whatever goes into a page is escaped unless it is `Markup`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = markdown_text
    return environment.get_template(template.name).render(content)


def _shown(value: object) -> object:
    """What is filled in: signs that a terminal would obey stand as escapes, lines stay lines."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def markdown_text(value: object) -> str:
    """Text that Markdown shows as it stands, on one line."""
    return str(value).translate(_MARKDOWN_SIGNS)


def script_json(value: object) -> Markup:
    """JSON that can stand in a script element whatever its texts hold."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)
