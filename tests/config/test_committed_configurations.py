"""The configurations that come with the repository."""

from pathlib import Path

import pytest

from gradscore.config import load_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_committed_configurations_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GRADSCORE_CIFAR10", "OPENOOD_DATA", "OPENOOD_RESULTS"):
        monkeypatch.setenv(variable, "/data")
    config = load_config(CONFIGS / name)
    assert {entry.name for entry in config.data.ood if not entry.auxiliary} != set()
