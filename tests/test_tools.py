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


@pytest.fixture(scope="module")
def without_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages without all tools; that no tool needs another one is a contract of import-linter."""
    folder = tmp_path_factory.mktemp("without")
    for name, source in (("gradscore", "gradscore"), ("gradscore_cli", "cli")):
        shutil.copytree(ROOT / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    main = folder / "gradscore_cli" / "main.py"
    for tool in TOOLS:
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


def test_help_without_tools(without_tools: Path) -> None:
    said = run(without_tools, "-m", "gradscore_cli", "--help")
    commands = {line.split()[1] for line in said.splitlines() if line.startswith("│ ") and line[2] != " "}
    assert commands >= {"extract", "evaluate", "score"}
    assert not commands & {*TOOLS.values()}


def test_everything_else_without_tools(without_tools: Path) -> None:
    run(without_tools, "-W", "ignore", "-c", IMPORT_ALL)
