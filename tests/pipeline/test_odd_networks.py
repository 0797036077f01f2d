"""Networks that are not odd to their users: parameters without axes, work in place, types of inputs."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import gradscore
from gradscore.errors import AmplifiedRoundingError, CoupledSamplesError, EngineError, ModelError

X = torch.rand(12, 6, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Logits times a learned number without axes, as CLIP has one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.linear(x)


class Beside(nn.Module):
    """A linear layer of what inputs and a parameter give."""

    def __init__(self, parameter: torch.Tensor, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.function, self.linear = nn.Parameter(parameter), function, nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.function(x, self.own))


def with_instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Tanh(), nn.Flatten(), nn.Linear(6, 4)
    )


ODD = {
    "a scale without axes": Scaled,
    "a limit without axes, which has no rule": lambda: Beside(torch.tensor(0.5), lambda x, own: x.clamp(max=own)),
    "an angle without axes, which has no rule": lambda: Beside(torch.tensor(0.5), torch.atan2),
    "one number of each sample": lambda: Beside(torch.randn(6), lambda x, own: x * (x @ own)[:, None]),
    "a gate": lambda: Beside(torch.tensor(0.5), lambda x, own: x * (x.mean(1) * own).sigmoid()[:, None]),
    "instance norm": with_instance_norm,
}


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_gradients_are_those_of_each_sample_alone(make) -> None:
    torch.manual_seed(0)
    model = make().eval().double()
    x = torch.rand(300, 6).double()
    found = gradscore.features(model, x, losses=["pseudo_label"], statistics=["l1", "max"])
    for row in range(0, len(x), 29):
        logits = model(x[row : row + 1])
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        for name, parameter in model.named_parameters():
            (gradient,) = torch.autograd.grad(loss, [parameter], retain_graph=True)
            assert found[f"pseudo_label/{name}/l1"][row] == pytest.approx(float(gradient.abs().sum()), rel=1e-8)
            assert found[f"pseudo_label/{name}/max"][row] == pytest.approx(float(gradient.max()), rel=1e-8)


@pytest.mark.parametrize("granularity", ["parameter", "module", "model"])
def test_a_parameter_without_axes_goes_into_every_group(granularity: str) -> None:
    found = gradscore.features(Scaled().eval(), X, granularity=granularity)
    features = found[[name for name in found.columns if "/" in name]]
    assert features.notna().all(axis=None)
    assert (features > 0).any(axis=None)


def test_work_in_place_on_inputs_is_no_trouble() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 4)
    given = X - 0.5
    before = given.clone()
    in_place = gradscore.features(nn.Sequential(nn.ReLU(inplace=True), linear).eval(), given)
    beside = gradscore.features(nn.Sequential(nn.ReLU(), linear).eval(), given)
    assert in_place.equals(beside)
    assert given.equal(before)


def test_whole_numbers_are_named_as_such() -> None:
    with pytest.raises(ModelError, match=r"inputs are torch.uint8: give floats"):
        gradscore.features(nn.Linear(6, 4).eval(), (X * 255).to(torch.uint8))


class Changed(nn.Module):
    """A linear layer whose logits a function changes, which may count how often it was called."""

    def __init__(self, change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.change, self.calls = nn.Linear(6, 4), change, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.change(self.linear(x), self.calls)


COUPLED = {
    "times the number of samples": (lambda logits, _: logits * (1 + 0.001 * len(logits)), "with the size of its batch"),
    "another size of batches": (
        lambda logits, _: logits + (len(logits) > 8) * torch.arange(4),
        "with the size of its batch.*: it looks at how many there are",
    ),
    "in another order": (lambda logits, _: logits.flip(0), "with the other samples of its batch"),
    "less their mean": (lambda logits, _: logits - 0.01 * logits.mean(0), "with the other samples of its batch"),
    "a state": (lambda logits, calls: logits * (1 + 0.001 * calls), "other outputs a second time .* it keeps"),
}


FEATURES = [*zip(COUPLED, itertools.cycle(["linear", True])), ("another size of batches", False), ("a state", False)]


@pytest.mark.parametrize(("name", "penultimate"), FEATURES)
def test_samples_that_depend_on_each_other_are_named_before_the_last_layer(name: str, penultimate: str | bool) -> None:
    change, message = COUPLED[name]
    with pytest.raises((CoupledSamplesError, AmplifiedRoundingError), match=message):
        gradscore.features(Changed(change).eval(), X, penultimate=penultimate)


class Experts(nn.Module):
    """Each sample goes to one of two experts, which take at most so many of a batch; others pass them by."""

    def __init__(self, capacity: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.capacity, self.experts = capacity, nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.out = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            taken = ((x[:, 0] > 0.5) == bool(number)).nonzero()[: int(self.capacity * len(x)), 0]
            hidden = hidden.index_add(0, taken, expert(x[taken]))
        return self.out(hidden)


@pytest.mark.parametrize("losses", [["pseudo_label"], []], ids=["gradients", "logits alone"])
@pytest.mark.parametrize("penultimate", [True, False], ids=["features", "no features"])
def test_experts_that_take_only_so_many_of_a_batch_are_refused(losses: list[str], penultimate: bool) -> None:
    """Three samples are too few to show it."""
    x = torch.cat([X, X.flip(1)])
    settings = {"losses": losses, "statistics": ["l2"], "penultimate": penultimate}
    with pytest.raises(CoupledSamplesError, match="changes with the"):
        gradscore.features(Experts(0.5).eval(), x, **settings)
    assert len(gradscore.features(Experts(1.0).eval(), x, **settings)) == len(x)


class Normalised(Scaled):
    """Takes the mean of a batch off where one of its numbers is large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0) if x.max() > 5 else x)


class Counted(Scaled):
    """Changes what it does after so many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return super().forward(x if self.seen < 150 else 2 * x)


LATE = {"mean of a batch": (Normalised, "other samples"), "counter": (Counted, "keeps something from one batch")}


@pytest.mark.parametrize(("kind", "message"), LATE.values(), ids=LATE)
def test_samples_that_depend_on_each_other_in_later_batches(kind: type[nn.Module], message: str) -> None:
    x = torch.rand(160, 6, generator=torch.Generator().manual_seed(1))
    x[60:] *= 10
    with pytest.raises(CoupledSamplesError, match=rf"batch (8|16), after others .*{message}"):
        gradscore.features(kind().eval(), x, losses=["pseudo_label"], statistics=["l2"], batch_size=10)


class Clamped(torch.autograd.Function):
    """Gradients of a limited size."""

    @staticmethod
    def forward(_context, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-0.01, 0.01)


def hooked(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    found = x * own
    if found.requires_grad:
        found.register_hook(lambda gradient: torch.where(gradient.abs() < 0.001, 0, gradient))
    return found


NOT_LINEAR = {
    "a clamp": lambda: Beside(torch.ones(6), lambda x, own: Clamped.apply(x * own)),
    "a threshold": lambda: Beside(torch.ones(6), hooked),
}


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
@pytest.mark.parametrize("make", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_gradients_that_do_not_follow_the_size_of_the_loss_are_refused(make) -> None:
    model = make().eval()
    for losses in (["entropy"], lambda logits: -logits.log_softmax(1).amax(1)):
        with pytest.raises(EngineError, match=r"a hook or an autograd.Function changes gradients by their size"):
            gradscore.features(model, X, losses=losses)


class Hidden(nn.Module):
    """Two layers, with a change between them that no gradient shows; softmax does not see what all logits share."""

    def __init__(self, change, shared: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.change, self.shared = nn.Linear(6, 6), nn.Linear(6, 4), change, shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(hidden + self.change(hidden.detach())) + self.shared


def quantised(hidden: torch.Tensor) -> torch.Tensor:
    step = hidden.max() / 255
    return (hidden / step).round() * step - hidden


LITTLE = {
    "of their mean": (lambda hidden: -0.02 * hidden.mean(0), 0.0),
    "beside large logits": (lambda hidden: -0.02 * hidden.mean(0), 1000.0),
    "the steps of their numbers": (quantised, 0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("change", "shared"), LITTLE.values(), ids=LITTLE)
def test_a_little_of_other_samples_is_too_much(change, shared: float, dtype: torch.dtype) -> None:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(CoupledSamplesError, match="with the other samples of its batch"):
        gradscore.features(Hidden(change, shared).eval().to(dtype), x)
    assert len(gradscore.features(Hidden(torch.zeros_like, shared).eval().to(dtype), x)) == 40


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_losses_of_ones_own_have_the_gradients_that_hooks_leave() -> None:
    model = NOT_LINEAR["a clamp"]().eval()
    found = gradscore.features(model, [X], losses=lambda net, x: -net(x).log_softmax(1).amax(1), statistics=["l1"])
    for row in range(len(X)):
        (gradient,) = torch.autograd.grad(-model(X[row : row + 1]).log_softmax(1).amax(), [model.own])
        assert found[next(name for name in found if name.endswith("own/l1"))][row] == pytest.approx(
            float(gradient.abs().sum()), rel=1e-5
        )


class Nested(nn.Module):
    """Its middle layer takes rows of several lengths in one nested tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.as_nested_tensor([each.expand(1 + int(each[0] > 0.5), -1) for each in x])
        return self.last(self.middle(rows).to_padded_tensor(0.0, (len(x), 2, 4)).sum(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"nested tensors \(.*Backward0\).*; pad them"):
        gradscore.features(Nested().eval(), X)


class NoneAlone(nn.Linear):
    """Fails with an error of its own where a batch has one sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if len(x) > 1 else {}["one"]


def test_a_network_that_takes_no_sample_alone_is_refused_whatever_it_raises() -> None:
    with pytest.raises(CoupledSamplesError, match=r"takes 3 samples but not one of them alone \(KeyError: 'one'\)"):
        gradscore.features(NoneAlone(6, 4).eval(), X)


def test_values_are_those_of_a_program_without_a_default_device() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).eval()
    labels = torch.arange(12) % 4
    wanted = gradscore.features(model, (X, labels), losses=["label", "entropy"])
    with torch.device("meta"):
        found = gradscore.features(model, (X, labels), losses=["label", "entropy"])
        unlabelled = gradscore.features(model, [X[:6], X[6:]], losses=["entropy"])
        projected = gradscore.project(model, X, dim=64).values
    assert found.equals(wanted)
    assert unlabelled.filter(like="entropy").equals(wanted.filter(like="entropy"))
    np.testing.assert_array_equal(projected, gradscore.project(model, X, dim=64).values)


@pytest.mark.parametrize("seed", range(4))
def test_an_encoder_in_bf16_is_not_taken_for_one_of_coupled_samples(seed: int) -> None:
    torch.manual_seed(seed)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(48, 4)).eval()
    found = gradscore.features(model, torch.randn(32, 6, 8), losses=["uniform"], autocast="bf16")
    assert np.isfinite(found.filter(like="uniform").to_numpy()).all()
    assert torch.backends.mha.get_fastpath_enabled()
