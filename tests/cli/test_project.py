"""`gradscore project`: a configuration or run folder to projections, neighbours in them, and what it refuses."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import cli, words
from trusted import built
from wrapped_data import Wrapped

import gradscore
from gradscore.config import Config, dump_config
from gradscore.data import BadSample, collate
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder

OPTIONS = ("--dim", "64", "--trust-code", "--loss", "label")


def whole(found: gradscore.Projections) -> np.ndarray:
    return found.values * found.scale[:, None]


@pytest.fixture(scope="module")
def bank(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Projections of the samples that the meta models are fitted to."""
    folder = tmp_path_factory.mktemp("projected") / "bank"
    found = cli("project", small_run, *OPTIONS, "--out", folder)
    assert found.exit_code == 0, found.output
    return folder


def test_the_command_and_the_function_say_the_same(small_run: Path, tmp_path: Path) -> None:
    config = RunFolder(small_run).config
    (tmp_path / "config.yaml").write_text(dump_config(config))
    found = cli("project", tmp_path / "config.yaml", *OPTIONS, "--out", tmp_path / "p", "--json", "-q")
    assert found.exit_code == 0, found.output
    dataset = open_datasets(config)["in_dist.fit"]
    batch = collate(list(dataset))
    direct = gradscore.project(
        built(config.model),
        (batch.inputs, batch.labels),
        loss="label",
        dim=64,
        parameters=config.features.parameters,
        batch_size=config.extract.batch_size,
    )
    there = gradscore.load_projections(tmp_path / "p")
    assert json.loads(found.stdout)["samples"] == len(dataset)
    assert list(there.sample_ids) == list(dataset.ids)
    assert list(there.content_hashes) == list(batch.content_hashes)
    assert there.labels.tolist() == list(dataset.labels)
    np.testing.assert_array_equal(there.values, direct.values)
    np.testing.assert_array_equal(there.scale, direct.scale)


def test_the_nearest_samples_are_those_of_the_library(small_run: Path, bank: Path, tmp_path: Path) -> None:
    out = tmp_path / "test"
    found = cli(
        "project",
        small_run,
        *OPTIONS,
        "--split",
        "in_dist.test",
        "--nearest",
        bank,
        "--count",
        "3",
        "--by",
        "dot",
        "--out",
        out,
    )
    assert found.exit_code == 0, found.output
    table = pq.read_table(out / "nearest.parquet").to_pandas()
    known, asked = gradscore.load_projections(bank), gradscore.load_projections(out)
    products = whole(asked) @ whole(known).T
    order = np.argsort(-products, axis=1, kind="stable")[:, :3]
    assert table["sample_id"].tolist() == np.repeat(asked.sample_ids, 3).tolist()
    assert table["rank"].tolist() == [1, 2, 3] * len(asked)
    np.testing.assert_allclose(table["similarity"], np.take_along_axis(products, order, axis=1).ravel(), rtol=1e-6)
    places = {name: place for place, name in enumerate(known.sample_ids)}
    assert table["nearest_label"].tolist() == [known.labels[places[name]] for name in table["nearest_sample_id"]]
    nearest = table[table["rank"] == 1]
    alike = int((nearest["label"] == nearest["nearest_label"]).sum())
    said = words(found)
    shown = min(10, len(asked))
    assert f"the nearest of the first {shown} samples; the file has {len(table)} rows" in said
    first = [line.split()[0] for line in found.stdout.splitlines() if line.strip()]
    assert [name for name in first if name in asked.sample_ids][:shown] == list(asked.sample_ids[:shown])
    known = "which the loss looks at"
    assert f"the nearest sample has the same label, {known}, for {alike} of {len(asked)} samples" in said


def test_the_table_calls_classes_by_their_names(small_run: Path, bank: Path, tmp_path: Path) -> None:
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    (tmp_path / "config.yaml").write_text(dump_config(RunFolder(small_run).config))
    named = ("--split", "in_dist.test", "--nearest", bank, "--set", f"data.class_names={names}")
    found = cli("project", tmp_path / "config.yaml", *OPTIONS, *named, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    table = pq.read_table(tmp_path / "out" / "nearest.parquet").to_pandas()
    wanted = [
        [row.sample_id, names[row.label], row.nearest_sample_id, names[row.nearest_label]]
        for row in table[table["rank"] == 1].head(10).itertuples()
    ]
    lines = [line.split()[:4] for line in found.stdout.splitlines()]
    first = lines.index(wanted[0])
    assert lines[first : first + len(wanted)] == wanted


def nearest_in(bank: Path, small_run: Path, out: Path, *options: str) -> tuple[str, Any]:
    found = cli("project", small_run, *OPTIONS, "--nearest", bank, *options, "--out", out)
    assert found.exit_code == 0, found.output
    return words(found), pq.read_table(out / "nearest.parquet").to_pandas()


def test_none_is_its_own_nearest(small_run: Path, bank: Path, tmp_path: Path) -> None:
    said, table = nearest_in(bank, small_run, tmp_path / "fit", "--count", "2")
    count = len(gradscore.load_projections(bank))
    assert f"{count} of {count} samples are in {bank} themselves" in said
    assert not (table["sample_id"] == table["nearest_sample_id"]).any()
    assert len(table) == 2 * count
    alone = gradscore.load_projections(bank).nearest(count=2)
    np.testing.assert_allclose(table["similarity"], alone.similarities.ravel(), rtol=1e-12)


def test_fewer_than_were_asked_for(small_run: Path, bank: Path, tmp_path: Path) -> None:
    said, table = nearest_in(bank, small_run, tmp_path / "test", "--split", "in_dist.test", "--count", "1000")
    count = len(gradscore.load_projections(bank))
    assert "1000 nearest samples were asked for, and" in said
    assert f"has {count}" in said
    assert table["rank"].max() == count


class WithoutFirst(Wrapped):
    """A data set whose first sample does not decode."""

    def __getitem__(self, index: int) -> Any:
        return self.inner[index] if index else BadSample("the first", "does not decode")


def test_samples_that_were_skipped_stay_known(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    def opened(config: Config, **options: Any) -> dict[str, Any]:
        return {name: WithoutFirst(each) for name, each in open_datasets(config, **options).items()}

    monkeypatch.setattr("gradscore.pipeline.extraction.open_datasets", opened)
    config = RunFolder(small_run).config
    config = config.model_copy(update={"extract": config.extract.model_copy(update={"on_error": "skip"})})
    (tmp_path / "config.yaml").write_text(dump_config(config))
    found = cli("project", tmp_path / "config.yaml", *OPTIONS, "--out", tmp_path / "p")
    assert found.exit_code == 0, found.output
    (notice,) = gradscore.load_projections(tmp_path / "p").notices
    assert notice.endswith("was skipped")
    assert notice in words(found)


REFUSALS = {
    "no such split": (["--split", "in_dist.nowhere"], "no split 'in_dist.nowhere'"),
    "a set without labels": (["--split", "OOD"], "has no labels; valid: in_dist.fit, in_dist.test"),
    "settings of a run": (["--set", "extract.seed=3"], "--set changes a configuration"),
    "nothing to be near": (["--nearest", "nowhere"], "give a folder that project() wrote"),
    "a negative seed": (["--seed", "-1"], "seed: wanted 0 or more, got -1"),
    "near to another seed": (["--seed", "1", "--nearest", "BANK"], "differ in seed (1 and 0)"),
}


@pytest.mark.parametrize(("options", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refused_before_anything_is_written(
    small_run: Path, bank: Path, tmp_path: Path, options: Sequence[str], message: str
) -> None:
    ood = next(info.name for info in RunFolder(small_run).splits() if info.kind == "ood")
    given = [{"OOD": ood, "BANK": str(bank)}.get(option, option) for option in options]
    found = cli("project", small_run, *OPTIONS, *given, "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert message in words(found)
    assert not (tmp_path / "out").exists()


OTHERS = {
    "other code": ("net.py", "nn.ReLU", "nn.Tanh", "model.code_sha256 was"),
    "other preprocessing": (
        "config.yaml",
        "mean:\n  - 0.5",
        "mean:\n  - 0.4",
        "preprocessing.mean was [0.5], is now [0.4]",
    ),
    "the same under another path": ("config.yaml", "", "", None),
}


@pytest.mark.parametrize(("name", "old", "new", "message"), OTHERS.values(), ids=OTHERS)
def test_gradients_of_another_network_are_no_neighbours(
    small_run: Path, bank: Path, tmp_path: Path, name: str, old: str, new: str, message: str | None
) -> None:
    """With the same weights."""
    text = dump_config(RunFolder(small_run).config).replace(str(small_run.parent), str(tmp_path))
    (tmp_path / "config.yaml").write_text(text)
    for each in ("net.py", "net.safetensors"):
        shutil.copy(small_run.parent / each, tmp_path / each)
    before = (tmp_path / name).read_text()
    assert old in before
    (tmp_path / name).write_text(before.replace(old, new))
    found = cli("project", tmp_path / "config.yaml", *OPTIONS, "--nearest", bank, "--out", tmp_path / "out")
    if message is None:
        assert found.exit_code == 0, found.output
        return
    assert found.exit_code == 2
    assert f"these projections differ in the network ({message}" in words(found)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [("--count", "3"), ("--by", "dot")])
def test_options_of_nearest_alone_are_refused(small_run: Path, tmp_path: Path, option: Sequence[str]) -> None:
    found = cli("project", small_run, *OPTIONS, *option, "--out", tmp_path / "p")
    assert found.exit_code == 2
    assert f"{option[0]} is for --nearest DIR" in words(found)
    assert not (tmp_path / "p").exists()


def test_gradients_of_two_losses_are_told(small_run: Path, bank: Path, tmp_path: Path) -> None:
    """As labels of the samples to look in may be known, and of the others not."""
    options = ("--dim", "64", "--trust-code", "--split", "in_dist.test", "--nearest", bank)
    alike = cli("project", small_run, *options, "--loss", "label", "--out", tmp_path / "a", "--json")
    other = cli("project", small_run, *options, "--loss", "pseudo_label", "--out", tmp_path / "b", "--json")
    assert (alike.exit_code, other.exit_code) == (0, 0)
    said = f"the gradients of {bank} are of the loss 'label', these of 'pseudo_label'"
    assert not any(said in each for each in json.loads(alike.stdout)["notices"])
    assert any(said in each for each in json.loads(other.stdout)["notices"])
