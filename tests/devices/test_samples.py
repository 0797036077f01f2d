"""Samples that are no images, and losses of the caller's own, on a device as on the processor."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from layers import Recurrent
from torch import nn

import gradscore


class Pair(nn.Module):
    """Takes words and numbers, by name."""

    def __init__(self):
        super().__init__()
        self.words, self.numbers, self.head = nn.EmbeddingBag(20, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, words, numbers):
        return self.head((self.words(words) + self.numbers(numbers)).tanh())


class Words(nn.Module):
    """The next word from those before."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        return self.layer(self.table(words), src_mask=mask, is_causal=True) @ self.table.weight.t()


def next_words(model, words):
    return F.cross_entropy(model(words)[:, :-1].mT, words[:, 1:], reduction="none")


def words():
    return torch.randint(0, 20, (30, 7), generator=torch.Generator().manual_seed(0))


def numbers():
    return torch.randn(30, 4, generator=torch.Generator().manual_seed(1))


CASES = {
    "inputs by name": (Pair, lambda: [{"words": words(), "numbers": numbers()}], {}),
    "recurrent layers": (Recurrent, words, {}),
    "losses of words": (Words, lambda: words().split(8), {"losses": next_words}),
    "losses of each word": (Words, lambda: words().split(8), {"losses": next_words, "tokens": "each"}),
}


@pytest.mark.parametrize(("make", "data", "options"), CASES.values(), ids=CASES)
def test_features(make, data, options, device):
    torch.manual_seed(0)
    model = make().eval()
    with torch.backends.cudnn.flags(enabled=False):  # it differentiates recurrent layers in training mode alone
        expected = gradscore.features(model, data(), statistics=["max", "std", "l2"], **options)
        found = gradscore.features(model.to(device), data(), statistics=["max", "std", "l2"], **options)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-6)


def test_samples_that_are_there_already(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval().to(device)
    there = gradscore.features(model, numbers().to(device), statistics="l2")
    pd.testing.assert_frame_equal(there, gradscore.features(model, numbers(), statistics="l2"))
