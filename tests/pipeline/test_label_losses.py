"""Losses of given labels: features of labelled samples, and no way into what scores samples without labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import cli
from torch import Tensor, nn
from trusted import built

import gradscore
from gradscore.config import Config, dump_config
from gradscore.data import collate
from gradscore.doctor import check_model
from gradscore.errors import ConfigError, DataError
from gradscore.evaluation import fit_run
from gradscore.inspect import inspect_config
from gradscore.models import trusting_code
from gradscore.pipeline import extract, open_datasets
from gradscore.store import RunFolder


@pytest.fixture(scope="module")
def net(small_run: Path) -> nn.Module:
    return built(RunFolder(small_run).config.model)


@pytest.fixture(scope="module")
def samples(small_run: Path) -> tuple[Tensor, Tensor]:
    batch = collate(list(open_datasets(RunFolder(small_run).config)["in_dist.test"])[:12])
    return batch.inputs, (batch.labels + torch.arange(12) % 3) % 8


def with_losses(run: Path, folder: Path, losses: list[str], *, ood: bool) -> Config:
    config = RunFolder(run).config
    features = config.features.model_copy(update={"losses": losses})
    data = config.data if ood else config.data.model_copy(update={"ood": []})
    return config.model_copy(update={"features": features, "data": data, "run": folder / "run"})


def test_features_are_those_of_one_backward_pass_for_each_sample(net: nn.Module, samples) -> None:
    found = gradscore.features(net, samples, losses=["label"], statistics=["l2"], granularity="model", batch_size=5)
    parameters = list(net.parameters())
    norms = []
    for image, label in zip(*samples, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(net(image[None]).double(), label[None]), parameters)
        norms.append(float(torch.cat([each.flatten() for each in gradients]).double().norm()))
    np.testing.assert_allclose(found["label/model/l2"], norms, rtol=1e-4)


def test_a_run_has_the_features_of_samples_with_labels(small_run: Path, tmp_path: Path, net: nn.Module) -> None:
    config = with_losses(small_run, tmp_path, ["label"], ood=False)
    extract(config, trust_code=True)
    table = RunFolder(config.run).read("in_dist.test")
    batch = collate(list(open_datasets(config)["in_dist.test"]))
    options = {"statistics": config.features.statistics, "batch_size": config.extract.batch_size}
    direct = gradscore.features(net, (batch.inputs, batch.labels), losses=["label"], **options)
    columns = [name for name in table if name.startswith("label/")]
    assert table[columns].to_numpy().tobytes() == direct[columns].to_numpy().tobytes()


def test_samples_without_labels_are_refused(net: nn.Module, samples) -> None:
    images, labels = samples
    with pytest.raises(
        DataError, match="'label' looks at the label of every sample, and sample 0 has none; give inputs"
    ):
        gradscore.features(net, images, losses=["uniform", "label"])
    with pytest.raises(DataError, match="and sample 3 has none; give inputs and labels, batch by batch"):
        gradscore.features(net, (images, labels.where(torch.arange(12) != 3, -1)), losses=["label"])


def test_sets_without_labels_are_refused_before_anything_is_written(small_run: Path, tmp_path: Path) -> None:
    config = with_losses(small_run, tmp_path, ["label"], ood=True)
    with pytest.raises(DataError, match=r"sample \S+ of split ood\.\w+ and \d+ more have none; label all of them"):
        extract(config, trust_code=True)
    assert not config.run.exists()


def test_no_meta_model_is_fitted_to_given_labels(small_run: Path, tmp_path: Path) -> None:
    config = with_losses(small_run, tmp_path, ["pseudo_label", "label"], ood=False)
    extract(config, trust_code=True)
    with pytest.raises(ConfigError, match="'label', which looks at given labels"):
        fit_run(RunFolder(config.run))
    assert not (config.run / "meta").exists()


def test_the_command_run_refuses_before_it_extracts(small_run: Path, tmp_path: Path) -> None:
    config = with_losses(small_run, tmp_path, ["label"], ood=False)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    found = cli("run", tmp_path / "config.yaml", "--trust-code")
    assert found.exit_code == 2
    assert "'label', which looks at given labels" in " ".join(found.output.split())
    assert not config.run.exists()


def test_a_detector_is_not_fitted_to_given_labels(net: nn.Module, samples) -> None:
    detector = gradscore.Detector(net, features={"losses": ["label"]})
    with pytest.raises(ConfigError, match=r"Detector: features\.losses has 'label'"):
        detector.fit(samples)


def test_other_looks_at_a_model_use_losses_without_labels(small_run: Path, tmp_path: Path, net: nn.Module) -> None:
    config = with_losses(small_run, tmp_path, ["label"], ood=False)
    with trusting_code():
        found = inspect_config(config, quantities=["grad_hist_1d"], samples=8)
    assert found.samples["in_dist.test"] == 8
    with pytest.raises(ConfigError, match="'label' looks at given labels, and OOD samples have none"):
        inspect_config(config, loss="label")
    with pytest.raises(ConfigError, match="loss 'label' looks at given labels"):
        check_model(net, torch.rand(4, 1, 8, 8), loss="label")
