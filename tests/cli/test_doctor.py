import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import cli

NET = """
import torch
from torch import nn

def linear():
    # the digit whose mean image is nearest
    from sklearn.datasets import load_digits
    digits = load_digits()
    means = torch.stack([torch.tensor(digits.images[digits.target == k]).flatten(1).mean(0) for k in range(10)]) / 255
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        net[1].weight.copy_(500 * means)
        net[1].bias.copy_(-250 * means.square().sum(1))
    return net

def random():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def log_softmax():
    return nn.Sequential(*linear(), nn.LogSoftmax(1))
"""
CONFIG = """
model: {source: "python:net.py:linear", checkpoint: null, num_classes: 10}
data:
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 12}}
    test: {source: "sklearn:digits", select: {start: 20, stop: 90}}
extract: {device: cpu}
run: run
"""


def doctor(config: Path, *options: str):
    return cli("doctor", config, "--trust-code", *options)


def test_fit_to_be_scored(config_file: Path, tmp_path: Path) -> None:
    result = doctor(config_file, "--coverage")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("1.weight: rule\n1.bias: rule\n")
    told = (
        "note: checkpoint: model.checkpoint is null: the weights come from the model's own code"
        " (random with seed 0, unless it loads some)\n"
    )
    assert told in result.stdout
    assert "on 70 inputs" in result.stdout
    assert "note: coverage: 2 parameters: 2 by rule" in result.stdout
    assert result.stdout.endswith("usable\n")
    assert not (tmp_path / "run").exists()


def test_names_of_classes_are_told_in_their_order(config_file: Path) -> None:
    names = "zero,one,two,three,four,five,six,seven,eight,nine"
    told = "note: classes: the outputs are in this order: zero, one, two, three, four, five, six, seven, eight, nine\n"
    assert told in doctor(config_file, "--set", f"data.class_names=[{names}]").stdout


def test_one_set_to_fit_on_and_to_report_is_said(config_file: Path) -> None:
    said = "warning: splits: in_dist.fit and in_dist.test are the same samples"
    assert said not in doctor(config_file).stdout
    assert (
        said in doctor(config_file, "--set", "data.in_dist.test={source: 'sklearn:digits', select: {stop: 12}}").stdout
    )


MEANINGLESS = {
    "accuracy": ("model.declared_accuracy=1.0", "problem: accuracy: 0."),
    "random weights": (
        "model.source=python:net.py:random",
        "problem: accuracy: 0.",
    ),
}


@pytest.mark.parametrize(("setting", "expected"), MEANINGLESS.values(), ids=MEANINGLESS)
def test_meaningless(config_file: Path, setting: str, expected: str) -> None:
    result = doctor(config_file, "--set", setting)
    assert result.exit_code == 2
    assert expected in result.stdout
    assert "scores of this model would be meaningless" in result.stderr
    assert "usable" not in result.stdout


UNUSABLE = {
    "pattern": ("features.parameters=[conv*]", "error: features.parameters.0: 'conv*' matches no parameter"),
    "data": ("data.in_dist.test.source=folder:nowhere", "error: "),
}


@pytest.mark.parametrize(("setting", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_input(config_file: Path, setting: str, expected: str) -> None:
    result = doctor(config_file, "--set", setting)
    assert result.exit_code == 2
    assert result.stderr.startswith(expected)


def test_unreadable_samples(config_file: Path, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8), number * 60).save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"no image")
    setting = "data.in_dist.test={source: 'folder:images', label_map: {a: 0, b: 1}}"
    result = doctor(config_file, "--set", setting)
    assert "problem: samples of in_dist.test: 1 of 6 cannot be used: a/1.png" in result.stdout
    assert "repair or remove them, or set extract.on_error=skip" in result.stdout
    assert result.exit_code == 2
    assert result.stderr == "some samples cannot be scored: see the problems above\n"  # those of others mean something
    skipped = doctor(
        config_file,
        "--set",
        "data.in_dist.test={source: 'folder:images', label_map: {a: 0, b: 1}}",
        "--set",
        "extract.on_error=skip",
    )
    assert "warning: samples of in_dist.test: 1 of 6 cannot be used: a/1.png" in skipped.stdout
    assert "repair or remove them, or they are left out (extract.on_error is skip)" in skipped.stdout
    assert skipped.exit_code == 0


def gaps(folder: Path, *, date: bool = False) -> Path:
    """A configuration of two tables of numbers with gaps; with `date`, and text beside them."""
    for name in ("fit", "test"):
        rows = [f"{row}.5,{'' if row in (3, 4, 8) else 2},{'' if row == 4 else 1},{'ab'[row % 2]}" for row in range(40)]
        lines = ["age,income,visits,churn", *rows]
        lines = [f"{'since' if line[0] == 'a' else '2021-01-01'},{line}" if date else line for line in lines]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(3, 2)\n")
    (folder / "gaps.yaml").write_text("""
model: {source: "python:net.py:build", checkpoint: null, num_classes: 2}
data:
  in_dist:
    fit: {source: "csv:fit.csv", arguments: {labels: churn}}
    test: {source: "csv:test.csv", arguments: {labels: churn}}
extract: {device: cpu}
run: run
""")
    return folder / "gaps.yaml"


def test_rows_without_a_value_are_one_line_a_set(tmp_path: Path) -> None:
    config = gaps(tmp_path)
    said = doctor(config).stdout
    begin = (
        "samples of in_dist.test: 3 of 40 rows have missing values in income (3), visits (1): fill them as in training "
    )
    assert (
        f"problem: {begin}(a function of your own: python:FILE:NAME), or extract.on_error=skip leaves them out" in said
    )
    assert said.count("have missing values in") == 2
    skip = ("--trust-code", "-q", "--set", "extract.on_error=skip")
    extracted = cli("extract", config, *skip).stdout
    rows = "6 of 80 rows have missing values in income (6), visits (2): 3 of in_dist.fit, 3 of in_dist.test; "
    assert f"warning: skipped: {rows}fill them as in training" in extracted
    assert extracted.count("skipped") == 1
    audited = cli("audit", config, "--split", "in_dist.fit", *skip[:1], *skip[2:]).output
    assert audited.count("3 of 40 rows have missing values in income (3), visits (1), and were skipped; fill them") == 1
    assert "9 was skipped" not in audited


def test_text_beside_numbers_and_classes_is_to_be_left_out_or_made_a_number(tmp_path: Path) -> None:
    said = doctor(gaps(tmp_path, date=True)).stderr
    assert re.search(r"column 'since' holds text, which is no number \('[-0-9]+' in row \d+\)", said)
    assert "leave the column out by inputs: [age, income, visits] in arguments, or encode it as in training" in said
    assert "holds the classes" not in said


PLACES = """
import torch
from torch import nn

def sorter():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.zero_()
        for place, name in enumerate([2, 1, 3, 4, 0]):
            net[1].weight[name, place] = 9.0
    return net
"""
RELABELLED = {
    "no label_map": ([0, 1, 2, 3, 4], None),
    "a wrong label_map of other labels": ([10, 20, 30, 40, 50], {10: 0, 20: 1, 30: 2, 40: 3, 50: 4}),
    "a label_map in the wrong direction": ([0, 1, 2, 3, 4], {2: 0, 1: 1, 3: 2, 4: 3, 0: 4}),
    "an unseen label": ([0, 1, 2, 3], None),
}


@pytest.mark.parametrize(("names", "label_map"), RELABELLED.values(), ids=RELABELLED)
def test_the_advised_label_map_works_as_it_is_printed(tmp_path: Path, names: list[int], label_map: dict | None) -> None:
    """Images show their class by the place of a bright pixel; the network calls them by other numbers."""
    (tmp_path / "net.py").write_text(PLACES)
    shown = np.arange(100) % len(names)
    images = np.zeros((100, 8, 8), dtype=np.uint8)
    images[np.arange(100), 0, shown] = 255
    np.savez(tmp_path / "data.npz", images=images, labels=np.array(names)[shown])
    (tmp_path / "config.yaml").write_text(
        'model: {source: "python:net.py:sorter", checkpoint: null, num_classes: 5, declared_accuracy: 1.0}\n'
        "data: {in_dist: {fit: {source: 'npz:data.npz'}, test: {source: 'npz:data.npz'}}}\n"
        "extract: {device: cpu}\nrun: run\n"
    )

    def with_map(pairs: str) -> list[str]:
        return [f"--set=data.in_dist.{name}.label_map={pairs}" for name in ("fit", "test")]

    before = doctor(tmp_path / "config.yaml", *with_map("null" if label_map is None else str(label_map)))
    (advised,) = re.findall(r"set label_map to (\{[^}]+\})", before.stdout)
    assert "data.in_dist.fit, data.in_dist.test" in before.stdout
    after = doctor(tmp_path / "config.yaml", *with_map(advised))
    assert "note: accuracy: 1.000 on 100 inputs, declared is 1.000" in after.stdout, after.stdout + after.stderr


def test_a_prefix_of_the_checkpoint_is_said(config_file: Path, tmp_path: Path) -> None:
    weights = {"net.1.weight": torch.ones(10, 64), "net.1.bias": torch.zeros(10)}
    torch.save(weights, tmp_path / "weights.pt")
    result = doctor(config_file, "--set", "model.checkpoint=weights.pt")
    assert "warning: checkpoint: all names in checkpoint" in result.stdout, result.stdout + result.stderr
    assert "begin with 'net.', which was taken off" in result.stdout


def test_classes_without_samples_are_said(config_file: Path) -> None:
    found = doctor(
        config_file,
        "--set",
        "data.in_dist.fit.select={classes: [0, 1]}",
        "--set",
        "data.in_dist.test.select={classes: [2, 3, 4, 5, 6, 7, 8, 9]}",
    ).stdout
    assert "warning: classes: in_dist.fit and in_dist.test have none in common" in found
    assert "warning: classes: in_dist.test has no sample of 2 of 10: 0, 1\n" in found
    assert "classes" not in doctor(config_file).stdout


def test_samples_without_a_label_are_counted(config_file: Path, tmp_path: Path) -> None:
    images, labels = np.zeros((12, 8, 8), dtype=np.uint8), np.arange(12) % 10
    np.savez(tmp_path / "some.npz", images=images, labels=np.where(np.arange(12) < 5, -1, labels))
    np.savez(tmp_path / "none.npz", images=images, labels=np.full(12, -1))
    sets = ["fit.source=npz:some.npz", "calibration={source: 'npz:none.npz'}", "bank={source: 'npz:some.npz'}"]
    found = doctor(config_file, *(part for each in sets for part in ("--set", f"data.in_dist.{each}"))).stdout
    said = "warning: labels: samples without a label say nothing of wrong predictions: 5 of 12 of in_dist.fit; give"
    assert said in found
    assert "without a label" not in doctor(config_file).stdout


@pytest.mark.parametrize(("net", "is_said"), [("linear", False), ("log_softmax", True)])
def test_a_bank_that_nothing_is_compared_with_is_said(config_file: Path, net: str, is_said: bool) -> None:
    bank = ("--set", "data.in_dist.bank={source: 'sklearn:digits', select: {start: 100, stop: 120}}")
    found = doctor(config_file, "--set", f"model.source=python:net.py:{net}", *bank).stdout
    assert ("warning: bank: the bank was left out: " in found) == is_said
    assert "warning: bank" not in doctor(config_file, "--set", "model.source=python:net.py:log_softmax").stdout


def test_quiet_says_no_notes(config_file: Path) -> None:
    assert doctor(config_file, "-q").stdout == "usable\n"
