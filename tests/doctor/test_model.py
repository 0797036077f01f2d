"""One tiny model for each finding."""

import re

import pytest
import torch
from torch import nn

from gradscore import check_model
from gradscore.errors import ConfigError, DataError

CLASSES = 3


def linear(inputs=4):
    return nn.Linear(inputs, CLASSES)


def network(*middle):
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, CLASSES))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head = linear()

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))


class Forward(nn.Module):
    """A linear layer and what is made of it."""

    def __init__(self, function):
        super().__init__()
        self.layer = linear()
        self.function = function

    def forward(self, x):
        return self.function(self.layer, x)


class Extra(nn.Sequential):
    """A network with a parameter that nothing depends on."""

    def __init__(self):
        super().__init__(linear())
        self.extra = nn.Parameter(torch.ones(2))


def frozen(names):
    model = network(nn.ReLU())
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def filled(value, dtype=torch.float32):
    model = network(nn.ReLU()).to(dtype)
    nn.init.constant_(model[0].weight, value)
    return model


def faint():
    """Its first layer has gradients near 1e-6, which float16 rounds to a few bits."""
    model = network(nn.Tanh()).half()
    nn.init.normal_(model[2].weight, std=2e-6)
    return model


ALL = tuple(name for name, _ in network(nn.ReLU()).named_parameters())

FINDINGS = {
    "batch norm in training mode": (
        lambda: network(nn.BatchNorm1d(6)).train(),
        "problem: batch norm in training mode: 1: .*model.eval()",
    ),
    "dropout in training mode": (
        lambda: network(nn.Dropout(0.1)).train(),
        "problem: dropout in training mode: 1: .*model.eval()",
    ),
    "training mode": (lambda: network(nn.ReLU()).train(), "warning: training mode: the model, 0, 1, 2"),
    "batch norm without statistics": (
        lambda: network(nn.BatchNorm1d(6, track_running_stats=False)),
        "problem: batch norm without running statistics: 1: .*track_running_stats=True",
    ),
    "coupled samples": (
        lambda: Forward(lambda layer, x: layer(x - x.mean(0))),
        "problem: coupled samples: the model's output for a sample changes with the other samples",
    ),
    "coupled losses": (
        lambda: network(nn.BatchNorm1d(6, track_running_stats=False)),
        "problem: coupled samples: the model takes 4 samples but not one of them alone",
    ),
    "no parameters": (nn.Identity, "problem: no parameters"),
    "all frozen": (lambda: frozen(ALL), "problem: frozen parameters: all of them.*requires_grad_"),
    "some frozen": (
        lambda: frozen(["0.weight"]),
        "warning: frozen parameters: 0.weight: .*features.parameters",
    ),
    "unused": (Extra, "warning: unused parameters: extra: .*features.parameters"),
    "shared": (Shared, "note: shared parameters: first.weight = second.weight"),
    "weights that are not finite": (
        lambda: filled(float("nan")),
        "problem: parameters that are not finite: 0.weight: the checkpoint is damaged",
    ),
    "logits that are not finite": (
        lambda: Forward(lambda layer, x: layer(x) / 0),
        "problem: logits that are not finite: for 16 of 16 inputs",
    ),
    "gradients that are not finite": (
        lambda: Forward(lambda layer, x: layer(x) + (layer(x) * 0).sqrt()),
        "problem: gradients that are not finite: layer.weight, layer.bias, for 16 of 16 inputs",
    ),
    "gradients that vanish": (
        lambda: Forward(lambda layer, x: layer(x) * 0 + x[:, :CLASSES]),
        "problem: gradients that vanish: all are zero for 16 of 16 inputs",
    ),
    "parameters without effect": (
        lambda: network(nn.Sequential(nn.Hardtanh(5, 6))),
        "warning: parameters without effect: 0.weight, 0.bias: .*dead",
    ),
    "underflow": (faint, "warning: underflow: 0.(weight|bias).*float16"),
    "outputs at random": (
        lambda: Forward(lambda layer, x: layer(x) + torch.randn(len(x), CLASSES)),
        "problem: outputs at random: two calls",
    ),
    "equal outputs": (lambda: Forward(lambda layer, x: layer(x * 0)), "warning: outputs: equal for all inputs"),
    "no logits": (
        lambda: Forward(lambda layer, x: {"first": layer(x), "second": layer(x)}),
        r"problem: outputs: wanted logits of shape .samples, classes., got dict of first .*by model.output",
    ),
    "softmax": (lambda: Forward(lambda layer, x: layer(x).softmax(1)), "problem: outputs: every row is a probability"),
    "sigmoid": (lambda: Forward(lambda layer, x: layer(x).sigmoid()), "problem: outputs: they went through a sigmoid"),
    "sigmoid by hand": (
        lambda: Forward(lambda layer, x: 1 / (1 + torch.exp(-layer(x)).repeat(1, 2))),
        "warning: outputs: all lie between 0 and 1",
    ),
    "no logits, other shape": (
        lambda: Forward(lambda layer, x: layer(x).sum(1)),
        "problem: outputs: wanted logits of shape .samples, classes., got shape .16,.; set model.num_classes to 1 if",
    ),
    "other inputs": (lambda: linear(5), "problem: inputs: the model cannot take inputs of shape .4,.: mat1"),
    "no rule": (
        lambda: Forward(lambda layer, x: torch.atan2(layer.weight[:, 0], layer(x))),
        "warning: slow gradients: layer.weight: reference.*features.parameters",
    ),
    "coverage": (lambda: network(nn.ReLU()), "note: coverage: 4 parameters: 4 by rule"),
    "compiled": (
        lambda: torch.compile(network(nn.ReLU()), backend="eager"),
        "problem: hidden parameters: the model is compiled .*compiled._orig_mod",
    ),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def batch_for(model, samples=16):
    types = [parameter.dtype for parameter in model.parameters()]
    return torch.randn(samples, 4, dtype=types[0] if types else torch.float32)


def lines(diagnosis):
    return "\n".join(map(str, diagnosis.remarks))


@pytest.mark.parametrize(("make", "expected"), FINDINGS.values(), ids=FINDINGS)
def test_finds(make, expected):
    model = make().train("training mode" in expected)
    diagnosis = check_model(model, batch_for(model))
    assert re.search(f"^{expected}", lines(diagnosis), re.MULTILINE), lines(diagnosis)
    assert diagnosis.usable == ("problem: " not in lines(diagnosis))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_sound_model(dtype):
    diagnosis = check_model(network(nn.ReLU()).eval().to(dtype), torch.randn(16, 4, dtype=dtype))
    assert [remark.severity for remark in diagnosis.remarks] == ["note"]
    assert diagnosis.usable
    assert diagnosis.coverage == dict.fromkeys(ALL, "rule")
    assert repr(diagnosis) == f"Diagnosis(usable, 1 note, {len(ALL)} parameters looked at)"


def test_changes_nothing():
    model = network(nn.BatchNorm1d(6), nn.Dropout()).train()
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(model, torch.randn(16, 4))
    assert [module.training for module in model.modules()] == [True, True, True, False, True]
    torch.testing.assert_close(model.state_dict(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


SAMPLES = {"none": (0, "problem: empty batch: .*at least two"), "one": (1, "note: a single input: .*larger batch")}


@pytest.mark.parametrize(("samples", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_small_batches(samples, expected):
    assert re.search(expected, lines(check_model(network(nn.ReLU()).eval(), torch.randn(samples, 4))))


def one_hot(labels):
    return 5 * nn.functional.one_hot(labels, CLASSES).float()


class Known(nn.Module):
    """Its logits are its inputs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x.flatten(1)[:, :CLASSES] * self.scale


LABELS = torch.arange(120) % CLASSES
ACCURACIES = {
    "as declared": (LABELS, 0.98, "^note: accuracy: 1.000 on 120 inputs, declared is 0.980$"),
    "nothing declared": (LABELS, None, "^note: accuracy: 1.000 on 120 inputs; set declared_accuracy to"),
    "no labels": (torch.full((120,), -1), 0.98, "^note: accuracy: unknown: no input has a label$"),
    "some labels": (LABELS.where(LABELS > 0, -1), 0.98, "^note: accuracy: 1.000 on 80 inputs"),
    "other names of the classes": (
        (LABELS + 1) % CLASSES,
        0.98,
        r"^problem: accuracy: 0.000 on 120 inputs.*: change labels by \{0: 2, 1: 0, 2: 1\}",
    ),
    "far too low": (LABELS.flip(0).roll(7), 0.9, "^problem: accuracy: .*declared is 0.900; "),
    "random labels": (
        torch.randint(0, CLASSES, (120,), generator=torch.Generator().manual_seed(0)),
        0.9,
        "^problem: accuracy: .*check weights, labels, mean and std$",
    ),
    "better than chance on few": (
        torch.cat([LABELS[:30], (LABELS[30:40] + 1) % CLASSES, (LABELS[40:50] + 2) % CLASSES]),
        None,
        "^(note|warning): accuracy: 0.600 on 50 inputs(?!, which is chance)",
    ),
    "chance": (
        torch.randint(0, CLASSES, (120,), generator=torch.Generator().manual_seed(0)),
        None,
        "^problem: accuracy: .*which is chance; check weights",
    ),
    "far too high": (LABELS, 0.4, "^warning: accuracy: .*are these inputs the training data"),
    "within the error of few samples": (LABELS[:8], 0.6, "^note: accuracy: 1.000 on 8 inputs, declared is 0.600$"),
}


def test_the_order_of_the_classes_is_told_where_some_are_confused_as_well():
    labels = torch.arange(300) % 3
    outputs = (labels + 1) % 3
    outputs[::9] = 2  # of label 0, whose output is 1
    outputs[2::3][::2] = 1  # half of label 2 is taken for label 0
    inputs = 5 * nn.functional.one_hot(outputs, 3).float()
    found = lines(check_model(Known().eval(), inputs, labels=labels))
    assert "with the classes in another order; check weights, labels, mean and std. If the order is the cause" in found
    assert "change labels by {0: 1, 1: 2, 2: 0}\n" in found


def test_classes_of_minus_one_and_one_are_a_problem():
    diagnosis = check_model(nn.Linear(4, 2).eval(), torch.randn(20, 4), labels=2 * (torch.arange(20) % 2) - 1)
    assert "problem: labels: inputs: its labels are -1 and 1, and -1 stands for no label" in lines(diagnosis)


@pytest.mark.parametrize(("labels", "declared", "expected"), ACCURACIES.values(), ids=ACCURACIES)
def test_accuracy(labels, declared, expected):
    inputs = one_hot(LABELS[: len(labels)])
    diagnosis = check_model(Known().eval(), inputs, labels=labels, declared_accuracy=declared)
    assert re.search(expected, lines(diagnosis), re.MULTILINE), lines(diagnosis)


@pytest.mark.parametrize("recognised", [False, True], ids=["not recognised", "recognised"])
def test_levels_of_images_are_told_where_no_accuracy_says_that_they_are_right(recognised: bool) -> None:
    images = torch.full((60, 3, 2, 2), 100.0) + torch.randn(60, 3, 2, 2)
    labels = Known()(images).argmax(1) if recognised else torch.randint(0, CLASSES, (60,))
    found = lines(check_model(Known().eval(), images, labels=labels, declared_accuracy=None if recognised else 0.9))
    assert re.search(r"the inputs have mean (99|100)\.\d\d, .* and standard deviation", found)


BAD = {
    "loss": ({"loss": "hinge"}, "no loss 'hinge'; valid: pseudo_label, uniform, entropy"),
    "labels": (
        {"labels": torch.zeros(3, dtype=torch.int64)},
        r"labels have shape \(3,\) for 16 inputs; wanted \(16,\)",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_arguments(options, message):
    with pytest.raises(ConfigError, match=message):
        check_model(linear().eval(), torch.randn(16, 4), **options)


LOADED = {
    "loader": lambda x, y: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5),
    "generator": lambda x, y: (pair for pair in zip(x.split(7), y.split(7), strict=True)),
    "pair": lambda x, y: (x.numpy(), y.numpy()),
}


@pytest.mark.parametrize("form", LOADED.values(), ids=LOADED)
def test_a_loader_is_looked_at_like_a_batch(form) -> None:
    model, inputs = network(nn.ReLU()).eval(), torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(300) % 2
    wanted = check_model(model, inputs[:256], labels=labels[:256])
    assert check_model(model, form(inputs, labels)) == wanted


def test_a_loader_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="batch: wanted samples, got none"):
        check_model(network(nn.ReLU()).eval(), [])
