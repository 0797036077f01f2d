"""What models take and return, made by PyTorch and transformers themselves."""

import itertools
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput

import gradscore
from gradscore.errors import ModelError
from gradscore.models import Interface, refuse_probabilities

Pair = namedtuple("Pair", "features scores")
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A linear layer, and what is made of its outputs."""

    def __init__(self, returned=lambda z, x: z, outputs=3):
        super().__init__()
        self.layer = nn.Linear(4, outputs)
        self.returned = returned

    def forward(self, x):
        return self.returned(self.layer(x), x)


def attached(model, **settings):
    Interface(**{"num_classes": 3, **settings}).attach(model)
    return model


OUTPUTS = {
    "a tensor": (lambda z, x: z, None),
    ".logits of transformers": (lambda z, x: ImageClassifierOutput(loss=z.sum(), logits=z, hidden_states=(x,)), None),
    "a dict with logits": (lambda z, x: {"logits": z, "features": x}, None),
    "a dict with one matrix": (lambda z, x: {"out": z, "loss": z.sum(), "tokens": x[:, :, None]}, None),
    "a dict where one entry has as many columns as classes": (lambda z, x: {"scores": z, "features": x}, None),
    "a dict with a name": (lambda z, x: {"main": z, "auxiliary": z + 1}, "main"),
    "a tuple where one entry has as many columns as classes": (lambda z, x: (x, z), None),
    "beside a map of one place": (lambda z, x: (z, x[:, :, None, None]), None),
    "a tuple with a position": (lambda z, x: (z + 1, z), 1),
    "a named tuple with a name": (lambda z, x: Pair(x[:, :3], z), "scores"),
}


@pytest.mark.parametrize(("returned", "name"), OUTPUTS.values(), ids=OUTPUTS)
def test_logits_are_found(returned, name):
    model = Net(returned)
    wanted = model.layer(X)
    assert torch.equal(attached(model, output=name)(X), wanted)


UNCLEAR = {
    "two matrices that fit": (lambda z, x: {"main": z, "auxiliary": z}, None, r"of main \(5, 3\), auxiliary \(5, 3\)"),
    "logits as a map of one place": (
        lambda z, x: (x, z[:, :, None, None]),
        None,
        r"0 \(5, 4\), 1 \(5, 3, 1, 1\); name the logits by model.output",
    ),
    "nothing of that name": (lambda z, x: {"out": z}, "logits", r"model.output: no tensor 'logits' among .* of out"),
    "a name where there is but one tensor": (lambda z, x: z, "logits", "leave model.output out"),
    "no tensor": (lambda z, x: "cat", None, "got str; make forward return them"),
    "truth values": (lambda z, x: z > 0, None, "wanted logits as floats in an ordinary tensor, got torch.bool"),
    "complex numbers": (lambda z, x: z.to(torch.complex64), None, "in an ordinary tensor, got torch.complex64"),
    "one logit is declared and three are there": (lambda z, x: z, None, r"num_classes is 1.*got shape \(5, 3\)"),
}


@pytest.mark.parametrize(("returned", "name", "message"), UNCLEAR.values(), ids=UNCLEAR)
def test_logits_that_are_not_obvious_are_asked_for(returned, name, message):
    model = attached(Net(returned), output=name, one_logit="num_classes is 1" in message)
    with pytest.raises(ModelError, match=message):
        model(X)


CALLS = {
    "a detector": lambda model, data, **named: gradscore.Detector(model, **named).fit(data),
    "features": lambda model, data, **named: gradscore.features(model, data, **named),
    "an audit": lambda model, data, **named: gradscore.audit(model, data, **named),
    "projections": lambda model, data, **named: gradscore.project(model, data, **named),
}
IN_PYTHON = {
    "two that fit": (lambda z, x: {"main": z, "auxiliary": z}, {}, "name the logits by output=..."),
    "nothing of that name": (
        lambda z, x: {"out": z},
        {"output": "logits"},
        "^output: no tensor 'logits' .*or leave output out",
    ),
    "no single logit": (lambda z, x: z, {"one_logit": True}, "one_logit=True means one logit.*; leave one_logit out"),
}


CALLED = list(zip(CALLS, itertools.cycle(IN_PYTHON)))


@pytest.mark.parametrize(("call", "case"), CALLED, ids=CALLS)
def test_programs_are_told_their_arguments(call: str, case: str) -> None:
    returned, named, message = IN_PYTHON[case]
    with pytest.raises(ModelError, match=message) as caught:
        CALLS[call](Net(returned).eval(), (X, torch.arange(5) % 3), **named)
    assert "model." not in str(caught.value)


OTHER_TASKS = {
    "segmentation": (lambda z, x: z[:, :, None, None].expand(-1, -1, 2, 2), "as segmentation has"),
    "segmentation in a dict": (
        lambda z, x: {"out": z[:, :, None, None], "aux": z[:, :, None, None]},
        "as segmentation",
    ),
    "detection": (lambda z, x: [{"boxes": each, "scores": each} for each in z], "as object detection has"),
    "a language model": (lambda z, x: SimpleNamespace(logits=z[:, None]), "as language models have"),
    "a regression": (lambda z, x: z[:, 0], "one_logit=True if that is the logit of two classes, not for a regression"),
}


@pytest.mark.parametrize(("task", "call"), [*zip(OTHER_TASKS, itertools.cycle(["a detector", "features"]))])
def test_models_of_other_tasks_are_refused_with_what_there_is_for_them(task: str, call: str) -> None:
    returned, message = OTHER_TASKS[task]
    with pytest.raises(ModelError, match=message) as caught:
        CALLS[call](Net(returned).eval(), (X, torch.arange(5) % 3))
    assert "gradscore.features(model, batches, losses=FUNCTION)" in str(caught.value)
    assert "output=" not in str(caught.value)


def test_the_axis_of_a_single_sample_that_was_dropped_is_named():
    model = attached(Net(lambda z, x: z[..., None].squeeze()))
    assert model(X).shape == (5, 3)
    with pytest.raises(
        ModelError, match=r"got shape \(3,\); forward may drop the axis of a single sample, as .squeeze"
    ):
        model(X[:1])
    assert attached(Net(lambda z, x: z[..., None].flatten(1)))(X[:1]).shape == (1, 3)


ONE = {"a column": lambda z, x: z, "no column": lambda z, x: z[:, 0], "in a dict": lambda z, x: {"z": z, "x": x}}


@pytest.mark.parametrize("returned", ONE.values(), ids=ONE)
def test_one_logit_becomes_two(returned):
    model = Net(returned, outputs=1)
    wanted = torch.sigmoid(model.layer(X)[:, 0])
    found = attached(model, num_classes=2, one_logit=True)(X)
    torch.testing.assert_close(found.softmax(1)[:, 1], wanted)
    assert torch.equal(found[:, 0], torch.zeros(5))


class Keywords(Net):
    def forward(self, x, mask=None):
        return self.layer(x) if mask is None else self.layer(x * mask)


class WholeBatch(Net):
    def forward(self, batch):
        return self.layer(batch["x"])


BATCHES = {
    "keyword arguments": (Keywords, {"x": X, "mask": torch.ones(4).double()}),
    "one keyword argument": (Net, {"x": X}),
    "a forward that takes the mapping": (WholeBatch, {"x": X, "mask": X}),
}


@pytest.mark.parametrize(("make", "batch"), BATCHES.values(), ids=BATCHES)
def test_mappings(make, batch):
    model = make()
    wanted = model.layer(X)
    assert torch.equal(attached(model)(batch), wanted)


TYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float64)}


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_floats_are_brought_to_the_type_of_the_weights(dtype):
    model = Net().to(dtype)
    assert torch.equal(attached(model)(X), model.layer(X.to(dtype)))


def test_whole_numbers_stay():
    model = attached(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)).half())
    assert model(torch.tensor([[1, 2]])).dtype == torch.float16


def test_parameters_keep_their_names_and_hooks_come_off():
    model = Net(lambda z, x: {"logits": z})
    names = [name for name, _ in model.named_parameters()]
    detach = Interface(num_classes=3).attach(model)
    assert [name for name, _ in model.named_parameters()] == names
    detach()
    assert list(model(X)) == ["logits"]
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


REFUSED = {
    "softmax": (lambda z: z.softmax(1), "every row is a probability distribution"),
    "softmax, then a view": (lambda z: z.softmax(1)[:, None].squeeze(1), "probability distribution"),
    "percentages": (lambda z: z.detach().softmax(1) * 100, "probability distribution"),
    "one row of one sum": (lambda z: torch.tensor([[1.0, 0.0, 0.0]]), "probability distribution"),
    "sigmoid": (torch.sigmoid, "several labels for one sample"),
    "one sigmoid": (lambda z: Interface(num_classes=2, one_logit=True).logits(z[:, 0].sigmoid()), "sigmoid"),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED)
def test_probabilities_are_refused(made, message):
    with pytest.raises(ModelError, match=message):
        refuse_probabilities(made(Net().layer(X)))


TAKEN = {
    "logits": lambda z: z,
    "log-softmax": lambda z: z.log_softmax(1),
    "logits above zero": torch.relu,
    "the same logits for all": lambda z: z * 0 + torch.tensor([1.0, 2.0, 3.0]),
    "many of one sum": lambda z: 9.0 * torch.eye(3)[torch.arange(30) % 3],
    "few of one sum": lambda z: torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 2.0]]),
    "one logit": lambda z: Interface(num_classes=2, one_logit=True).logits(z[:, :1]),
}


@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN)
def test_logits_are_taken(made):
    assert refuse_probabilities(made(Net().layer(X))) is None
