"""What was learnt of a first batch is not believed of batches that differ from it in more than their numbers."""

import pytest
import torch
from both_ways import exactly, streamed
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradscore.errors import CoupledSamplesError
from gradscore.gradients import Engine, GradientWarning
from gradscore.gradients.engine import OFTEN


def agrees(engine: Engine, outputs: Tensor) -> None:
    """Every gradient of every sample is that of a backward pass of its own."""
    gradient = torch.randn_like(outputs)
    truth = exactly(engine.parameters, outputs, gradient)
    found = streamed(engine, outputs, gradient)
    for name, expected in truth.items():
        torch.testing.assert_close(found[name], expected, msg=lambda text, name=name: f"{name}: {text}")


def engine_of(model: nn.Module) -> Engine:
    return Engine(dict(model.named_parameters()))


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.double()


class LastToken(TwoLayers):
    """Tokens first, and the last one of each sample is looked at."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.transpose(0, 1)))
        return self.last(hidden[lengths - 1, torch.arange(len(x))])


@pytest.mark.parametrize(
    ("tokens", "lengths"), [(16, [3, 7, 11, 15]), (8, [2, 4, 6, 8]), (64, [12, 28, 44, 60]), (3, [1, 2, 3])], ids=str
)
def test_rows_that_fit_another_layout_by_chance(tokens: int, lengths: list[int]) -> None:
    model = LastToken()
    engine = engine_of(model)
    for given in (lengths, lengths[::-1], [tokens] * len(lengths), [1, *lengths, tokens, 2]):
        x = torch.randn(len(given), tokens, 5, dtype=torch.float64)
        agrees(engine, model(x, torch.tensor(given)))


class FirstToken(TwoLayers):
    """A transformer's way: samples first, and the first token of each is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))[:, 0])


def test_what_fits_another_layout_and_goes_on_fitting_is_not_looked_at_again(monkeypatch) -> None:
    """With T = N + 1 the row of sample n is n (T + 1), so it is n modulo N too, in every batch."""
    model = FirstToken()
    engine = engine_of(model)
    agrees(engine, model(torch.randn(4, 5, 5, dtype=torch.float64)))
    monkeypatch.setattr("gradscore.gradients.engine.make_plan", None)
    for _ in range(2):
        agrees(engine, model(torch.randn(4, 5, 5, dtype=torch.float64)))


class Sorted(TwoLayers):
    """Samples in the order of a number of theirs, and back."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.last(self.picked(torch.tanh(self.first(self.picked(x, order))), order.argsort()))

    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return x[order]


class Selected(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return x.index_select(0, order)


class Gathered(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return x.gather(0, order.unsqueeze(1).expand_as(x))


class Stacked(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return torch.stack([x[place] for place in order.tolist()])


class PutBack(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, order.argsort(), x)


class ByProduct(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return nn.functional.one_hot(order, len(x)).to(x.dtype) @ x


class ByEinsum(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return torch.einsum("ji,id->jd", nn.functional.one_hot(order, len(x)).to(x.dtype), x)


class ByTable(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return nn.functional.embedding(order, x)


class ByAttention(Sorted):
    """Each sample attends to one, by the kernel that PyTorch has for it."""

    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        mask = nn.functional.one_hot(order, len(x)).to(x.dtype).log().clamp(min=-1e4)[None, None]
        values = x[None, None]
        return nn.functional.scaled_dot_product_attention(0 * values, values, values, attn_mask=mask)[0, 0]


class ByAttentionInParts(ByAttention):
    """The same by products and a softmax. PyTorch itself chooses by version, number of axes and device."""

    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().picked(x, order)


class BySlices(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for row, place in enumerate(order.tolist()):
            found[row : row + 1] = x[place : place + 1]
        return found


class FromTheEnd(Sorted):
    def picked(self, x: Tensor, order: Tensor) -> Tensor:
        return x.gather(-2, order.unsqueeze(1).expand_as(x))


ORDERS = [Sorted, Selected, Gathered, Stacked, PutBack, ByProduct, ByEinsum, ByTable, ByAttention, BySlices, FromTheEnd]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_samples_in_another_order(kind: type[Sorted]) -> None:
    model = kind()
    engine = engine_of(model)
    x = torch.randn(8, 5, dtype=torch.float64)
    agrees(engine, model(x[x[:, 0].argsort()]))
    for _ in range(3):
        agrees(engine, model(torch.randn(8, 5, dtype=torch.float64)))


class OneNumber(nn.Module):
    """One number for each sample, whose only axis is the first and the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        order = x.argsort()
        moved = (x.gather(-1, order) * self.scale[0]).tanh().gather(-1, order.argsort())
        return torch.stack([moved, x * self.scale[1]], 1)


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_samples_that_are_numbers_in_another_order() -> None:
    model = OneNumber()
    engine = engine_of(model)
    agrees(engine, model(torch.randn(6, dtype=torch.float64).sort()[0]))
    for _ in range(3):
        agrees(engine, model(torch.randn(6, dtype=torch.float64)))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_products_of_attention_from_sample_to_sample_are_refused() -> None:
    model = ByAttentionInParts()
    engine = engine_of(model)
    x = torch.randn(8, 5, dtype=torch.float64)
    agrees(engine, model(x[x[:, 0].argsort()]))
    with pytest.raises(CoupledSamplesError, match="mixes the samples"):
        agrees(engine, model(x))


class TokensFirst(TwoLayers):
    """Samples in the order of a number of theirs, along the second axis."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[0, :, 0].argsort()
        hidden = torch.tanh(self.first(x.gather(1, order[None, :, None].expand_as(x))))
        return self.last(hidden.gather(1, order.argsort()[None, :, None].expand_as(hidden)).mean(0))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
@pytest.mark.parametrize("tokens", [4, 6, 8])
def test_samples_in_another_order_on_the_second_axis(tokens: int) -> None:
    model = TokensFirst()
    engine = engine_of(model)
    x = torch.randn(tokens, 4, 5, dtype=torch.float64)
    agrees(engine, model(x[:, x[0, :, 0].argsort()]))
    for _ in range(3):
        agrees(engine, model(torch.randn(tokens, 4, 5, dtype=torch.float64)))


class Dispatched(nn.Module):
    """Experts that get their tokens by a product with a matrix of zeros and ones, as GShard's do."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.route, self.expert = nn.Linear(5, experts), nn.Parameter(torch.randn(experts, 5, 6))
        self.last = nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        chosen = nn.functional.one_hot(self.route(x).argmax(1), self.expert.shape[0]).to(x.dtype)
        place = (chosen.cumsum(0) * chosen).sum(1).long() - 1
        sent = torch.einsum("se,sc->sec", chosen, nn.functional.one_hot(place, len(x)).to(x.dtype))
        found = torch.bmm(torch.einsum("sec,sd->ecd", sent, x * 1.0), self.expert)
        return self.last(torch.tanh(torch.einsum("sec,ecf->sf", sent, found)))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
@pytest.mark.parametrize("experts", [2, 3, 4])
def test_tokens_that_a_product_deals_out(experts: int) -> None:
    model = Dispatched(experts)
    engine = engine_of(model)
    for samples in (2, 3, 3, 8, 8, 4, 4):
        agrees(engine, model(torch.randn(samples, 5, dtype=torch.float64)))


class Adapted(TwoLayers):
    """A frozen weight with a low-rank addition, normalised weights, and attention over the tokens of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 5))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.double()
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.linear(x, self.first.weight + self.one @ self.two, self.first.bias)
        hidden = self.normed(torch.tanh(hidden))
        return self.last(
            torch.einsum("ntd,df->ntf", self.attention(hidden, hidden, hidden)[0], self.one[:, :1]).flatten(1)
        )


@pytest.mark.filterwarnings("ignore:first:gradscore.GradientWarning")
def test_ordinary_networks_are_learnt_once(monkeypatch) -> None:
    model = Adapted()
    engine = engine_of(model)
    agrees(engine, model(torch.randn(3, 6, 5, dtype=torch.float64)))
    monkeypatch.setattr("gradscore.gradients.engine.make_plan", None)
    for samples in (4, 7, 3, 16):
        agrees(engine, model(torch.randn(samples, 6, 5, dtype=torch.float64)))


class Masked(TwoLayers):
    """Two of three rows of each sample, or other ones: as many in all."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.tanh(self.first(x[x[..., 0] > 0]))
        rows = (x[..., 0] > 0).nonzero()[:, 0]
        return self.last(torch.zeros(len(x), 6, dtype=x.dtype).index_add(0, rows, kept))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_rows_that_a_mask_picks() -> None:
    model = Masked()
    engine = engine_of(model)
    for signs in ([[1, 1], [1, 1]], [[1, -1], [1, -1]], [[-1, -1], [1, 1]], [[-1, 1], [1, -1]], [[1, 1], [-1, -1]]):
        x = torch.randn(2, 2, 5, dtype=torch.float64)
        x[..., 0] = x[..., 0].abs() * torch.tensor(signs)
        agrees(engine, model(x))


class Flipped(TwoLayers):
    """Means or stacks along one axis or the other, as a switch says."""

    def __init__(self) -> None:
        super().__init__()
        self.axis = 1


class Mean(Flipped):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)).mean(self.axis))


class Stack(Flipped):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.stack([torch.tanh(self.first(x[:, 0] * factor)) for factor in (1.0, 2.0, 3.0, 4.0)], self.axis)
        return self.last(torch.tanh(hidden).sum(self.axis))


@pytest.mark.parametrize("kind", [Mean, Stack])
def test_another_axis(kind: type[Flipped]) -> None:
    model = kind()
    engine = engine_of(model)
    for axis, shape in ((1, (4, 6, 5)), (0, (6, 4, 5)), (1, (6, 6, 5)), (0, (6, 6, 5)), (1, (4, 4, 5)), (0, (4, 4, 5))):
        model.axis = axis
        agrees(engine, model(torch.randn(shape, dtype=torch.float64)))


class Experts(nn.Module):
    """Each token goes through one of two layers, as its first number says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts, self.last = nn.ModuleList([nn.Linear(5, 6) for _ in range(2)]), nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        route = tokens[:, 0] > 0
        hidden = torch.zeros(len(tokens), 6, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            places = (route == bool(number)).nonzero().squeeze(1)
            hidden = hidden.index_add(0, places, expert(tokens[places]))
        return self.last(torch.tanh(hidden).unflatten(0, x.shape[:2]).sum(1))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_tokens_that_experts_share_otherwise() -> None:
    model = Experts()
    engine = engine_of(model)
    for routes in ([[0, 1]] * 4, [[0, 0], [0, 1], [1, 1], [1, 0]], [[1, 0], [0, 1], [0, 1], [1, 0]]):
        x = torch.randn(4, 2, 5, dtype=torch.float64)
        x[..., 0] = x[..., 0].abs() * (2 * torch.tensor(routes) - 1)
        agrees(engine, model(x))


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_what_is_kept_of_batches_that_all_differ_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("gradscore.gradients.engine.GRAPHS", 4)
    model = Sorted()
    engine = engine_of(model)
    for _ in range(9):
        agrees(engine, model(torch.randn(6, 5, dtype=torch.float64)))
    assert len(engine._plans) <= 4


@pytest.mark.filterwarnings("ignore:first\\.weight:gradscore.GradientWarning")
def test_it_is_said_where_every_batch_is_learnt_anew() -> None:
    model = Sorted()
    engine = engine_of(model)
    for _ in range(OFTEN - 1):
        agrees(engine, model(torch.randn(6, 5, dtype=torch.float64)))
    with pytest.warns(GradientWarning, match="moves rows by what is in a batch"):
        agrees(engine, model(torch.randn(6, 5, dtype=torch.float64)))
    assert any(notice.startswith("the network moves rows by what is in a batch") for notice in engine.notices)


def test_lengths_alone_are_not_said() -> None:
    model = Mean()
    engine = engine_of(model)
    for tokens in range(2, 2 + 2 * OFTEN):
        agrees(engine, model(torch.randn(4, tokens, 5, dtype=torch.float64)))
    assert engine.notices == []
