"""Exactness and speed with the oldest, the tested and the newest versions of all that gradscore depends on.

    python benchmarks/versions.py                                # before a release
    python benchmarks/versions.py --short                        # without another PyTorch
    python benchmarks/versions.py --pin                          # after a bound in pyproject.toml has changed

Each set of versions is installed in an environment of its own. `oldest` has every dependency at its bound in
pyproject.toml, `tested` is constraints.txt, and `newest` is whatever there is. In each, tests of the engine compare it
with exact references and float64, the digits go from training to a verdict, and statistics are timed beside a training
step.

`--short` (`make test-oldest`) takes constraints-oldest.txt, all other dependencies at their bounds
beside the tested PyTorch, and leaves the timing out; `--pin` writes that file.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from environments import ROOT, python_with

EXTRAS = ("fast", "lightning", "report", "s3", "timm", "transformers")
TOOLS = ("datasets", "hypothesis", "mpmath", "pytest", "pytest-xdist")
"""Of the extra `dev`: what the tests below import."""

TESTED, OLDEST = ROOT / "constraints.txt", ROOT / "constraints-oldest.txt"
SETS = ("oldest", "tested", "newest")
OF_TORCH = ("torch", "torchvision")

ZOO = ("tests/gradients", "tests/kernels", "tests/statistics", "tests/test_losses.py", "tests/pipeline")
SHORT = ("tests/kernels", "tests/statistics", "tests/test_losses.py")
"""Without another PyTorch: gradients are PyTorch's work alone."""

SHOWN = ("torch", "numpy", "pandas", "scikit-learn", "pyarrow", "pydantic", "numba")
MODELS = ("MLP 3072-1024-1024-10", "LeNet 32-64", "ResNet-20")

NOT_OURS = ("-W", "ignore:'click:DeprecationWarning", "-W", "ignore::pyparsing.warnings.PyparsingDeprecationWarning")
"""A typer that is older than its click says so, and a matplotlib that is older than its pyparsing: all other warnings
are errors, as ever."""


def name_of(requirement: str) -> str:
    """What a requirement is for: `numpy` of numpy>=1.26."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found[0].lower()


def requirements() -> list[str]:
    """All that is installed beside the package itself, with the bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    tools = [each for each in optional["dev"] if name_of(each) in TOOLS]
    return [*project["dependencies"], *(each for extra in EXTRAS for each in optional[extra]), *tools]


def resolved(resolution: str, *pins: str) -> list[str]:
    """Versions of the requirements, and of all that these require, that go together on this Python.

    Args:
        resolution: that of uv: `lowest-direct` or `highest`.
        pins: requirements that hold besides.
    """
    import uv

    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--python",
        sys.executable,
    ]
    given = "\n".join([*requirements(), *pins])
    done = subprocess.run(
        [*command, "--resolution", resolution, "-"], input=given, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()


def of_torch() -> list[str]:
    """The pins of the tested PyTorch."""
    return [
        line for line in TESTED.read_text().splitlines() if line.startswith(tuple(f"{name}==" for name in OF_TORCH))
    ]


def pin() -> None:
    """Writes constraints-oldest.txt."""
    of_cuda = ("nvidia-", "cuda-", "triton==")  # of a PyTorch for CUDA alone
    lines = [line for line in resolved("lowest-direct", *of_torch()) if not line.startswith(of_cuda)]
    head = "# Every dependency at its bound in pyproject.toml, beside the tested PyTorch: benchmarks/versions.py --pin."
    OLDEST.write_text("\n".join([head, *lines, ""]))


def environment(name: str) -> Path:
    """The interpreter of an environment with a set of versions."""
    pins = {
        "oldest": lambda: resolved("lowest-direct"),
        "tested": TESTED.read_text().splitlines,
        "newest": lambda: resolved("highest"),
        "short": OLDEST.read_text().splitlines,
    }[name]()
    chosen = {name_of(each) for each in requirements()}
    direct = [line for line in pins if not line.startswith("#") and name_of(line) in chosen]
    others = [line for line in pins if not line.startswith("#") and name_of(line) not in chosen]
    # PyTorch is of this version already, and a third of what an environment takes on the disk.
    linked = of_torch() if name == "short" else ()
    return python_with(f"versions-{name}", *direct, "--editable", str(ROOT), pins=others, linked=linked)


def surroundings(python: Path) -> dict[str, str]:
    """Variables for processes of an environment: one thread, and compiled loops apart from those of other Numbas."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(python.parent.parent / "loops")}


def tests_passed(python: Path, chosen: Sequence[str]) -> str:
    """Runs tests, and says how many passed; ends where one failed."""
    command = [python, "-m", "pytest", "-q", "--numprocesses", "auto", "--maxprocesses", "2", *NOT_OURS, *chosen]
    done = subprocess.run(command, cwd=ROOT, env=surroundings(python), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\ntests fail with {python}")
    return re.sub(r" in .*", "", done.stdout.splitlines()[-1])


def digits_verdict(python: Path) -> str:
    """Trains, extracts, fits and evaluates in a folder that goes afterwards; the figures of the verdict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("configs", "data_scripts"):
            shutil.copytree(ROOT / each, folder / each)
        commands = [
            ["data_scripts/digits.py"],
            ["-m", "gradscore", "extract", "configs/digits.yaml", "--trust-code", "-q"],
            ["-m", "gradscore", "fit-meta", "runs/digits/run", "-q"],
            ["-m", "gradscore", "evaluate", "runs/digits/run", "--json"],
        ]
        for command in commands:
            done = subprocess.run(
                [python, *command], cwd=folder, env=surroundings(python), capture_output=True, text=True
            )
            if done.returncode != 0:
                sys.exit(f"{done.stdout}{done.stderr}\n{' '.join(command)} fails with {python}")
        found = json.loads(done.stdout)
    if found["no_verdict"] is not None:
        sys.exit(f"no verdict with {python}: {found['no_verdict']}")
    return "; ".join(f"{each['what']} {each['auroc']:.3f}" for each in found["verdicts"])


def measured(python: Path, seconds: float) -> dict[str, str]:
    """Versions, speed and which fast ways there are, by a process of the environment."""
    command = [python, __file__, "--measure", "--seconds", str(seconds)]
    done = subprocess.run(command, env=surroundings(python), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def measure(seconds: float) -> dict[str, str]:
    """What `measured` asks for, in this process."""
    import functools

    import numpy as np
    import torch
    from engine import alternate, gradscore, quartiles, step
    from models import build, images

    from gradscore.gradients import Engine
    from gradscore.kernels import native

    torch.set_num_threads(1)
    found = {name: version(name) for name in SHOWN}
    for name in MODELS:
        model, batch = build(name), images(64)
        engine = Engine(dict(model.named_parameters()))
        both = functools.partial(step, model, batch), functools.partial(gradscore, engine, model, batch)
        alternate(1, time.process_time, *both)
        start = time.perf_counter()
        taken = [alternate(1, time.process_time, *both)]
        while time.perf_counter() < start + seconds or len(taken) < 5:
            taken.append(alternate(1, time.process_time, *both))
        times = np.concatenate(taken)
        found[name] = quartiles(times[:, 1] / times[:, 0])
    slower = {"products": not native.has_products(), "loops on one thread": native.start_team() is None}
    found["slower"] = "; ".join(way for way, is_so in slower.items() if is_so) or "nothing"
    return found


def table(names: Sequence[str], seconds: float) -> str:
    """The table of the page."""
    columns = {}
    for name in names:
        python = environment(name)
        print(f"{name}: {python}", file=sys.stderr, flush=True)
        found = measured(python, seconds)
        found["tests"] = tests_passed(python, ZOO)
        found["digits"] = digits_verdict(python)
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        columns[name] = found
    rows = {each: each for each in SHOWN}
    rows |= {"tests": "tests of exactness", "digits": "AUROC of the digits run"}
    rows |= {name: f"ratio to a step, {name}" for name in MODELS} | {"slower": "what takes a slower way"}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {title} | {' | '.join(each[key] for each in columns.values())} |" for key, title in rows.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)}; all of them if none is named")
    parser.add_argument("--seconds", type=float, default=20, help="time for the alternating runs of a model")
    parser.add_argument("--short", action="store_true", help="exactness and digits with constraints-oldest.txt")
    parser.add_argument("--pin", action="store_true", help="write constraints-oldest.txt anew")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.sets) - set(SETS):
        parser.error(f"there is no set {', '.join(sorted(unknown))}; there are {', '.join(SETS)}")
    if options.measure:
        print(json.dumps(measure(options.seconds)))
    elif options.pin:
        pin()
    elif options.short:
        python = environment("short")
        print(tests_passed(python, SHORT), digits_verdict(python), sep="\n")
    else:
        print(table(options.sets or SETS, options.seconds))


if __name__ == "__main__":
    main()
