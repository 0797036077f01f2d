"""Pages of the manual that are written elsewhere: a hook of MkDocs, named in mkdocs.yml."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gradscore_cli.docs import page_text

ROOT = Path(__file__).parent.parent
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Files of the repository that are pages, too."""

NOTEBOOK = ROOT / "docs" / "detector.ipynb"

CODE = re.compile(r"`[^`\n]+`")

ELSEWHERE = {
    "](../CONTRIBUTING.md": "](contributing.md",
    "](../CHANGELOG.md": "](changelog.md",
    "](detector.ipynb": "](detector.md",
}
"""Links that hold in the repository, and what they are in the manual."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made of other files."""
    for name in BESIDE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=text))
    files.append(File.generated(config, NOTEBOOK.with_suffix(".md").name, content=page_text(NOTEBOOK)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_context: Any) -> str:
    """Adds the options of commands, leads links to pages, draws charts, and takes escapes from bars in code."""
    if page.file.src_uri == "commands.md":
        markdown = f"{markdown}\n\n{tables().commands_in_full()}"
    markdown = CODE.sub(lambda found: found[0].replace(r"\|", "|"), markdown)
    for link, here in ELSEWHERE.items():
        markdown = markdown.replace(link, here)
    return markdown


def tables() -> ModuleType:
    """docs/tables.py, which is no package."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
