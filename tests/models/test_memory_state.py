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
    model[1] = nn.ReLU()
    assert attribute_state(model) != before


class Scaled(nn.Linear):
    """With a tensor that is no buffer, and settings in containers."""

    def __init__(self):
        super().__init__(6, 4)
        self.scale = torch.ones(6)
        self.settings = {"temperature": 1.0, "parts": [torch.ones(2), (3, "mean")]}
        self.vocabulary = {str(number): number for number in range(2000)}

    def forward(self, x):
        return super().forward(x * self.scale) / self.settings["temperature"]


ATTRIBUTES = {
    "a tensor in place": lambda model: model.scale.fill_(2.0),
    "a tensor through data": lambda model: model.scale.data.fill_(2.0),
    "another tensor": lambda model: setattr(model, "scale", 2 * torch.ones(6)),
    "in a dictionary": lambda model: model.settings.update(temperature=2.0),
    "a tensor in a list": lambda model: model.settings["parts"][0].add_(1),
    "in a tuple": lambda model: model.settings["parts"].__setitem__(1, (4, "mean")),
    "one more": lambda model: model.settings["parts"].append(None),
}


@pytest.mark.parametrize("change", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_changes_in_tensors_and_containers_beside_weights_are_seen(change) -> None:
    model = nn.Sequential(Scaled(), nn.ReLU())
    before = attribute_state(model)
    assert attribute_state(model) == before
    change(model[0])
    assert attribute_state(model) != before


def test_a_hook_of_all_modules_is_seen() -> None:
    model = nn.Linear(6, 4)
    before = attribute_state(model)
    hook = nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: None)
    try:
        assert attribute_state(model) != before
    finally:
        hook.remove()
    assert attribute_state(model) == before
