"""Extraction end to end on a small model: values against autograd, interruption, refusal, bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import net_configs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from net_configs import digits, net_config
from torch import nn
from trusted import built

from gradscore.columns import META_COLUMNS, feature_columns, logit_columns
from gradscore.config import Config, dump_config
from gradscore.data import BadSample
from gradscore.errors import ConfigError, DataError, GradscoreError, ModelError, StoreError
from gradscore.pipeline import extract, open_datasets
from gradscore.store import RunFolder, Skipped, verify_run

NET = f"""{net_configs.NET}

def overflowing():
    model = net()
    model[3].weight.data *= 1e38
    model[0].weight.data *= 1e38
    return model
"""

SAMPLES = {"in_dist.fit": 21, "in_dist.test": 10, "ood.other": 9}


def make_config(folder: Path, *, extract: dict | None = None, features: dict | None = None, **changes: Any) -> Config:
    return net_config(
        folder,
        NET,
        in_dist={"fit": digits(0, 21), "test": digits(30, 40)},
        ood=[digits(50, 59, name="other")],
        extract={"batch_size": 4, "part_size": 6, **(extract or {})},
        features={"penultimate": False, **(features or {})},
        **changes,
    )


def run(config: Config, **options):
    return extract(config, trust_code=True, **options)


def part_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    run(make_config(folder), out=folder / "whole")
    return folder / "whole"


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """An uninterrupted run."""
    return shutil.copytree(made, tmp_path / "whole")


LOSS_VALUES = {
    "pseudo_label": lambda logits: F.cross_entropy(logits, logits.argmax(1)),
    "uniform": lambda logits: -logits.log_softmax(1).mean(),
    "entropy": lambda logits: -(logits.softmax(1) * logits.log_softmax(1)).sum(),
}
STATISTIC_VALUES = {
    "max": torch.amax,
    "min": torch.amin,
    "mean": torch.mean,
    "std": torch.std,
    "l1": lambda gradient: gradient.abs().sum(),
    "l2": torch.linalg.vector_norm,
}
GROUPS = {
    "parameter": {name: [name] for name in ("0.weight", "0.bias", "3.weight", "3.bias")},
    "module": {"0": ["0.weight", "0.bias"], "3": ["3.weight", "3.bias"]},
    "model": {"model": ["0.weight", "0.bias", "3.weight", "3.bias"]},
}


def slow_features(model: nn.Module, image: torch.Tensor, groups: dict[str, list[str]]) -> list[float]:
    parameters = dict(model.named_parameters())
    values = []
    for loss in LOSS_VALUES.values():
        found = torch.autograd.grad(loss(model(image[None].double())), list(parameters.values()))
        gradients = dict(zip(parameters, found, strict=True))
        for members in groups.values():
            pooled = torch.cat([gradients[name].flatten() for name in members])
            values += [float(statistic(pooled)) for statistic in STATISTIC_VALUES.values()]
    return values


@pytest.mark.parametrize(("granularity", "groups"), GROUPS.items(), ids=GROUPS)
def test_values_equal_those_of_one_backward_pass_per_sample(tmp_path: Path, granularity: str, groups: dict) -> None:
    features = {"losses": list(LOSS_VALUES), "statistics": list(STATISTIC_VALUES), "granularity": granularity}
    config = make_config(tmp_path, features=features)
    run(config)
    frame = RunFolder(config.run).read("in_dist.test")
    torch.manual_seed(config.extract.seed)
    model = built(config.model).double()
    images = [sample.inputs for sample in open_datasets(config)["in_dist.test"]]
    wanted = np.array([slow_features(model, image, groups) for image in images])
    np.testing.assert_allclose(frame[feature_columns(frame)].to_numpy(), wanted, rtol=2e-4, atol=1e-7)
    logits = model(torch.stack(images).double()).detach().numpy()
    np.testing.assert_allclose(frame[logit_columns(frame)].to_numpy(), logits, rtol=1e-4, atol=1e-6)


def test_the_table_has_the_agreed_columns_and_the_order_of_the_data(tmp_path: Path) -> None:
    config = make_config(tmp_path, features={"losses": ["uniform"], "statistics": ["max"], "parameters": ["3.*"]})
    run(config)
    frame = RunFolder(config.run).read("in_dist.test")
    features = ["uniform/3.weight/max", "uniform/3.bias/max"]
    assert list(frame.columns) == [*META_COLUMNS, *(f"logit_{k}" for k in range(10)), *features]
    samples = list(open_datasets(config)["in_dist.test"])
    assert frame["sample_id"].tolist() == [sample.id for sample in samples]
    assert frame["label"].tolist() == [sample.label for sample in samples]
    assert frame["content_hash"].tolist() == [sample.content_hash for sample in samples]
    assert (frame["correct"] == (frame["label"] == frame["prediction"])).all()


def test_summary(tmp_path: Path) -> None:
    summary = run(make_config(tmp_path))
    assert {split.name: split.samples for split in summary.splits} == SAMPLES
    assert {split.name: split.computed for split in summary.splits} == SAMPLES
    assert summary.feature_count == 2 * 4 * 6
    assert summary.splits[0].accuracy == RunFolder(summary.run).read("in_dist.fit")["correct"].mean()
    assert summary.splits[2].accuracy is None
    assert summary.notices == [
        "model.checkpoint is null: the weights come from the model's own code"
        " (random with seed 0, unless it loads some)"
    ]
    assert not summary.was_complete


def test_values_do_not_depend_on_the_number_of_workers(whole: Path, tmp_path: Path) -> None:
    run(make_config(tmp_path, extract={"workers": 2}))
    assert part_bytes(tmp_path / "run") == part_bytes(whole)


STOPS = {"in the first part": 4, "in another split": 25}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path, stop: int) -> None:
    def interrupt(_split: str, done: int, _total: int) -> None:
        if done >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_config(tmp_path), progress=interrupt)
    before = part_bytes(tmp_path / "run")
    summary = run(make_config(tmp_path))
    assert len(before) < len(part_bytes(whole))
    assert sum(split.computed for split in summary.splits) < sum(SAMPLES.values()) + (not before)
    assert part_bytes(tmp_path / "run") == part_bytes(whole)


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "gradscore", "extract", str(tmp_path / "config.yaml"), "--trust-code"]
    stop = {"GRADSCORE_TEST_KILL_AT": "26"}
    stopped = subprocess.run(command, env=os.environ | stop, capture_output=True, text=True, check=False)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    assert 0 < len(part_bytes(tmp_path / "run")) < len(part_bytes(whole))
    with pytest.raises(StoreError, match="is not finished"):
        RunFolder(tmp_path / "run").read("in_dist.fit")
    run(config)
    assert part_bytes(tmp_path / "run") == part_bytes(whole)


def test_a_part_that_went_missing_is_made_again(whole: Path, tmp_path: Path) -> None:
    before = part_bytes(whole)
    (whole / "features/in_dist.test/part-00001.parquet").unlink()
    assert [split.computed for split in run(make_config(tmp_path), out=whole).splits] == [0, 4, 0]
    assert part_bytes(whole) == before
    assert (verify_run(whole).damaged, verify_run(whole).not_recorded) == ([], [])


def with_another_set(folder: Path, **select: int) -> Config:
    config = make_config(folder)
    more = {"source": "sklearn:digits", "name": "more", "select": {"start": 60, **select}}
    return Config.model_validate(
        {**config.model_dump(), "data": {**config.data.model_dump(), "ood": [*config.data.model_dump()["ood"], more]}}
    )


def test_a_set_is_added_to_a_finished_run_and_nothing_else_computed(whole: Path, tmp_path: Path) -> None:
    before = part_bytes(whole)
    found = run(with_another_set(tmp_path, stop=67), out=whole)
    assert {split.name: split.computed for split in found.splits} == {**dict.fromkeys(SAMPLES, 0), "ood.more": 7}
    assert part_bytes(whole).items() > before.items()
    assert RunFolder(whole).manifest.finished
    assert run(with_another_set(tmp_path, stop=67), out=whole).was_complete
    run(with_another_set(tmp_path, stop=67), out=tmp_path / "at once")
    assert part_bytes(whole) == part_bytes(tmp_path / "at once")
    assert RunFolder(whole).manifest.inputs == RunFolder(tmp_path / "at once").manifest.inputs


def test_what_lies_where_an_added_set_goes_is_not_taken_for_it(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "features/ood.other", whole / "features/ood.more")
    run(with_another_set(tmp_path, stop=67), out=whole)
    assert RunFolder(whole).read("ood.more", ["sample_id"])["sample_id"].tolist() == list(map(str, range(60, 67)))


def test_a_set_is_not_added_by_other_versions(whole: Path, tmp_path: Path) -> None:
    manifest = json.loads((whole / "manifest.json").read_text())
    (whole / "manifest.json").write_text(json.dumps({**manifest, "versions": {**manifest["versions"], "torch": "1.0"}}))
    before = (whole / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match=r"versions\.torch was .1\.0., is now"):
        run(with_another_set(tmp_path, stop=67), out=whole)
    assert (whole / "manifest.json").read_bytes() == before


OTHER_INPUTS = {
    "weights": ({"extract": {"seed": 1}}, r"model\.weights_sha256"),
    "preprocessing": ({"preprocessing": {"mean": [0.5], "std": [0.5]}}, r"preprocessing\.mean was null"),
    "part size": ({"extract": {"part_size": 7}}, r"extract\.part_size was 6, is now 7"),
}


@pytest.mark.parametrize(("changes", "message"), OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_other_inputs_are_refused(whole: Path, tmp_path: Path, changes: dict, message: str) -> None:
    before = part_bytes(whole)
    with pytest.raises(StoreError, match=f"made from other inputs: .*{message}"):
        run(make_config(tmp_path, **changes), out=whole)
    assert part_bytes(whole) == before


def test_other_model_code_is_refused(whole: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    (tmp_path / "net.py").write_text(NET.replace("nn.ReLU()", "nn.Tanh()"))
    with pytest.raises(StoreError, match=r"made from other inputs: model\.code_sha256"):
        run(config, out=whole)


def test_a_run_goes_on_where_its_model_file_was_moved(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(whole, tmp_path / "elsewhere" / "whole")
    assert run(make_config(tmp_path / "elsewhere"), out=tmp_path / "elsewhere" / "whole").was_complete


REFUSED = {
    "pattern without a match": (
        {"features": {"parameters": ["3.wieght"]}},
        ConfigError,
        r"features\.parameters\.0: '3\.wieght' matches no parameter .*did you mean '3\.weight'",
    ),
    "number of classes": (
        {"model": {"arguments": {"outputs": 7}}},
        ModelError,
        r"wanted logits of shape \(3, 10\) .*got shape \(3, 7\)",
    ),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_settings_leave_no_run_folder(
    tmp_path: Path, changes: dict, error: type[GradscoreError], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(make_config(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


class Faulty:
    """Some samples of a data set do not decode."""

    def __init__(self, inner, faulty: set[int]) -> None:
        self.inner, self.faulty = inner, faulty

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int):
        return BadSample(f"image {index}", "does not decode") if index in self.faulty else self.inner[index]

    def fingerprint(self) -> str:
        return self.inner.fingerprint()


def with_faults(monkeypatch: pytest.MonkeyPatch, faulty: set[int]) -> None:
    def opened(config: Config, **options: bool) -> dict:
        datasets = open_datasets(config, **options)
        return {**datasets, "in_dist.test": Faulty(datasets["in_dist.test"], faulty)}

    monkeypatch.setattr("gradscore.pipeline.extraction.open_datasets", opened)


def test_a_sample_that_does_not_decode_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_faults(monkeypatch, {7})
    with pytest.raises(
        DataError,
        match=r"split in_dist\.test, sample image 7: does not decode; .*on_error=skip.*keeps what is there",
    ):
        run(make_config(tmp_path))
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_samples_that_do_not_decode_are_skipped_and_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_faults(monkeypatch, {0, 6, 7, 8, 9})
    summary = run(make_config(tmp_path, extract={"on_error": "skip"}))
    assert summary.splits[1].skipped == [
        Skipped(sample_id=f"image {k}", error="does not decode") for k in (0, 6, 7, 8, 9)
    ]
    frame = RunFolder(summary.run).read("in_dist.test")
    kept = list(open_datasets(make_config(tmp_path))["in_dist.test"])[1:6]
    assert frame["content_hash"].tolist() == [sample.content_hash for sample in kept]


def test_nothing_but_samples_that_do_not_decode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_faults(monkeypatch, set(range(10)))
    with pytest.raises(DataError, match=r"split in_dist\.test: all 10 samples were skipped; image 0: does not decode"):
        run(make_config(tmp_path, extract={"on_error": "skip"}))


def test_values_that_are_not_finite_are_kept_and_counted(tmp_path: Path) -> None:
    summary = run(make_config(tmp_path, model={"source": f"python:{tmp_path}/net.py:overflowing"}))
    frame = RunFolder(summary.run).read("in_dist.test")
    assert summary.splits[1].non_finite == (~np.isfinite(frame[logit_columns(frame)])).any(axis=1).sum() > 0


def test_one_sample(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    source = {"source": "sklearn:digits", "select": {"start": 3, "stop": 4}}
    data = {"auxiliary": [], "in_dist": {"fit": source, "test": source}, "ood": []}
    summary = run(make_config(tmp_path, data=data))
    assert [split.samples for split in summary.splits] == [1, 1]
    assert RunFolder(config.run).read("in_dist.fit")["sample_id"].size == 1
