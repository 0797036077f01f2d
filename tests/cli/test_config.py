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


REFUSED = {
    "mistyped key": (["--set", "extract.sed=4"], "extract.sed: unknown key; did you mean 'seed'?"),
    "value out of range": (
        ["--set", "extract.workers=-1"],
        "extract.workers: wanted greater than or equal to 0, got -1",
    ),
    "unknown name in a list": (["--set", "features.losses=[nope]"], "config.yaml: features.losses.0: no loss 'nope'"),
    "no value": (["--set", "extract.seed"], "override 'extract.seed': wanted key.path=value"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_settings(config_file: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(config_file), *options])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stdout == ""


def test_missing_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(tmp_path / "absent.yaml")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "absent.yaml: no such configuration file" in result.stderr
