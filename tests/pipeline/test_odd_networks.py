"""Networks that are not odd to their users: parameters without axes, work in place, types of inputs."""

import itertools

import pytest
import torch
from torch import nn

import gradscore
from gradscore.errors import AmplifiedRoundingError, CoupledSamplesError, ModelError

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


def test_a_parameter_without_axes_has_the_gradient_of_each_sample() -> None:
    model = Scaled().eval().double()
    found = gradscore.features(model, X.double(), losses=["pseudo_label"], statistics=["l1", "max"])
    for row in range(len(X)):
        logits = model(X[row : row + 1].double())
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        (gradient,) = torch.autograd.grad(loss, [model.scale])
        assert found["pseudo_label/scale/l1"][row] == pytest.approx(float(gradient.abs()), rel=1e-9)


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
    "in another order": (lambda logits, _: logits.flip(0), "with the other images of its batch"),
    "less their mean": (lambda logits, _: logits - 0.01 * logits.mean(0), "with the other images of its batch"),
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


LATE = {"mean of a batch": (Normalised, "other images"), "counter": (Counted, "keeps something from one batch")}


@pytest.mark.parametrize(("kind", "message"), LATE.values(), ids=LATE)
def test_samples_that_depend_on_each_other_in_later_batches(kind: type[nn.Module], message: str) -> None:
    x = torch.rand(160, 6, generator=torch.Generator().manual_seed(1))
    x[60:] *= 10
    with pytest.raises(CoupledSamplesError, match=rf"batch (8|16), after others .*{message}"):
        gradscore.features(kind().eval(), x, losses=["pseudo_label"], statistics=["l2"], batch_size=10)
