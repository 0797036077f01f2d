"""What computes the rows of a feature table, when memory runs out and in reduced precision."""

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.config import FeaturesConfig
from gradscore.errors import ModelError
from gradscore.extractor import Extractor


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
    groups = {name: [name] for name, _ in model.named_parameters()}
    return Extractor(model, num_classes=5, features=FeaturesConfig(**features), groups=groups)


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
