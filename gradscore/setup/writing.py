"""A proposal as a commented YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from ..config import load_config
from ..errors import OutputError
from ..system import write_text
from .proposal import Proposal

COLUMN = 48
"""Comments begin here where there is room."""

WIDEST = 120
"""Longer lines have their comment above them."""

HEAD = """# Written by gradscore init. docs/configuration.md explains every key; paths are relative to this file.
"""
EXPLAINED = {
    "model": "the classifier",
    "preprocessing": "from an image to what the network takes",
    "data": "sets of samples",
    "features": "what is computed of each sample",
    "data.ood": "samples that are none of the classes; auxiliary ones are made of those to fit on and not reported",
}


def as_yaml(proposal: Proposal) -> str:
    """The text of the configuration, with reasons as comments, and what is missing marked."""
    lines = [HEAD, *(_line("", remark).lstrip() for remark in proposal.remarks)]
    above: list[str] = []
    for key, value in proposal.settings.items():
        *sections, name = key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(_line(f"{'  ' * depth}{section}:", EXPLAINED.get(".".join(sections[: depth + 1]), "")))
        above = sections
        indent = "  " * len(sections)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(_line(f"{indent}{name}:", EXPLAINED.get(key, "")))
            lines += [f"{indent}  - {_flow(entry)}\n" for entry in value]
            continue
        missing = proposal.missing.get(key)
        comment = proposal.reasons.get(key, "") if missing is None else f"FILL IN: {missing}"
        lines.append(_line(f"{indent}{name}: {_flow(value)}", comment))
    return "".join(lines)


def write_proposal(proposal: Proposal, path: Path, *, force: bool = False) -> None:
    """Writes the configuration.

    Args:
        proposal: what it says.
        path: the file.
        force: replace a file that is there.

    Raises:
        OutputError: there is a file already, or it cannot be written.
        ConfigError: nothing is missing, and the settings do not fit together.
    """
    if path.exists() and not force:
        raise OutputError(f"{path}: there is a file already; name another with --out, or replace it with --force")
    text = as_yaml(proposal)
    write_text(path, text)
    if not proposal.missing:
        load_config(path)


def _line(text: str, comment: str) -> str:
    comment = " ".join(comment.split())  # names of files may have line breaks, which would end it
    line = f"{text:<{COLUMN}} # {comment}"
    if len(line) <= WIDEST:
        return f"{line}\n" if comment else f"{text}\n"
    indent = text[: len(text) - len(text.lstrip())]
    return f"{fill(comment, WIDEST, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# ')}\n{text}\n"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
