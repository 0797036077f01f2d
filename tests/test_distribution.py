"""What is shipped: the wheel and the source distribution, and the wheel at work without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {name: ROOT / folder for name, folder in SETTINGS["tool"]["setuptools"]["package-dir"].items()}
CACHES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")

NET = """
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
"""

CONFIG = """
model: {source: "python:net.py:net", checkpoint: net.safetensors, num_classes: 10}
preprocessing: {mean: [0.5], std: [0.5]}
data:
  auxiliary: []
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 100}}
    test: {source: "sklearn:digits", select: {start: 100, stop: 200}}
  ood:
    - {name: noise, source: "synthetic:gaussian_noise", select: {stop: 60}}
features: {losses: [uniform], statistics: [max, l1, l2]}
extract: {device: cpu}
meta: {Cs: [0.01], cv_folds: 2}
evaluate: {protocols: [known]}
run: run
"""

COMMANDS = {
    "extract": ("config.yaml", "--trust-code"),
    "fit-meta": ("run",),
    "evaluate": ("run",),
    "inspect": ("run", "--trust-code", "--samples", "8", "--quantities", "gradient_geometry"),
    "bundle": ("run", "--out", "scorer.gradscore", "--alpha", "0.5", "--trust-code"),
    "score": ("scorer.gradscore", "seven.png", "--trust-code", "--out", "scores.csv"),
}

ENDS = {"evaluate": 3}
"""Random weights are right by chance, of which there is no verdict."""

WRITTEN = {
    "feature table": "run/features/in_dist.test/part-00000.parquet",
    "figures": "run/evaluation/metrics.json",
    "report": "run/evaluation/report.html",
    "report of the inspection": "run/inspect/report.html",
    "bundle": "scorer.gradscore",
    "scores": "scores.csv",
}


PAGES = {
    f"gradscore_cli/pages/{path.name}": path for kind in ("md", "csv") for path in (ROOT / "docs").glob(f"*.{kind}")
}
"""The manual, by its paths in the wheel."""


def shipped() -> dict[str, Path]:
    """Every file of the packages, by its path in the wheel."""
    return {
        f"{package}/{path.relative_to(folder).as_posix()}": path
        for package, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel built of nothing else."""
    folder = tmp_path_factory.mktemp("distributions")
    # A copy, since what an earlier build left in build/ would get into the wheel.
    shutil.copytree(ROOT, folder / "checkout", ignore=CACHES)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "checkout"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (source,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel, and all it depends on from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    # Behind the wheel on the path, and without the .pth file there that leads to the checkout.
    there = sysconfig.get_paths()
    (Path(paths["purelib"]) / "dependencies.pth").write_text(f"{there['purelib']}\n{there['platlib']}\n")
    programs = Path(paths["scripts"])
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "--no-index", "--no-deps", distributions[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return programs


def run(installed: Path, folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [installed / program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def used(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder in which every command was run one after the other, and what went wrong by command."""
    folder = tmp_path_factory.mktemp("used")
    (folder / "net.py").write_text(NET)
    (folder / "config.yaml").write_text(CONFIG)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    save_file(model.state_dict(), folder / "net.safetensors")
    Image.fromarray(np.round(load_digits().images[7] * (255 / 16)).astype(np.uint8)).save(folder / "seven.png")
    done = {name: run(installed, folder, "gradscore", name, *arguments) for name, arguments in COMMANDS.items()}
    return folder, {
        name: f"exit code {each.returncode}: {each.stderr}"
        for name, each in done.items()
        if each.returncode != ENDS.get(name, 0)
    }


def test_every_folder_of_code_is_named_as_a_package() -> None:
    found = [
        ".".join([package, *path.parent.relative_to(folder).parts])
        for package, folder in FOLDERS.items()
        for path in folder.rglob("__init__.py")
    ]
    assert sorted(SETTINGS["tool"]["setuptools"]["packages"]) == sorted(found)


def test_wheel_holds_every_file_of_the_packages(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {*shipped(), *PAGES}


def test_source_distribution_holds_what_the_wheel_is_built_of(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as source:
        names = {member.name.partition("/")[2] for member in source.getmembers() if member.isfile()}
    code = {path.relative_to(ROOT).as_posix() for path in (*shipped().values(), *PAGES.values())}
    about = {name for name in names - code if not name.startswith("gradscore.egg-info/")}
    assert names >= code
    assert about == {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}


def test_wheel_holds_the_license(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("package", FOLDERS)
def test_types_are_shipped(distributions: tuple[Path, Path], package: str) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        assert f"{package}/py.typed" in wheel.namelist()


@pytest.mark.parametrize("package", FOLDERS)
def test_code_comes_from_the_wheel(installed: Path, tmp_path: Path, package: str) -> None:
    found = run(installed, tmp_path, "python", "-c", f"import {package}; print({package}.__file__)")
    assert Path(found.stdout.strip()).is_relative_to(installed.parent), found.stdout + found.stderr


def test_wheel_is_small(distributions: tuple[Path, Path]) -> None:
    assert distributions[1].stat().st_size < 5e6


def test_manual_comes_along(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "gradscore", "docs").stdout.splitlines()
    assert len(listed) == len([page for page in PAGES if page.endswith(".md")])
    assert run(installed, tmp_path, "gradscore", "docs", "glossary").stdout == (ROOT / "docs/glossary.md").read_text()


def test_demo_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "gradscore", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"demo"}
    assert (tmp_path / "demo" / "run" / "evaluation" / "report.html").stat().st_size > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_command_works(used: tuple[Path, dict[str, str]], command: str) -> None:
    assert used[1].get(command) is None


@pytest.mark.parametrize("file", WRITTEN.values(), ids=WRITTEN)
def test_command_writes(used: tuple[Path, dict[str, str]], file: str) -> None:
    assert (used[0] / file).stat().st_size > 0
