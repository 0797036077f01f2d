"""A plan is of certain parameters in certain places: others that lie alike need one of their own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscore.gradients import Engine
from gradscore.statistics import reduce_gradients


def layers():
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(5, 5) for name in "ab"}).double()


ORDERS = {
    "one and then the other": ("a", "b"),
    "both, and then both the other way round": ("ab", "ba"),
    "one, both, and the other": ("a", "ab", "b", "a"),
}


@pytest.mark.filterwarnings("ignore:.*do not depend on it:gradscore.gradients.engine.GradientWarning")
@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_layers_of_one_shape_that_change_places(orders):
    model, batch = layers(), torch.randn(6, 5, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    engine = Engine(parameters)
    for order in orders:
        found = batch
        for name in order:
            found = model[name](found).tanh()
        losses = found.square().sum(1)
        groups = {name: [name] for name in parameters}
        got = reduce_gradients(
            engine, losses, torch.ones_like(losses), statistics=["l2"], groups=groups, retain_graph=True
        )
        for index, loss in enumerate(losses):
            truth = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, materialize_grads=True)
            for name, gradient in zip(parameters, truth, strict=True):
                torch.testing.assert_close(got[f"{name}/l2"][index], gradient.norm(), rtol=1e-10, atol=1e-12)


TYPES = {
    "float64 first": (torch.float64, torch.bfloat16, torch.float64),
    "bfloat16 first": (torch.bfloat16, torch.float64, torch.bfloat16),
}


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_weights_that_are_cast_to_another_type_each_time(types):
    weight = nn.Parameter(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))
    engine = Engine({"weight": weight})
    for dtype in types:
        batch = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
        outputs = F.linear(batch, weight.to(dtype))
        found = reduce_gradients(
            engine, outputs, torch.ones_like(outputs), statistics=["l2"], groups={"all": ["weight"]}
        )
        torch.testing.assert_close(found["all/l2"], 2 * batch.double().norm(dim=1), rtol=1e-2, atol=0)
