"""What docs/check.md has others put into their repositories works there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from manual_pages import ROOT, blocks_of, code_of

pytestmark = pytest.mark.slow

GITHUB, ACTION, GITLAB = (yaml.safe_load(block.text) for block in blocks_of("check.md", "yaml"))
STEPS = GITHUB["jobs"]["model"]["steps"]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
SCRIPTS = {
    "GitHub": [step["run"] for step in STEPS if "run" in step],
    "GitLab": GITLAB["model"]["script"],
}


@pytest.fixture(scope="module")
def repository(make_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's repository: a configuration with its model, and expected figures made as the page says."""
    made: Path = make_run().parent
    folder = tmp_path_factory.mktemp("repository")
    made.rename(folder / "model")
    made.symlink_to(folder / "model")  # the configuration names its files by where they were
    (folder / "model" / "gradscore.yaml").write_text((made / "run" / "config.yaml").read_text())
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["bash", "-e", "-c", code_of("check.md", "bash")], cwd=folder, env=ENVIRONMENT, check=True)
    return folder


def test_expected_is_staged(repository: Path) -> None:
    staged = ["git", "diff", "--cached", "--name-only"]
    done = subprocess.run(staged, cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout == "model/expected.json\n"


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_script_runs(repository: Path, script: list[str]) -> None:
    install, *others = script
    assert install == 'python -m pip install "$GRADSCORE"'
    done = subprocess.run(["bash", "-e", "-c", "\n".join(others)], cwd=repository, env=ENVIRONMENT, check=False)
    assert done.returncode == 0
    assert "<testsuite" in (repository / "check.xml").read_text()


def test_installed_is_this_package() -> None:
    extras = re.search(r"gradscore\[(.*?)\] @ git\+", GITHUB["env"]["GRADSCORE"])[1].split(",")
    settings = (ROOT / "pyproject.toml").read_text()
    assert [extra for extra in extras if f"\n{extra} = [" not in settings] == []
    assert GITLAB["variables"] == GITHUB["env"]


def test_action_has_what_it_is_given() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (step,) = ACTION
    assert step["with"].keys() <= inputs.keys()
    assert {name for name, entry in inputs.items() if entry.get("required")} <= step["with"].keys()
    assert shlex.split(step["with"]["margins"]) == ["accuracy=0.03"]
