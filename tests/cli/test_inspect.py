import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import cli
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

from gradscore.config import load_config
from gradscore.errors import OutputError
from gradscore.inspect import inspect_config
from gradscore.models import trusting_code

NET = """
import torch
from torch import nn


def net(dead=False, growing=False, ill=False):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    with torch.no_grad():
        if dead:
            model[0].bias.fill_(-100.0)
        if growing:
            model[3].weight.mul_(1e7)
        if ill:
            model[3].weight[2, 5] = float("nan")
    return model


def by_class():
    last = nn.Linear(24, 10)
    first = nn.Linear(64, 24)
    with torch.no_grad():
        inner = [8 * row + column for row in range(1, 7) for column in range(2, 6)]
        first.weight.copy_(torch.eye(64)[inner])
        first.bias.fill_(-0.5)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.wave = nn.Linear(64, 10), nn.Parameter(torch.full((10,), 3 + 4j))

    def forward(self, x):
        return (self.linear(x.flatten(1)) * self.wave).real


def spectral():
    return Spectral()


class Loud(nn.Module):
    def __init__(self, on_digits):
        super().__init__()
        self.linear, self.on_digits = nn.Linear(64, 10), on_digits

    def forward(self, x):
        is_digit = x[:, 0, :1, 0] == -1
        return self.linear(x.flatten(1)) * (1 + 1e5 * (is_digit == self.on_digits))


def nothing_to_learn():
    return nn.Sequential(nn.Flatten(), nn.AvgPool1d(6))


def coupled():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))
"""
CONFIG = """
model: {source: "python:net.py:net", checkpoint: null, num_classes: 10}
preprocessing: {mean: [0.5], std: [0.5]}
data:
  auxiliary: []
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 20}}
    test: {source: "sklearn:digits", select: {start: 20, stop: 90}}
  ood:
    - {name: noise, source: "synthetic:gaussian_noise", select: {stop: 12}}
    - {name: mixup, source: "synthetic:mixup", auxiliary: true}
extract: {device: cpu}
run: runs/run
"""
FAST = ("--samples", "12", "--quantities", "gradient_activation,gradient_geometry,output_gradient_geometry")


def inspect(*arguments: object):
    return cli("inspect", *arguments)


def test_a_mistyped_choice_is_told_with_those_there_are() -> None:
    said = " ".join(inspect("run", "--by", "colour").stderr.replace("│", " ").split())
    assert "Invalid value for '--by': 'colour' is not one of 'split', 'correct', 'class'." in said


def test_everything_about_a_configuration(config_file: Path, tmp_path: Path) -> None:
    result = inspect(config_file, "--trust-code", "--samples", 12)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("nothing stands out\n")
    assert (
        "note: model.checkpoint is null: the weights come from the model's own code"
        " (random with seed 0, unless it loads some)" in result.stdout
    )
    folder = tmp_path / "runs" / "inspect"
    figures = pd.read_parquet(folder / "figures.parquet")
    assert figures.columns.tolist() == ["group", "quantity", "measure", "layer", "statistic", "value"]
    assert set(figures["group"]) == {"in_dist.test", "noise"}
    assert figures["quantity"].nunique() == 9
    bins = pd.read_parquet(folder / "histograms.parquet").groupby(["group", "layer"])["count"].sum()
    assert bins.to_dict() == {
        (group, layer): 12 * entries
        for group in ("in_dist.test", "noise")
        for layer, entries in {"0.weight": 36, "0.bias": 4, "3.weight": 360, "3.bias": 10}.items()
    }
    assert pd.read_parquet(folder / "histograms_2d.parquet")["count"].sum() == 2 * 12 * 410


def test_findings_are_about_in_distribution_samples(config_file: Path) -> None:
    given = (config_file, "--trust-code", *FAST, "--set", "model.source=python:net.py:Loud", "--set")
    assert inspect(*given, "model.arguments={on_digits: false}").stdout.startswith("nothing stands out\n")
    assert "for 12 of 12 samples" in inspect(*given, "model.arguments={on_digits: true}").stdout


def test_page_holds_everything_it_needs(config_file: Path, tmp_path: Path, drawn: dict[str, Figure]) -> None:
    inspect(config_file, "--trust-code", *FAST, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Nothing stands out" in page
    assert re.findall(r"<(?:link|iframe|script)\b", page) == []
    assert {source[:26] for source in re.findall(r'<img[^>]* src="([^"]*)"', page)} == {"data:image/svg+xml;base64,"}
    assert set(drawn) == set(re.findall(r'<figure[^>]* id="([^"]*)"', page))
    names = [line.get_label() for line in drawn["parameter-gradient-norm"].axes[0].lines]
    assert names == ["in_dist.test", "noise"]


def cannot_be_written(*_: object, **__: object) -> None:
    raise OutputError("report.html: cannot be written")


def test_an_inspection_that_fails_halfway_leaves_nothing_of_an_earlier_one(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, folder = [config_file, "--trust-code", "--samples", 12, "--out", tmp_path / "page"], tmp_path / "page"
    assert inspect(*given, "--quantities", "mean_gsnr,output_norm").exit_code == 0
    monkeypatch.setattr("gradscore.inspect.inspection_report.write_beside", cannot_be_written)
    result = inspect(*given, "--quantities", "output_norm")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert {path.name for path in folder.iterdir()} == {"figures.parquet"}


def test_a_folder_that_cannot_be_written_keeps_an_earlier_inspection(config_file: Path, tmp_path: Path) -> None:
    given, folder = [config_file, "--trust-code", *FAST, "--out", tmp_path / "page"], tmp_path / "page"
    assert inspect(*given).exit_code == 0
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    before = (folder / "figures.parquet").stat().st_mtime_ns
    result = inspect(*given)
    assert result.exit_code == 2
    assert "wanted a file to write to, got a folder" in result.stderr
    assert before == (folder / "figures.parquet").stat().st_mtime_ns


def test_where_it_cannot_write_is_found_before_anything_is_computed(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradscore.inspect.inspect_config", None)
    (tmp_path / "file").write_text("mine")
    result = inspect(config_file, "--trust-code", *FAST, "--out", tmp_path / "file")
    assert (result.exit_code, (tmp_path / "file").read_text()) == (2, "mine")
    assert "file is a file, wanted a folder; give another path" in " ".join(result.stderr.split())


def test_maps_of_the_signal_to_noise_ratio(config_file: Path, tmp_path: Path, drawn: dict[str, Figure]) -> None:
    inspect(config_file, "--trust-code", "--samples", 12, "--quantities", "mean_gsnr", "--out", tmp_path / "page")
    with trusting_code():
        found = inspect_config(load_config(config_file), quantities=["mean_gsnr"], samples=12)
    largest = []
    for group, (quantity,) in found.groups.items():
        axes = drawn[f"gsnr-map-{group}"].axes[0]
        shares = 10 ** axes.images[0].get_array()
        names = [label.get_text().split()[0] for label in axes.get_yticklabels()]
        assert names == ["0.weight", "0.bias", "3.weight", "3.bias"]
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        edges = np.linspace(*axes.images[0].get_extent()[:2], shares.shape[1] + 1)
        middle = (shares[2] * (edges[:-1] + edges[1:]) / 2).sum()
        entries = quantity.ratios("3.weight").numpy()
        assert middle == pytest.approx(np.log10(entries.clip(10 ** edges[0])).mean(), abs=0.1)
        largest += [quantity.ratios(layer).max().item() for layer in quantity.moments]
    assert edges[-1] == pytest.approx(np.log10(max(largest)), abs=0.15)


def test_units_that_are_silent_for_a_class_are_not_dead(config_file: Path, tmp_path: Path) -> None:
    result = inspect(
        config_file, "--trust-code", "--by", "class", "--set", "model.source=python:net.py:by_class", *FAST[:1], 70,
        "--quantities", "gradient_activation", "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    figures = pd.read_parquet(tmp_path / "out" / "figures.parquet").set_index(
        ["group", "measure", "layer", "statistic"]
    )
    silent = figures.xs(("never active", "1.weight", "share"), level=[1, 2, 3])["value"]
    assert silent.max() >= 0.25
    assert "dead" not in result.stdout.replace("dead units and layers", "")


def test_classes_are_called_by_their_names(config_file: Path, tmp_path: Path, drawn: dict[str, Figure]) -> None:
    names = [*map(str, range(8)), "eight or nine", "eight-or-nine"]
    result = inspect(
        config_file, "--trust-code", "--by", "class", "--set", f"data.class_names={names}", *FAST[:1], 70,
        "--quantities", "mean_gsnr", "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    groups = [f"class {name}" for name in names]
    counts = np.bincount(load_digits().target[20:90])
    said = "\n".join(f"{group}: {count} samples" for group, count in zip(groups, counts, strict=True))
    assert said in result.stdout
    assert pd.read_parquet(tmp_path / "out" / "figures.parquet")["group"].unique().tolist() == groups
    assert [line.get_label() for line in drawn["gsnr"].axes[0].lines] == groups
    images = re.findall(r'<img[^>]* src="([^"]*)"', (tmp_path / "out" / "report.html").read_text())
    assert (len(images), len(set(images))) == (11, 11)


def test_run_folder(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_run.parent)  # the model's code lies there
    run = shutil.copytree(small_run, tmp_path / "run")
    result = inspect(run, "--trust-code", "--by", "correct", *FAST)
    assert result.exit_code == 0, result.output
    groups = set(pd.read_parquet(run / "inspect" / "figures.parquet")["group"])
    assert groups == {"right", "wrong", "noise"}


def test_a_copy_of_a_run_says_whose_model_and_data_are_used(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_run.parent)
    said = "and the model and data that its configuration names are used"
    run = shutil.copytree(small_run, tmp_path / "run")
    for command, options in (("audit", ()), ("project", ("--dim", "64")), ("inspect", FAST)):
        out = ("--trust-code", "--quiet", "--out", tmp_path / command, *options)
        copied, own = cli(command, run, *out), cli(command, small_run, *out)
        assert (copied.exit_code, own.exit_code) == (0, 0), copied.output
        assert f"warning: {run}: this run was made in {small_run.resolve()}, {said}" in " ".join(copied.stderr.split())
        assert said not in own.output


SICK = {
    "dead layer": (
        "model.arguments={dead: true}",
        "0 (Conv2d, layer 1 of 4) is dead: no gradient reaches any of its 4",
    ),
    "exploding gradients": ("model.arguments={growing: true}", "gradients explode on their way back: "),
}


@pytest.mark.parametrize(("setting", "expected"), SICK.values(), ids=SICK)
def test_what_is_not_well_is_named(config_file: Path, tmp_path: Path, setting: str, expected: str) -> None:
    result = inspect(
        config_file, "--trust-code", "--set", setting, *FAST, "--loss", "uniform", "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    assert expected in result.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("Not well") < page.index(expected) < page.index("<nav>")


def test_complex_weights(config_file: Path, tmp_path: Path) -> None:
    given = [config_file, "--trust-code", "--samples", 12, "--set", "model.source=python:net.py:spectral"]
    refused = inspect(*given)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: wave is complex")
    assert "leave out histograms and the signal-to-noise ratio" in refused.stderr
    result = inspect(*given, "--quantities", "gradient_geometry,parameter_norm", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    figures = pd.read_parquet(tmp_path / "out" / "figures.parquet").set_index(["measure", "statistic"])
    assert figures.loc[("wave norm", "median"), "value"].tolist() == pytest.approx([5.0, 5.0])


UNUSABLE = {
    "quantity": (["--quantities", "grad_hist"], "error: quantities: no quantity 'grad_hist'; did you mean"),
    "no parameters": (["--set", "model.source=python:net.py:nothing_to_learn"], "error: the model has no parameters"),
    "coupled samples": (["--set", "model.source=python:net.py:coupled"], "error: "),
    "code that is not trusted": ([], "error: model.source"),
}


@pytest.mark.parametrize(("options", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_input(config_file: Path, options: list[str], expected: str) -> None:
    trusted = [] if not options else ["--trust-code"]
    result = inspect(config_file, *trusted, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(expected)
    assert len(result.stderr.splitlines()) == 1


def test_images_of_two_sizes(config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for place in range(12):
        Image.new("L", (8, 8 + place // 11), 20 * place).save(tmp_path / "images" / f"{place}.png")
    far = "data.ood=[{name: far, source: 'folder:images'}]"
    result = inspect(config_file, "--trust-code", *FAST, "--batch-size", 1, "--set", far)
    assert result.exit_code == 2
    assert "has shape (1, 9, 8)" in result.stderr
