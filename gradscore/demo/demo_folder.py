"""The folder of the demo, and what is done with it."""

from __future__ import annotations

import csv
import io
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import ModelError, OutputError

HERE = Path(__file__).parent
SHIPPED = {"net.py": "net.py", "gradscore.yaml": "gradscore.yaml", "LICENSE.images": "images/LICENSE"}
"""Files of this package, and what they are in the folder."""

KINDS = ("t_shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle_boot")
"""Fashion-MNIST's classes by its numbers; the network knows the first eight."""


UNKNOWN = "unknown.csv"
"""The decisions on all images of unknown kinds."""


@dataclass(frozen=True)
class Step:
    """A command of the demo.

    Attributes:
        what: it does, in words.
        words: it is typed as, after `gradscore`.
    """

    what: str
    words: Sequence[str]


@contextmanager
def project(folder: Path) -> Iterator[None]:
    """Makes the folder, and takes it away again unless what is done with it comes to its end.

    Raises:
        OutputError: there is something of that name already.
    """
    if folder.exists():
        raise OutputError(f"{folder}: it is there already; name a folder that is not, or remove it")
    folder.mkdir(parents=True)
    try:
        _fill(folder)
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill(folder: Path) -> None:
    parts = np.load(io.BytesIO(lzma.decompress((HERE / "images.xz").read_bytes())))
    for part in (name for name in parts.files if not name.endswith("_labels")):
        kinds = [KINDS[label] for label in parts[f"{part}_labels"]]
        for kind in {*kinds}:
            (folder / "images" / part / kind).mkdir(parents=True)
        for number, (image, kind) in enumerate(zip(parts[part], kinds, strict=True)):
            Image.fromarray(image).save(folder / "images" / part / kind / f"{number:04}.png", compress_level=1)
    for name, there in SHIPPED.items():
        shutil.copyfile(HERE / name, folder / there)


def train(folder: Path) -> str:
    """Trains the network by its own file, in a process of its own, and returns what that says.

    Raises:
        ModelError: it did not come to its end.
    """
    command = [sys.executable, str(folder / "net.py")]
    # In a session of its own, an interrupt does not reach it: it is stopped here, and prints no traceback.
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ModelError(f"{folder / 'net.py'} did not train the network: {said[-1]}")
    return done.stdout.strip()


def steps(folder: Path) -> list[Step]:
    """The commands that follow the training; `example` gives the one after them."""
    bundle = str(folder / "scorer.gradscore")
    return [
        Step(
            "extract gradient features, fit scores, report how good they are",
            ["run", str(folder / "gradscore.yaml"), "--trust-code"],
        ),
        Step(
            "pack the scores with thresholds that reject at most 5 % of correct predictions",
            ["bundle", str(folder / "run"), "--out", bundle, "--trust-code"],
        ),
        Step(
            "decide on all images of two unknown kinds",
            ["score", bundle, str(folder / "images" / "unknown"), "--out", str(folder / UNKNOWN), "--trust-code"],
        ),
    ]


def example(folder: Path) -> Step:
    """The command that decides on the first image of a known kind and the first unknown one that is rejected, if any.

    How many of the unknown ones are rejected, it says, so that nobody takes the one for the rule.
    """
    with (folder / UNKNOWN).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rejected = [number for number, row in enumerate(rows) if row["decision"] == "reject"]
    share = f"{len(rejected)} of {len(rows)} unknown images are rejected ({100 * len(rejected) / len(rows):.0f} %)"
    place = rejected[0] if rejected else 0
    which = f"the first of these, number {place + 1} by name" if rejected else "the first unknown one"
    known = str(next((folder / "images" / "test").glob("*/0000.png")))
    words = ["score", str(folder / "scorer.gradscore"), known, rows[place]["sample_id"], "--trust-code"]
    return Step(f"{share}; decide on one of a known kind and on {which}", words)
