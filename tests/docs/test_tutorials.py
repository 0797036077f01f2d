"""Whoever follows a tutorial gets to its end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
TUTORIALS = {path.stem: path for path in (ROOT / "docs").glob("tutorial-*.md")}
READY = "from gradscore.system import import_torchvision\nimport_torchvision()\n"
"""Some builds of torchvision lack its operators, and cannot be imported as they are."""

PREPARED = {"python": READY, "sh": ""}
PROGRAMS = {"python": [sys.executable, "-c"], "sh": ["bash", "-e", "-c"]}


@pytest.mark.parametrize("page", TUTORIALS.values(), ids=TUTORIALS)
def test_every_step_works(page: Path, tmp_path: Path) -> None:
    steps = re.findall(r"```(python|sh)\n(.*?)```", page.read_text(), re.DOTALL)
    ended = [
        subprocess.run(
            [*PROGRAMS[language], PREPARED[language] + code],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        for language, code in steps
    ]
    assert [(each.returncode, each.stderr) for each in ended if each.returncode] == []
    assert "decision" in ended[-1].stdout
