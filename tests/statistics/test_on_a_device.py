"""Batches on a device whose contents nobody can look at: what asks for a number there fails.

The `meta` device knows shapes alone. A network is learned on the processor, and its batch is then reduced on that
device, so that whatever would wait for an accelerator, or copy anything to the host, raises an error.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from layers import Function, N, images, tokens
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradscore.gradients import Engine, engine
from gradscore.projections.projection import Projection
from gradscore.statistics import reduce_gradients


class Residual(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
            for _ in range(blocks)
        )
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


NETS = {
    "residual network": lambda: (Residual(6), images(3, 6, 6, dtype=torch.float32)),
    "layers with tokens": lambda: (
        nn.Sequential(nn.Linear(90, 80), nn.LayerNorm(80), nn.GELU(), nn.Linear(80, 40)),
        images(30, 90, dtype=torch.float32),
    ),
    "strides and groups": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, stride=2), nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 3, groups=6)),
        images(4, 9, 9, dtype=torch.float32),
    ),
    "one axis and three": lambda: (
        nn.Sequential(nn.Conv1d(4, 6, 3), nn.Unflatten(2, (3, 3, 1)), nn.Conv3d(6, 2, (2, 3, 1))),
        images(4, 11, dtype=torch.float32),
    ),
    "tables": lambda: (
        nn.Sequential(nn.Embedding(30, 6, padding_idx=1), nn.Linear(6, 4)),
        tokens(size=30),
    ),
    "broadcast": lambda: (Function((4,), lambda w, x: (x * w).exp() + w), images(3, 4, dtype=torch.float32)),
    "changed before it is used": lambda: (
        Function((4, 6), lambda w, x: x @ (w / w.norm()).t()),
        images(6, dtype=torch.float32),
    ),
}


@pytest.fixture(params=NETS.values(), ids=NETS)
def on_device(request, monkeypatch):
    """An engine that knows a network, and outputs of it, on a device without contents."""
    monkeypatch.setattr(engine, "_readable", lambda outputs: nullcontext())  # autocast knows no such device
    torch.manual_seed(0)
    model, batch = request.param()
    model.eval()
    learned = Engine(dict(model.named_parameters()))
    for _ in range(2):
        outputs = model(batch).flatten(1)
        learned.learn(outputs, torch.randn_like(outputs))
    there = copy.deepcopy(model).to("meta")
    found = Engine(dict(there.named_parameters()))
    found._plans = learned._plans
    found._batches = dict.fromkeys(learned._plans, 1)  # the next one is not looked at
    return found, there(batch.to("meta")).flatten(1)


@pytest.mark.parametrize("statistics", [["max", "min", "mean", "std", "l1", "l2", "linf"], ["l2"], ["l0.5"]], ids=str)
def test_statistics_wait_for_nothing(on_device, statistics):
    known, outputs = on_device
    groups = {"all": list(known.parameters), **{name: [name] for name in known.parameters}}
    columns = reduce_gradients(known, outputs, torch.empty_like(outputs), statistics=statistics, groups=groups)
    assert {(values.device.type, values.shape) for values in columns.values()} == {("meta", (N,))}


def test_projections_wait_for_nothing(on_device):
    known, outputs = on_device
    projection = Projection(64, 0)
    sums = projection.blank(N, dtype=torch.float32, device=outputs.device)
    known.stream(outputs, torch.empty_like(outputs), projection.sink(sums))
    assert projection.finished(sums).shape == (N, 64)


class Looks(TorchDispatchMode):
    """Counts how often a number is looked at."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("blocks", [1, 6])
def test_uncertain_layouts_are_looked_at_together(blocks):
    """Where only zeros have arrived so far, every batch is asked whether that is still so."""
    torch.manual_seed(0)
    model, batch = Residual(blocks).eval(), images(3, 6, 6, dtype=torch.float32)
    nn.init.zeros_(model.head.weight)
    known = Engine(dict(model.named_parameters()))
    outputs = model(batch)
    gradient = torch.randn_like(outputs)
    known.learn(outputs, gradient)
    with Looks() as looks:
        graph, found = known._plan(outputs, gradient)
    assert not all(layout.certain for layout in found.layouts.values())
    assert looks.count == 1
    assert not found.is_outdated(outputs, gradient, graph)
