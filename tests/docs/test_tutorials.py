"""Whoever follows a tutorial gets to its end."""

import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from manual_pages import blocks_of, code_of
from sklearn.datasets import load_digits

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
TUTORIALS = ("tutorial-images.md", "tutorial-tables.md", "tutorial-text.md")
READY = "from gradscore.system import import_torchvision\nimport_torchvision()\n"
"""Some builds of torchvision lack its operators, and cannot be imported as they are."""

PREPARED = {"python": READY, "sh": ""}
PROGRAMS = {"python": [sys.executable, "-c"], "sh": ["bash", "-e", "-c"]}


SMALLER = {"20000": "600", "5000": "300", "2000": "240", "1000": "60"}
"""Numbers of images: those of the page, and those of the stand-ins."""


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


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder as that of Debian's package, with scikit-learn's digits in place of the clothes."""
    folder = tmp_path / "packed"
    folder.mkdir()
    digits = load_digits()
    images = np.pad(np.round(digits.images * (255 / 16)).repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
    parts = {"train": slice(1400), "t10k": slice(1400, None)}
    arrays = {f"{name}-images-idx3": images[part] for name, part in parts.items()}
    arrays |= {f"{name}-labels-idx1": digits.target[part] for name, part in parts.items()}
    for name, array in arrays.items():
        head = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    return folder


def test_ten_minutes(packed: Path, tmp_path: Path) -> None:
    """One session, with fewer images, which are there already so that nothing is fetched."""
    unpacked = run(
        "sh", code_of("ten-minutes.md", "sh").replace("/usr/share/datasets/fashion-mnist", str(packed)), tmp_path
    )
    code = re.sub(r"\b[0-9]+000\b", lambda found: SMALLER[found[0]], code_of("ten-minutes.md"))
    done = run("python", code, tmp_path, MPLBACKEND="Agg")
    assert (unpacked.returncode, done.returncode) == (0, 0), unpacked.stderr + done.stderr
    assert "of 240 predictions are wrong" in done.stdout
    assert "bags_and_boots" in done.stdout.splitlines()[-1]
    assert {"wrong.png", "passed.png", "report.html"} <= {path.name for path in tmp_path.iterdir()}
