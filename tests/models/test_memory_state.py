"""What a scorer notices of a model that a program went on with."""

import pytest
import torch
from torch import nn

from gradscore.models import attribute_state, memory_state, weights_sha256

CHANGES = {
    "in place": lambda model: model.weight.detach().add_(1),
    "other memory": lambda model: setattr(model.weight, "data", model.weight.data.clone()),
    "a buffer": lambda model: model.running.zero_(),
    "through data": lambda model: model.weight.data.mul_(3),
    "a hook": lambda model: model.register_forward_hook(print),
    "frozen": lambda model: model.weight.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_weights_and_buffers_are_seen(name):
    model = nn.Linear(6, 4)
    model.register_buffer("running", torch.ones(3))
    before = memory_state(model)
    assert memory_state(model) == before
    CHANGES[name](model)
    assert memory_state(model) != before


def test_weights_may_be_sparse_or_of_any_type():
    model = nn.Linear(6, 4)
    model.register_buffer("graph", torch.eye(4).to_sparse())
    model.register_buffer("low", torch.ones(2, dtype=torch.bfloat16))
    model.register_buffer("spectrum", torch.ones(2, dtype=torch.complex64))
    model.register_buffer("count", torch.tensor(3))
    before, hashed = memory_state(model), weights_sha256(model)
    assert (memory_state(model), weights_sha256(model)) == (before, hashed)
    model.graph = 2 * model.graph
    assert memory_state(model) != before
    assert weights_sha256(model) != hashed


def test_changes_beside_weights_are_seen():
    model = nn.Sequential(nn.Linear(6, 4), nn.ELU())
    before = attribute_state(model)
    assert attribute_state(model) == before
    model[1].alpha = 0.5
    assert attribute_state(model) != before
    model[1].alpha = 1.0
    model.cached = torch.ones(2), torch.ones(2)  # which cannot be compared
    assert attribute_state(model) == before
    model[1] = nn.ReLU()
    assert attribute_state(model) != before
