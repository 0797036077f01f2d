"""What an accelerator has to be waited for: a look at the outputs, one copy of a batch's values, and nothing else."""

from collections import Counter

import pytest
import torch
from torch import nn

from gradscore.config import FeaturesConfig
from gradscore.features.extractor import Extractor
from gradscore.kernels import dispatch
from gradscore.statistics import measure, moments

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
    for place in (moments, measure):
        monkeypatch.setattr(place, "native", lambda values: values.detach())
    monkeypatch.setattr(dispatch, "_loops", lambda: None)
    monkeypatch.setattr(measure, "_in_fast_blocks", measure._in_exact_blocks)
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
    groups = {name: [name] for name, _ in model.named_parameters()}
    extractor = Extractor(model, num_classes=3, features=FeaturesConfig(losses=losses), groups=groups)
    images = torch.randn(6, 3, 4, 4)
    extractor.prepare(images[:3])
    extractor.values(images)
    waited.clear()
    extractor.values(images)
    # The truth value is whether the outputs are probabilities, which is asked before there is a backward pass.
    assert waited == {"__bool__": 1, "cpu": 1, "numpy": 1}
