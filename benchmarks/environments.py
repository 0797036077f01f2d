"""Environments of their own for peers, made once from public packages."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".benchmark-envs"


def python_with(name: str, *requirements: str, pins: Sequence[str] | None = None, linked: Sequence[str] = ()) -> Path:
    """The interpreter of an environment that holds the requirements.

    Args:
        name: that of its folder.
        requirements: as pip takes them.
        pins: versions of what the requirements require; left out, the project's torch and numpy are installed as well.
        linked: what is large and installed here in the version wanted (`torch==2.13.0`): linked to, not copied.
    """
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if pins is None:
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        requirements = (*(line for line in lines if line.startswith(("torch==", "numpy=="))), *requirements)
    wanted = "\n".join([*requirements, *(pins or ())])
    if not done.exists() or done.read_text() != wanted:
        print(f"installing {' '.join(requirements)} in {folder.relative_to(ROOT)} ...", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        for requirement in linked:
            _link(requirement, next(folder.glob("lib/python*/site-packages")))
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pins or ()))
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, *requirements], check=True
        )
        done.write_text(wanted)
    return python


def _link(requirement: str, target: Path) -> None:
    """Links what this interpreter has of `name==version` into another environment; does nothing for another version."""
    name, _, wanted = requirement.partition("==")
    here = distribution(name)
    if here.version.partition("+")[0] == wanted:  # 2.13.0+cpu is 2.13.0
        for each in {file.parts[0] for file in here.files or () if ".." not in file.parts}:
            (target / each).symlink_to(here.locate_file(each))
