"""A table that a network uses as input and as output: the cross term of both uses, exact."""

import pytest
import torch
from both_ways import exactly, streamed
from torch import nn

from gradscore.gradients import Engine, Factored, Tied
from gradscore.gradients.per_sample import TableRows, add

N, LENGTH, WORDS, WIDTH = 4, 5, 30, 3


class Tongue(nn.Module):
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


NETS = {
    "tied": {},
    "with a bias": {"bias": True},
    "with a word that has no gradient": {"padding": 1},
    "embedded twice": {"uses": 2},
}


@pytest.mark.parametrize("options", NETS.values(), ids=NETS)
@pytest.mark.parametrize("words", [WORDS, 4], ids=["words of all sorts", "few words, often"])
def test_equals_the_reference(options, words):
    torch.manual_seed(0)
    net = Tongue(**options).double()
    outputs = net(torch.randint(0, words, (N, LENGTH)))
    engine, grad_outputs = Engine(dict(net.named_parameters())), torch.randn_like(outputs)
    found = streamed(engine, outputs, grad_outputs)
    torch.testing.assert_close(found, exactly(engine.parameters, outputs, grad_outputs), rtol=1e-12, atol=1e-13)
    assert set(engine.coverage.values()) == {"rule"}


def test_the_table_is_not_written_out():
    torch.manual_seed(0)
    net = Tongue()
    outputs = net(torch.randint(0, WORDS, (N, LENGTH)))
    forms = {}
    engine = Engine({"table": net.table.weight})
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
    torch.manual_seed(0)
    left, right, values = torch.randn(N, 1, WORDS, 2), torch.randn(N, 1, WIDTH, 2), torch.randn(N, LENGTH, WIDTH)
    product = Factored(laid_out(left.double()), right.double(), (WORDS, WIDTH))
    index = torch.randint(0, WORDS, (N, LENGTH))
    whole = add([TableRows(index, values.double(), WORDS, (WORDS, WIDTH)), product])
    truth = (left.double() @ right.double().mT)[:, 0]
    for sample in range(N):
        truth[sample].index_add_(0, index[sample], values[sample].double())
    parts = [part.dense(slice(None)).flatten(1) for _, part in whole.parts(1 << 20)]
    torch.testing.assert_close(whole.dense(slice(None)), truth)
    torch.testing.assert_close(torch.cat(parts, 1).sort(1).values, truth.flatten(1).sort(1).values)
