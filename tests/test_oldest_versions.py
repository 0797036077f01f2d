"""constraints-oldest.txt holds the bounds of pyproject.toml, so that what is tested is what is promised."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("fast", "lightning", "report", "s3", "tensorboard", "timm", "transformers")
BOUNDS = {
    each.name: Version(next(iter(each.specifier)).version)
    for extra in [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in EXTRAS)]
    for each in map(Requirement, extra)
}


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text().splitlines()
    return {each.partition("==")[0].lower(): Version(each.partition("==")[2]) for each in lines if "==" in each}


@pytest.mark.parametrize("name", sorted(BOUNDS.keys() - {"torch", "torchvision"}))
def test_the_oldest_version_is_the_bound(name: str) -> None:
    """`python benchmarks/versions.py --pin` writes them anew."""
    assert pins("constraints-oldest.txt")[name] == BOUNDS[name]


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_pytorch_is_the_tested_one(name: str) -> None:
    assert pins("constraints-oldest.txt")[name] == pins("constraints.txt")[name] >= BOUNDS[name]
