"""Sick networks get exactly the finding that is theirs, at the layer that causes it; healthy ones get none."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo import HEALTHY, SICK, Between, Patient, on_digits

from gradscore.errors import CoupledSamplesError
from gradscore.inspect import GradHist1d, Inspector, MeanGSNR, OutputNorm, every, examine
from gradscore.inspect.saved_model import inspect_groups
from gradscore.losses import LOSSES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def findings(patient):
    return examine(patient.model, patient.images.split(16))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("sick", SICK.values(), ids=SICK)
def test_sick(sick):
    found = findings(sick.make())
    assert [(each.kind, each.layer) for each in found] == [(sick.kind, sick.layer)]
    assert set(sick.because) <= set(found[0].because)


@pytest.mark.parametrize(
    ("behind", "where"),
    [(True, "behind the last of its layers"), (False, r"in front of head \(Linear, layer 2 of 2\)")],
)
def test_outputs_that_no_layer_breaks(behind, where):
    patient = on_digits(Between(behind=behind))
    bright = int((patient.images.mean((1, 2, 3)) > -0.4).sum())
    (found,) = findings(patient)
    assert re.search(f"for {bright} of {len(patient.images)} samples.*{where}", found.sentence)


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_healthy(make):
    assert list(map(str, findings(make()))) == []


TRAINED = [
    name for name in HEALTHY if "one key" in name or "one query" in name or "one place" in name or "zero" in name
]


@pytest.mark.parametrize("name", TRAINED)
def test_healthy_while_it_trains(name):
    patient = HEALTHY[name]()
    optimizer = torch.optim.SGD(patient.model.train().parameters(), lr=0.01)
    with Inspector(patient.model, [], health=every(1)) as inspector:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(patient.model(patient.images), torch.arange(len(patient.images)) % 10).backward()
            optimizer.step()
    assert list(map(str, inspector.findings())) == []


def test_a_network_that_amplifies_rounding_is_looked_at_and_said_so():
    patient = SICK["exploding until only rounding is left"].make()
    samples = {"test": patient.images[:8]}
    found = inspect_groups(patient.model, samples, [GradHist1d(), MeanGSNR()], loss=LOSSES["pseudo_label"])
    assert [each.kind for each in found.findings] == ["exploding"]
    assert "or amplifies rounding until nothing else is left" in found.notices[0]
    histogram, _ = found.groups["test"]
    assert histogram.model.total + histogram.model.non_finite == 8 * sum(p.numel() for p in patient.model.parameters())


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Attending(nn.Module):
    """Attention that takes the samples of a batch for the tokens of one."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x[None] / 9, x[None], x[None])[0]


@pytest.mark.parametrize("kind", [Centred, Attending])
def test_samples_that_are_coupled_are_refused_still(kind):
    model = nn.Sequential(nn.Flatten(), kind(), nn.Linear(64, 10))
    samples = {"test": torch.randn(8, 1, 8, 8)}
    with pytest.raises(CoupledSamplesError, match="changes with the other samples"):
        inspect_groups(model, samples, [MeanGSNR()], loss=LOSSES["pseudo_label"])


class Doubled(nn.Module):
    """Works on its input in place, or on a copy; a layer is frozen at zero, so that it is tried what depends on it."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.side, self.last, self.in_place = (
            nn.Linear(64, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 10),
            in_place,
        )
        nn.init.zeros_(self.side.weight)

    def forward(self, x):
        x = x.mul_(2) if self.in_place else x * 2
        found = self.first(x.flatten(1)).relu()
        return self.last(found + self.side(found.detach()))


@pytest.mark.parametrize("quantities", [[GradHist1d, MeanGSNR, OutputNorm], [OutputNorm]], ids=["all", "outputs"])
def test_a_forward_that_changes_its_input_changes_nothing(quantities):
    images = torch.randn(20, 1, 8, 8)
    tables, findings = [], []
    for in_place in (True, False):
        torch.manual_seed(0)
        given, model = images.clone(), Doubled(in_place=in_place).eval()
        samples = {"test": given}
        found = inspect_groups(
            model, samples, [make() for make in quantities], loss=LOSSES["pseudo_label"], batch_size=8
        )
        tables.append(found.table())
        findings.append(found.findings)
        torch.testing.assert_close(given, images, rtol=0, atol=0)
    pd.testing.assert_frame_equal(*tables)
    assert findings[0] == findings[1]


class ComplexGate(nn.Module):
    """Has a branch that a complex parameter holds back until it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.gate = nn.Parameter(torch.zeros(16, dtype=torch.complex64))

    def forward(self, x):
        found = self.first(x.flatten(1)).relu()
        return self.last(found + (self.side(found) * self.gate).real)


def test_a_branch_that_a_complex_parameter_holds_back():
    assert findings(Patient(ComplexGate().eval(), torch.randn(24, 1, 8, 8))) == []


def test_the_documentation_names_the_zoo():
    text = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    part = text.partition("\n\nIn training a loss")[0].rpartition("\n\n")[2]
    written = {kind: names.split("; ") for kind, names in re.findall(r"^- (.*?): (.*)$", part, re.MULTILINE)}
    assert written == {
        kind: [name for name, each in SICK.items() if each.kind == kind]
        for kind in dict.fromkeys(each.kind for each in SICK.values())
    }
    healthy = re.search(
        r"^Nothing is found in (\d+) healthy networks .* (\d+) fresh and (\d+) trained", text, re.MULTILINE
    )
    fresh = sum("fresh" in name for name in HEALTHY)
    assert [int(count) for count in healthy.groups()] == [len(HEALTHY), fresh, len(HEALTHY) - fresh]
