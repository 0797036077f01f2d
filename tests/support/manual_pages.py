"""The code that README and manual show: every fenced block with its page, line and language."""

import importlib.util
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGES = {path.name: path for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))}
TUTORIALS = ("tutorial-images.md", "tutorial-tables.md", "tutorial-text.md")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
ASSIGNED = re.compile(r"[A-Z_0-9]+=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in order, or those of some languages."""
    text = PAGES[page].read_text(encoding="utf-8")
    found = [Block(page, text[: each.start()].count("\n") + 1, each[3], each[4]) for each in FENCE.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def code_of(page: str, language: str = "python") -> str:
    """The blocks of one language of a page as one program."""
    return "\n".join(block.text for block in blocks_of(page, language))


def run_page(page: str, **names: Any) -> dict[str, Any]:
    """What the Python blocks of a page leave behind, run one after the other, by name; `names` are there before."""
    exec(compile(code_of(page), page, "exec"), names)
    return names


def commands_in(script: str) -> list[list[str]]:
    """The words of every command of a script, without comments, and without variables that are set for it."""
    lines = script.replace("\\\n", " ").splitlines()
    words = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [command for command in map(_without_assignments, words) if command]


def _without_assignments(words: Sequence[str]) -> list[str]:
    first = next((place for place, word in enumerate(words) if not ASSIGNED.fullmatch(word)), len(words))
    return list(words[first:])


def manual_tables() -> ModuleType:
    """docs/tables.py, which is no package."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
