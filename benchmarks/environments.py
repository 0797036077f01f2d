"""Environments of their own for peers, made once from public packages."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".benchmark-envs"


def python_with(name: str, *requirements: str) -> Path:
    """The interpreter of an environment that holds the requirements beside the project's pinned torch."""
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not done.exists() or done.read_text() != wanted:
        print(f"installing {wanted!r} in {folder.relative_to(ROOT)} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pins = [
            line
            for line in (ROOT / "constraints.txt").read_text().splitlines()
            if line.startswith(("torch==", "numpy=="))
        ]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins, *requirements], check=True)
        done.write_text(wanted)
    return python
