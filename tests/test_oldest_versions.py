"""constraints-oldest.txt holds the bounds of pyproject.toml, so that what is tested is what is promised."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("fast", "lightning", "report", "s3", "timm", "transformers")
BOUNDS = {
    each.name: Version(next(iter(each.specifier)).version)
    for extra in [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in EXTRAS)]
    for each in map(Requirement, extra)
}


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text().splitlines()
    return {each.partition("==")[0].lower(): Version(each.partition("==")[2]) for each in lines if "==" in each}


def test_the_oldest_version_is_the_bound_and_pytorch_the_tested_one() -> None:
    """`python benchmarks/versions.py --pin` writes them anew."""
    oldest, tested = pins("constraints-oldest.txt"), pins("constraints.txt")
    pytorch = {name: tested[name] for name in ("torch", "torchvision")}
    assert {name: oldest[name] for name in BOUNDS} == BOUNDS | pytorch
    assert [name for name in pytorch if pytorch[name] < BOUNDS[name]] == []
