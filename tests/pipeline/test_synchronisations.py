"""What an accelerator has to be waited for: a look at the outputs, one copy of a batch's values, and nothing else."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradscore
from gradscore.config import FeaturesConfig
from gradscore.extractor import Extractor
from gradscore.kernels import dispatch
from gradscore.statistics import measure

WAITING = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
"""Methods of tensors that wait until a device is done."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.attend, self.scale = nn.MultiheadAttention(4, 2, batch_first=True), nn.Parameter(torch.ones(4))
        self.table, self.last, self.head = nn.Embedding(16, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.conv(images)).relu().flatten(2).transpose(1, 2)
        places = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
        tokens = tokens + self.table(places)
        return self.head(self.last(self.attend(tokens, tokens, tokens)[0] * self.scale).mean(1))


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts the methods that wait, with the ways of computing that an accelerator has."""
    monkeypatch.setattr(measure, "as_array", lambda values: values.detach())
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    monkeypatch.setattr(measure, "_on_cpu", measure._on_accelerator)
    counts: Counter = Counter()

    def counting(name: str) -> None:
        method = getattr(torch.Tensor, name)

        def counted(self: torch.Tensor, *arguments: object, **options: object) -> object:
            counts[name] += 1
            return method(self, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)

    for name in WAITING:
        counting(name)
    return counts


@pytest.mark.parametrize("losses", [["pseudo_label"], ["pseudo_label", "uniform"]], ids=["one loss", "two losses"])
def test_one_copy_of_a_batch(losses: list[str], waited: Counter) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    extractor = Extractor(model, num_classes=3, features=FeaturesConfig(losses=losses))
    images = torch.randn(6, 3, 4, 4)
    extractor.prepare(images[:3])
    for _ in range(2):  # which are looked at, as the fourth is and the eighth
        extractor.values(images)
    waited.clear()
    extractor.values(images)
    # The truth value is whether the outputs are probabilities, which is asked before there is a backward pass.
    assert waited == {"__bool__": 1, "cpu": 1, "numpy": 1}


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(6, 3, 4, 4), torch.arange(6) % 3) for _ in range(count)]


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


CALLS = {
    "features of a loss": lambda model, data: gradscore.features(model, data, losses=cross_entropy),
    "projections": lambda model, data: gradscore.project(model, data, dim=64, loss="label"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_copy_for_every_parameter(call: Callable[[nn.Module, object], object], waited: Counter) -> None:
    """One more batch is waited for as often with a network of one layer as with one of many."""
    copies = []
    for model in (nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), Block().eval()):
        totals = []
        for count in (2, 3):
            waited.clear()
            call(model, batches(count))
            totals.append(waited.copy())
        copies.append(totals[1] - totals[0])
    assert copies[0] == copies[1]
    assert copies[1]["cpu"] <= 3
