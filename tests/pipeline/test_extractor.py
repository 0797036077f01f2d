"""What computes the rows of a feature table, when memory runs out and in reduced precision."""

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.config import FeaturesConfig
from gradscore.errors import ModelError
from gradscore.extractor import Extractor
from gradscore.gradients import Engine


class Greedy(nn.Sequential):
    """Runs out of memory with more than so many samples."""

    limit = 1000

    def forward(self, images):
        if len(images) > self.limit:
            raise torch.OutOfMemoryError("no memory left")
        return super().forward(images)


def extractor(limit, device="cpu", **features):
    torch.manual_seed(0)
    model = Greedy(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval().to(device)
    model.limit = limit
    return Extractor(model, num_classes=5, features=FeaturesConfig(**features))


def told_apart(values, names):
    """Without the means: those of the last layer are zero, and what is left is rounding."""
    return values[:, [not name.endswith("/mean") for name in names]]


def images(samples):
    return torch.randn(samples, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_half_as_many_samples_when_memory_runs_out(device):
    greedy = extractor(3, device)
    found = greedy.values(images(13))
    whole = extractor(1000, device).values(images(13))
    np.testing.assert_allclose(told_apart(found, greedy.names), told_apart(whole, greedy.names), rtol=1e-4)
    assert [notice.split(";")[0] for notice in greedy.engine.notices if "memory" in notice] == [
        "memory ran out with 13 samples at a time",
        "memory ran out with 6 samples at a time",
    ]


def test_smaller_batches_are_kept_to():
    greedy = extractor(3)
    greedy.values(images(13))
    told = len(greedy.engine.notices)
    assert greedy.values(images(13)).shape == (13, len(greedy.names))
    assert len(greedy.engine.notices) == told


def test_not_even_one_sample():
    with pytest.raises(ModelError, match="too little memory for a single sample: no memory left"):
        extractor(0).values(images(4))


def test_no_samples():
    greedy = extractor(3)
    assert greedy.values(images(0)).shape == (0, len(greedy.names))


def test_reduced_precision_moves_the_values_a_little(device):
    full, reduced = extractor(99, device), extractor(99, device, autocast="bf16")
    column = full.names.index("pseudo_label/0.weight/l2")
    expected, found = (each.values(images(9))[:, [0, column]] for each in (full, reduced))
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.02)


def test_unknown_precision():
    with pytest.raises(ValueError, match="bf16"):
        FeaturesConfig(autocast="int8")


OF_ONE = {
    "one loss": {"losses": ["pseudo_label"]},
    "two": {"losses": ["pseudo_label", "uniform"]},
    "three": {"losses": ["uniform", "entropy", "pseudo_label"]},
    "several gradients": {"losses": ["expected", "uniform"]},
    "averaged": {"augmentations": ["mirror"], "average_gradients": ["mirror"]},
}


@pytest.mark.parametrize("features", OF_ONE.values(), ids=OF_ONE)
def test_one_sample_gets_what_it_gets_in_a_batch(features, device):
    """Each loss by itself, of the sample among others."""
    ours = extractor(1000, device, **features)
    found, wanted = ours.values_of_one(images(1)), ours.values(images(3))[:1]
    np.testing.assert_allclose(told_apart(found, ours.names), told_apart(wanted, ours.names), rtol=1e-4)


def test_one_sample_takes_one_backward_pass_for_all_losses(monkeypatch):
    ours = extractor(1000, losses=["pseudo_label", "uniform", "entropy"])
    ours.prepare(images(3))
    passes, stream = [], Engine.stream
    monkeypatch.setattr(Engine, "stream", lambda *given, **named: passes.append(1) or stream(*given, **named))
    ours.values_of_one(images(1))
    assert len(passes) == 1


def test_one_sample_of_which_two_copies_fit():
    greedy, plain = (extractor(limit, losses=["pseudo_label", "uniform", "entropy"]) for limit in (2, 1000))
    found, wanted = greedy.values_of_one(images(1)), plain.values(images(2))[:1]
    np.testing.assert_allclose(told_apart(found, greedy.names), told_apart(wanted, plain.names), rtol=1e-4)
