"""Tools that can be taken out: by deleting a folder, the file of its command, and the line that names the command."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

TOOLS = {
    "demo": "demo",
    "distributed": "merge",
    "doctor": "doctor",
    "inspect": "inspect",
    "label_audit": "audit",
    "monitoring": "monitor",
    "projections": "project",
    "setup": "init",
}
"""The command of every tool, by its package."""

OPTIONAL = {"lightning_callback"}
"""Modules that need packages which may be lacking."""

IMPORT_ALL = f"""
import importlib, pkgutil, gradscore, gradscore_cli
for package in (gradscore, gradscore_cli):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.rpartition(".")[2] not in {OPTIONAL} | {{"__main__"}}:
            importlib.import_module(found.name)
"""


def without(folder: Path, *tools: str) -> Path:
    """A copy of the packages without some tools."""
    for name, source in (("gradscore", "gradscore"), ("gradscore_cli", "cli")):
        shutil.copytree(ROOT / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    main = folder / "gradscore_cli" / "main.py"
    for tool in tools:
        shutil.rmtree(folder / "gradscore" / tool)
        (folder / "gradscore_cli" / f"{TOOLS[tool]}.py").unlink()
        lines = main.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f'    "{TOOLS[tool]}": ')]
        assert len(kept) == len(lines) - 1
        main.write_text("".join(kept))
    return folder


def run(folder: Path, *arguments: str) -> str:
    found = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("tool", TOOLS)
def test_help_without_a_tool(tmp_path: Path, tool: str) -> None:
    said = run(without(tmp_path, tool), "-m", "gradscore_cli", "--help")
    commands = {line.split()[1] for line in said.splitlines() if line.startswith("│ ") and line[2] != " "}
    assert commands >= {*TOOLS.values(), "extract", "evaluate", "score"} - {TOOLS[tool]}
    assert TOOLS[tool] not in commands


def test_everything_else_without_all_tools(tmp_path: Path) -> None:
    """That no tool needs another one is a contract of import-linter."""
    run(without(tmp_path, *TOOLS), "-W", "ignore", "-c", IMPORT_ALL)
