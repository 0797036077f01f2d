"""Pages that need nothing but a browser: texts, plots and small images in one file, and the plots beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from ..data import Pixels
from ..errors import MissingExtraError
from ..printable import printable
from ..system import write_bytes, write_text
from .plots import Plot

PACKAGES = ("jinja2", "matplotlib")
"""What pages need: the extra `report`."""

TEMPLATES = Path(__file__).parent / "templates"
"""Templates that all pages share; `base.html.jinja` is a page of plots by itself."""

THUMBNAIL = 96
"""Thumbnails are no larger than this many pixels; smaller images stay as they are and are magnified by the page."""

_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*[]<>|#"} | {"\n": " ", "\r": " "})


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a page: plots under a heading.

    Attributes:
        title: the heading.
        plots: in the order of the page.
        remark: what holds for all of them.
    """

    title: str
    plots: Sequence[Plot]
    remark: str = ""


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


def write_page(
    page: Path,
    content: Mapping[str, object],
    parts: Sequence[Part],
    *,
    template: Path = TEMPLATES / "base.html.jinja",
    plots: Path | None,
) -> list[Path]:
    """Writes a page and its plots.

    Args:
        page: the file.
        content: what the template asks for beside the parts; see `base.html.jinja` for what every page may have.
        parts: the plots of the page.
        template: of the page, which extends `base.html.jinja`.
        plots: the folder for every plot as PNG and SVG, where no other plot stays; None for no such files.

    Returns:
        The PNG and SVG files.

    Raises:
        OutputError: a file cannot be written.
    """
    from markupsafe import Markup

    images, files = {}, []
    for plot in (plot for part in parts for plot in part.plots):
        drawing = plot.drawn("svg")
        images[plot.name] = Markup(_data_uri(drawing, "svg+xml"))  # nothing in it to escape
        if plots is not None:
            for kind, drawn in (("png", plot.drawn("png")), ("svg", drawing)):
                files.append(plots / f"{plot.name}.{kind}")
                write_bytes(files[-1], drawn)
    if plots is not None:
        for path in {*plots.glob("*.png"), *plots.glob("*.svg")} - set(files):
            path.unlink()  # of an earlier page
    shared = {"facts": [], "notices": [], "version": version("gradscore"), "parts": parts, "images": images}
    write_text(page, render(template, {**shared, **content}))
    return files


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


def thumbnail(pixels: Pixels) -> str:
    """A small copy of an image (H, W, C) uint8 as a PNG in a data URI."""
    grey = pixels.shape[2] != 3
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return _data_uri(buffer.getvalue(), "png")


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
