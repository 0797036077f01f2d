"""`run` does what extract, fit-meta and evaluate do one after the other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import cli
from safetensors.torch import load_file

from gradscore.baselines import BASELINES
from gradscore.columns import feature_columns
from gradscore.evaluation import ScoreFile
from gradscore.store import RunFolder

SAME = ("evaluation/metrics.json", "evaluation/scores.parquet", "features/in_dist.test/part-00000.parquet")


def run(folder: Path, out: Path, *options: str):
    return cli("run", folder / "config.yaml", "--out", out, "--trust-code", *options)


def test_gives_what_the_three_give(small_run: Path, tmp_path: Path) -> None:
    result = run(small_run, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert {name: (tmp_path / "run" / name).read_bytes() == (small_run / name).read_bytes() for name in SAME} == (
        dict.fromkeys(SAME, True)
    )
    said = cli("evaluate", small_run).stdout.splitlines()
    assert len(result.stdout.splitlines()) == len(said), (
        "what extract and fit-meta say by themselves would stand before"
    )


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


def test_goes_on_after_an_interruption(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("gradscore.evaluation.fit_run", interrupt)
        assert run(small_run, tmp_path / "run").exit_code == 130
    result = run(small_run, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "this run is already complete: nothing to compute" in result.stderr
    assert (tmp_path / "run" / SAME[0]).read_bytes() == (small_run / SAME[0]).read_bytes()


def test_settings_and_options(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored with the tables, before anything is fitted."""
    options = ("--set", "features.statistics=[l1]", "--batch-size", "25")
    monkeypatch.setattr("gradscore.evaluation.fit_run", interrupt)
    assert run(small_run, tmp_path / "run", *options).exit_code == 130
    config = RunFolder(tmp_path / "run").config
    assert (config.features.statistics, config.extract.batch_size) == (["l1"], 25)


def test_without_gradients_all_else_stays(small_run: Path, tmp_path: Path) -> None:
    """What the answer advises where gradients add nothing: `features.losses: []`."""
    result = run(small_run, tmp_path / "run", "--set", "features.losses=[]")
    assert result.exit_code == 0, result.output
    assert "Gradients" not in result.stdout
    full, bare = (RunFolder(folder) for folder in (small_run, tmp_path / "run"))
    assert (full.share_of_gradients or 0) > 0
    assert bare.share_of_gradients in (None, 0)
    for split in ("in_dist.test", "in_dist.fit"):
        one, other = full.read(split), bare.read(split)
        assert feature_columns(other.columns) == []
        np.testing.assert_array_equal(one[list(other.columns)].to_numpy(), other.to_numpy())
    scores = [ScoreFile(folder / "evaluation").table() for folder in (small_run, tmp_path / "run")]
    names = [name for name in BASELINES if name in scores[0].columns]
    np.testing.assert_array_equal(*(table[names].to_numpy() for table in scores))


def test_what_looks_at_gradients_needs_a_loss(small_run: Path, tmp_path: Path) -> None:
    features = ("losses=[]", "augmentations=[mirror]", "average_gradients=[mirror]")
    options = [part for each in features for part in ("--set", f"features.{each}")]
    result = run(small_run, tmp_path / "run", *options)
    assert result.exit_code == 2
    assert "features.average_gradients needs gradients" in result.stderr


def prefixed(weights: dict) -> dict:
    return {f"module.{name}": each for name, each in weights.items()}


CHECKPOINTS = {
    "an average beside": (lambda of: {"model": of, "ema": of}, "holds several state dicts: 'model' was taken, 'ema'"),
    "a prefix": (prefixed, "begin with 'module.', which was taken off to fit the model"),
    "one of two by a prefix": (lambda of: {**prefixed(of), "loss.weight": torch.ones(4)}, "1 other was left out"),
}


@pytest.mark.parametrize(("make", "message"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_says_what_of_the_checkpoint_was_taken(small_run: Path, tmp_path: Path, make, message: str) -> None:
    torch.save(make(load_file(small_run.parent / "net.safetensors")), tmp_path / "net.pt")
    options = ["--set", f"model.checkpoint={tmp_path / 'net.pt'}", "--set", "features.losses=[]"]
    options += ["--set", "model.prefix=module."] if "left out" in message else []
    result = run(small_run, tmp_path / "run", *options)
    assert result.exit_code in (0, 3), result.output
    assert message in " ".join(result.stderr.split())
    assert any(message in each for each in json.loads(cli("evaluate", tmp_path / "run", "--json").stdout)["notices"])
