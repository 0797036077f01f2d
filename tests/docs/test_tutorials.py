"""Whoever follows a tutorial gets to its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from manual_pages import TUTORIALS, blocks_of

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
READY = "from gradscore.system import import_torchvision\nimport_torchvision()\n"
"""Some builds of torchvision lack its operators, and cannot be imported as they are."""

PREPARED = {"python": READY, "sh": ""}
PROGRAMS = {"python": [sys.executable, "-c"], "sh": ["bash", "-e", "-c"]}


def run(language: str, code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAMS[language], PREPARED[language] + code],
        cwd=folder,
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("page", TUTORIALS)
def test_every_step_works(page: str, tmp_path: Path) -> None:
    ended = [run(step.language, step.text, tmp_path) for step in blocks_of(page, *PROGRAMS)]
    assert [(each.returncode, each.stderr) for each in ended if each.returncode] == []
    assert "decision" in ended[-1].stdout
