"""Copies of models, who looks on when they run, and how much they compute."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from gradscore.models import Interface, copy_of, is_hooked, look_at_forward, memory_size, memory_state, weights_sha256


class Noisy(nn.Linear):
    """Takes its noise from a generator of its own, or from everybody's."""

    def __init__(self, generator):
        super().__init__(6, 4)
        self.generator = generator

    def forward(self, x):
        return super().forward(x) + torch.rand(len(x), 1, generator=self.generator)


class Dropping(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x))


RANDOM = {
    "everybody's generator": lambda: Noisy(None),
    "a generator of its own": lambda: Noisy(torch.Generator()),
    "dropout in a function": lambda: Dropping(6, 4),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_seen(name):
    model = RANDOM[name]()
    assert look_at_forward(model, lambda: model(torch.ones(2, 6))).random


def test_dropout_in_evaluation_mode_is_not_random():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout()).eval()
    assert not look_at_forward(model, lambda: model(torch.ones(2, 6))).random


def test_products_and_weights():
    # 3 kernels of 2 x 3 x 3 at 4 x 4 places, and 48 x 5 weights that a sample uses once; biases do not count.
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 5))
    look = look_at_forward(model, lambda: model(torch.ones(7, 2, 6, 6)))
    assert (look.products, look.weights, look.layers) == (54 * 16 + 240, 54 + 240, 2)


def test_no_hook_stays_after_an_error():
    model = nn.Linear(6, 4)
    with pytest.raises(RuntimeError):
        look_at_forward(model, lambda: model(torch.ones(2, 5)))
    assert not model._forward_hooks


def test_hooks():
    model = nn.Sequential(nn.Linear(6, 4)).eval()
    assert not is_hooked(model)
    handle = model[0].register_forward_pre_hook(lambda *_: None)
    assert is_hooked(model)
    handle.remove()
    assert not is_hooked(model)


def test_hooks_that_look_at_all_modules():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert is_hooked(nn.Linear(6, 4))
    finally:
        handle.remove()


def test_an_interface_does_not_count_as_a_hook_and_is_copied():
    model = nn.Linear(6, 1).eval()
    Interface(num_classes=2, one_logit=True).attach(model)
    assert not is_hooked(model)
    copied = copy_of(model)
    assert not is_hooked(copied)
    assert torch.equal(copied(torch.ones(2, 6)), model(torch.ones(2, 6)))
    assert copied(torch.ones(2, 6)).shape == (2, 2)


def test_weights_that_are_computed_from_others_are_not_copied():
    model = nn.Sequential(spectral_norm(nn.Linear(6, 4)))
    with pytest.raises(TypeError, match="parametrized"):
        copy_of(model)


CHANGES = {
    "in place": lambda model: model.weight.detach().add_(1),
    "other memory": lambda model: setattr(model.weight, "data", model.weight.data.clone()),
    "a buffer": lambda model: model.running.zero_(),
    "through data": lambda model: model.weight.data.mul_(3),
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


def test_the_size_counts_weights_and_buffers():
    model = nn.Linear(6, 4).double()
    model.register_buffer("running", torch.ones(3, dtype=torch.int32))
    assert memory_size(model) == 8 * 28 + 4 * 3
