"""Which networks change themselves while they run, and how much they compute."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import spectral_norm

from gradscore.models import Interface, look_at_forward


class Wrapped(nn.Module):
    """A network around another layer, for those that do something odd."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)


class KeepsFeatures(Wrapped):
    def forward(self, x):
        self.features = self.layer(x)
        return self.features


class Counts(Wrapped):
    calls = 1000  # beyond the small numbers of which there is one object each

    def forward(self, x):
        self.calls = self.calls + 1
        return self.layer(x)


class Collects(Wrapped):
    def __init__(self, container):
        super().__init__()
        self.seen = container

    def forward(self, x):
        found = self.layer(x)
        self.seen.append(found)
        return found


class Cache:
    def __init__(self):
        self.by_size = {}


class GrowsACache(Wrapped):
    def __init__(self):
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        self.cache.by_size.setdefault(len(x), torch.ones(len(x), 1))
        return self.layer(x)


class WritesABuffer(Wrapped):
    def __init__(self):
        super().__init__()
        self.register_buffer("scratch", torch.zeros(4))

    def forward(self, x):
        found = self.layer(x)
        self.scratch.copy_(found[0])
        return found


class ExchangesWeights(Wrapped):
    """All is as it was when forward is over."""

    def forward(self, x):
        return functional_call(self.layer, {"weight": self.layer.weight * 2}, (x,))


class LooksForAWhile(Wrapped):
    """What a layer of its own keeps is gone again when forward is over."""

    def forward(self, x):
        self.layer.note = x
        found = self.layer(x)
        del self.layer.note
        return found


CHANGING = {
    "keeps features": KeepsFeatures,
    "counts": Counts,
    "appends to a list": lambda: Collects([]),
    "appends to a queue": lambda: Collects(deque()),
    "grows a cache in an object": GrowsACache,
    "writes a buffer": WritesABuffer,
    "exchanges weights for a while": ExchangesWeights,
    "keeps something for a while": LooksForAWhile,
}


@pytest.mark.parametrize("name", CHANGING)
def test_networks_that_change_themselves(name):
    model = CHANGING[name]().eval()
    look = look_at_forward(model, lambda: model(torch.ones(2, 6)))
    assert look.obstacle is not None
    assert "changes itself in forward" in look.obstacle


def test_hooks_of_others_may_keep_what_they_see():
    model = nn.Sequential(nn.Linear(6, 4)).eval()
    model[0].register_forward_hook(lambda *_: None)
    assert look_at_forward(model, lambda: model(torch.ones(2, 6))).obstacle == "0 has a hook"


def test_layers_that_make_their_weight_in_a_hook():
    model = spectral_norm(nn.Linear(6, 4)).eval()
    assert look_at_forward(model, lambda: model(torch.ones(2, 6))).obstacle == "Linear has a hook"


def test_hooks_that_look_at_all_modules():
    model = nn.Linear(6, 4)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        look = look_at_forward(model, lambda: model(torch.ones(2, 6)))
    finally:
        handle.remove()
    assert look.obstacle == "a hook looks at all modules"


STEADY = {
    "convolutions": lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4)),
    "a transformer": lambda: nn.Sequential(nn.Flatten(1, 2), nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)),
    "a recurrent network": lambda: nn.Sequential(nn.Flatten(1, 2), nn.LSTM(6, 4, batch_first=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", STEADY)
def test_networks_that_stay_as_they_are(name):
    model = STEADY[name]().eval()

    def forward():
        found = model(torch.ones(2, 1, 6, 6))
        return found if isinstance(found, torch.Tensor) else found[0]

    assert look_at_forward(model, forward).obstacle is None


def test_the_hooks_of_an_interface_keep_nothing():
    model = nn.Linear(6, 4).eval()
    Interface(num_classes=4).attach(model)
    hooks = len(model._forward_hooks), len(model._forward_pre_hooks)
    assert look_at_forward(model, lambda: model(torch.ones(2, 6))).obstacle is None
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks


def test_no_hook_stays_after_an_error():
    model = nn.Linear(6, 4)
    with pytest.raises(RuntimeError):
        look_at_forward(model, lambda: model(torch.ones(2, 5)))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_products_and_weights():
    # 3 kernels of 2 x 3 x 3 at 4 x 4 places, and 48 x 5 weights that a sample uses once; biases do not count.
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 5))
    look = look_at_forward(model, lambda: model(torch.ones(7, 2, 6, 6)))
    assert (look.products, look.weights, look.layers) == (54 * 16 + 240, 54 + 240, 2)


def test_weights_that_are_used_twice():
    layer = nn.Linear(5, 5)
    model = nn.Sequential(layer, layer)
    look = look_at_forward(model, lambda: model(torch.ones(3, 5)))
    assert (look.products, look.weights, look.layers) == (50, 25, 2)
