"""What docs/ci.md has others put into their repositories works there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text()
GITHUB, ACTION, GITLAB = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
STEPS = GITHUB["jobs"]["model"]["steps"]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
SCRIPTS = {
    "GitHub": [step["run"] for step in STEPS if "run" in step],
    "GitLab": GITLAB["model"]["script"],
}


@pytest.fixture(scope="module")
def repository(make_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's repository: a configuration with its model, and a baseline."""
    run: Path = make_run()
    folder = tmp_path_factory.mktemp("repository")
    (folder / "model").symlink_to(run.parent)
    (run.parent / "gradscore.yaml").write_text((run / "config.yaml").read_text())
    update = ["gradscore", "check", "model/run", "--baseline", "model/baseline.json", "--update"]
    subprocess.run(update, cwd=folder, env=ENVIRONMENT, check=True)
    return folder


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
