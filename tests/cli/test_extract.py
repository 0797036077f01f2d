import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import cli
from PIL import Image

from gradscore.models import is_code_trusted
from gradscore.store import RunFolder


def extract(config: Path, *options: str):
    return cli("extract", config, "--trust-code", "--device", "cpu", *options)


def test_summary(config_file: Path, tmp_path: Path) -> None:
    result = extract(config_file)
    assert result.exit_code == 0, result.stderr
    for wanted in ("in_dist.fit", "in_dist.test", "ood.other", "accuracy", "samples/s"):
        assert wanted in result.stdout
    assert "24 features per sample, computed on cpu" in result.stdout
    assert "note: model.checkpoint is null: the weights come from the model's own code" in result.stdout
    right = [RunFolder(tmp_path / "run").read(split)["correct"] for split in ("in_dist.fit", "in_dist.test")]
    assert f"accuracy over all labelled samples: {pd.concat(right).mean():.4f}" in result.stdout
    assert f"run folder: {tmp_path / 'run'}" in result.stdout
    assert len(RunFolder(tmp_path / "run").read("in_dist.fit")) == 12


def test_one_broken_file_is_warned_of_once(config_file: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for place in range(12):
        Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save(tmp_path / "images" / f"{place:02}.png")
    for name in ("03.png", "07.png"):
        (tmp_path / "images" / name).write_bytes(b"no image")
    again = [f"{{name: {name}, source: 'folder:images'}}" for name in ("first", "second", "third")]
    entry = '    - {name: other, source: "sklearn:digits", select: {start: 40, stop: 45}}'
    config_file.write_text(config_file.read_text().replace(entry, "\n".join(f"    - {each}" for each in again)))
    result = extract(config_file, "--set", "extract.on_error=skip", "--set", "preprocessing.channels=1", "-q")
    assert result.exit_code == 0, result.stderr
    warned = [line for line in result.stdout.splitlines() if line.startswith("warning: skipped")]
    begins = [f"warning: skipped: ood.first, {name}: " for name in ("03.png", "07.png")]
    assert [line[: len(begin)] for line, begin in zip(warned, begins, strict=True)] == begins
    assert all(line.endswith("; 2 more samples of ood.second, ood.third for the same reason") for line in warned)


def test_samples_without_a_label_are_counted(config_file: Path, tmp_path: Path) -> None:
    labels = np.where(np.arange(12) < 5, -1, np.arange(12) % 10)
    np.savez(tmp_path / "some.npz", images=np.zeros((12, 8, 8), dtype=np.uint8), labels=labels)
    result = cli("extract", config_file, "--set", "data.in_dist.fit={source: 'npz:some.npz'}", "--trust-code")
    said = (
        "warning: samples without a label say nothing of wrong predictions: 5 of 12 of in_dist.fit; give their labels"
    )
    assert said in result.stdout, result.output


def test_options_end_up_in_the_config_of_the_run(config_file: Path, tmp_path: Path) -> None:
    options = [
        "--out",
        str(tmp_path / "other"),
        "--batch-size",
        "5",
        "--workers",
        "1",
        "--set",
        "features.losses=[entropy]",
    ]
    assert extract(config_file, *options).exit_code == 0
    config = RunFolder(tmp_path / "other").config
    assert (config.extract.batch_size, config.extract.workers, config.extract.device) == (5, 1, "cpu")
    assert config.features.losses == ["entropy"]
    assert not (tmp_path / "run").exists()


def test_trust_ends_with_a_command_that_cannot_begin(config_file: Path) -> None:
    result = cli("extract", config_file, "--trust-code", "--batch-size", "many")
    assert (result.exit_code, is_code_trusted()) == (2, False)


def test_interruption_says_how_to_go_on(config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradscore.pipeline.extract", interrupt)
    result = extract(config_file)
    assert result.exit_code == 130
    assert f"interrupted; the same command continues the run in {tmp_path / 'run'}" in result.stderr


EXITING = {
    "importing the model": ("sys.exit(0)", "", "", "net.py failed: SystemExit: 0"),
    "making the model": ("", "    sys.exit()", "", "net.py:exiting with arguments {} failed: SystemExit: "),
    "forward": ("", "", "sys.exit(0)", "the code of the model ends the program in forward (SystemExit: 0)"),
}


@pytest.mark.parametrize(("top", "factory", "forward", "message"), EXITING.values(), ids=EXITING)
def test_a_model_that_exits_is_an_error(config_file, monkeypatch, top, factory, forward, message) -> None:
    monkeypatch.chdir(config_file.parent)
    Path("net.py").write_text(f"""
import sys

from torch import nn

{top}


class Net(nn.Linear):
    def forward(self, images):
        {forward or "pass"}
        return super().forward(images.flatten(1))


def exiting():
{factory}
    return Net(64, 10)
""")
    result = extract(config_file, "--set", "model.source=python:net.py:exiting")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")
    assert not Path("run").exists()


AUGMENTATIONS = {
    "importing": ("raise SystemExit(0)", "augmentations.py failed: SystemExit: 0"),
    "calling": (
        "def mine(images):\n    raise SystemExit(0)",
        "features.augmentations: 'python:augmentations.py:mine' fails for samples of shape (1, 8, 8): SystemExit: 0",
    ),
}


@pytest.mark.parametrize(("code", "message"), AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_an_augmentation_that_exits_is_an_error(config_file, monkeypatch, code: str, message: str) -> None:
    monkeypatch.chdir(config_file.parent)
    Path("augmentations.py").write_text(code)
    result = extract(config_file, "--set", "features.augmentations=[python:augmentations.py:mine]")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")


def test_a_share_without_a_shard_is_named(config_file: Path) -> None:
    result = extract(config_file, "--share", "3/4")
    assert result.exit_code == 0, result.stderr
    assert "share 3/4 has no shard: there are more shares than shards" in result.stdout


def test_names_of_files_that_are_no_utf_8(config_file: Path, tmp_path: Path) -> None:
    for place in range(6):
        folder = tmp_path / "images" / os.fsdecode((b"cat", b"\xff")[place % 2])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(place).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / os.fsdecode(b"%d\xfe.png" % place))
    (tmp_path / "images" / "cat" / os.fsdecode(b"\xfd.png")).write_bytes(b"no image")
    set_of = 'fit: {source: "folder:images", label_map: {cat: 1, "\\\\udcff": 2}}'
    config_file.write_text(
        config_file.read_text().replace('fit: {source: "sklearn:digits", select: {stop: 12}}', set_of)
    )
    result = extract(config_file, "--set", "extract.on_error=skip")
    assert result.exit_code == 0, result.stderr
    assert r"skipped: in_dist.fit, cat/\udcfd.png: " in result.stdout
    table = pd.concat(map(pd.read_parquet, sorted((tmp_path / "run" / "features" / "in_dist.fit").glob("*.parquet"))))
    assert table["sample_id"].tolist() == [
        *(rf"cat/{k}\udcfe.png" for k in (0, 2, 4)),
        *(rf"\udcff/{k}\udcfe.png" for k in (1, 3, 5)),
    ]
    assert table["label"].tolist() == [1, 1, 1, 2, 2, 2]
