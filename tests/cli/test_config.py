from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gradscore.config import load_config
from gradscore_cli.main import app

CONFIG = """
model: {source: "torchvision:resnet18", checkpoint: null, num_classes: 3}
data: {in_dist: {fit: {source: "folder:fit"}, test: {source: "folder:test"}}}
run: run
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return file


def test_show_prints_every_setting(config_file: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(config_file), "--set", "extract.seed=4", "--set", "run=a"])
    assert result.exit_code == 0
    wanted = load_config(config_file, ["extract.seed=4", "run=a"]).model_dump(mode="json")
    assert yaml.safe_load(result.stdout) == wanted


def test_an_unusable_setting(config_file: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(config_file), "--set", "extract.sed=4"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "extract.sed: unknown key; did you mean 'seed'?" in result.stderr


def test_missing_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(tmp_path / "absent.yaml")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "absent.yaml: no such configuration file" in result.stderr
