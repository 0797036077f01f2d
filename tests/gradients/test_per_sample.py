"""Sums of contributions to a table that a network uses as input and as output: the cross term of both uses, exact."""

import pytest
import torch
from both_ways import assert_reference
from torch import nn

from gradscore.gradients import Engine, Factored, TableRows, Tied
from gradscore.gradients.per_sample import add

N, LENGTH, WORDS, WIDTH = 4, 5, 30, 3


class LanguageModel(nn.Module):
    """Embeds words, mixes those of a sample, and predicts words with the same table."""

    def __init__(self, *, padding=None, bias=False, uses=1):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        self.head.weight = self.table.weight
        self.uses = uses

    def forward(self, words):
        hidden = sum(self.table(words.roll(use, 1)) for use in range(self.uses))
        return self.head(self.mix(hidden).cumsum(1).tanh())


CASES = {
    "all sorts of words": (WORDS, {}),
    "few words, often": (4, {}),
    "with a bias": (WORDS, {"bias": True}),
    "with a word that has no gradient": (4, {"padding": 1}),
    "embedded twice": (WORDS, {"uses": 2}),
}


@pytest.mark.parametrize(("words", "options"), CASES.values(), ids=CASES)
def test_tied_tables_equal_the_reference(words, options):
    model = LanguageModel(**options).double()
    engine = Engine(dict(model.named_parameters()))
    assert_reference(engine, model(torch.randint(0, words, (N, LENGTH))), rtol=1e-12, atol=1e-13)
    assert set(engine.coverage.values()) == {"rule"}


def test_a_tied_table_is_not_written_out():
    model = LanguageModel()
    outputs = model(torch.randint(0, WORDS, (N, LENGTH)))
    forms = {}
    engine = Engine({"table": model.table.weight})
    engine.stream(outputs, torch.ones_like(outputs), lambda name, rows, gradient: forms.update({name: gradient}))
    assert isinstance(forms["table"], Tied)
    unused, used = (part for _, part in forms["table"].parts(1 << 20))
    assert isinstance(unused, Factored)
    assert (unused.shape, used.shape) == ((WORDS - LENGTH, WIDTH), (LENGTH, WIDTH))


MEMORY = {
    "rows side by side": lambda left: left.contiguous(),
    "columns side by side": lambda left: left.mT.contiguous().mT,
}


@pytest.mark.parametrize("laid_out", MEMORY.values(), ids=MEMORY)
def test_parts_are_all_of_it_however_factors_lie_in_memory(laid_out):
    shapes = (N, 1, WORDS, 2), (N, 1, WIDTH, 2), (N, LENGTH, WIDTH)
    left, right, values = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    index = torch.randint(0, WORDS, (N, LENGTH))
    shape = (WORDS, WIDTH)
    whole = add([TableRows(index, values, WORDS, shape), Factored(laid_out(left), right, shape)])
    truth = (left @ right.mT)[:, 0]
    for sample in range(N):
        truth[sample].index_add_(0, index[sample], values[sample])
    parts = [part.dense(slice(None)).flatten(1) for _, part in whole.parts(1 << 20)]
    torch.testing.assert_close(whole.dense(slice(None)), truth)
    torch.testing.assert_close(torch.cat(parts, 1).sort(1).values, truth.flatten(1).sort(1).values)
