"""What was learnt of a first batch is not believed of batches that differ from it in more than their numbers."""

import pytest
import torch
import torch.nn.functional as F
from both_ways import assert_reference
from layers import Function
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gradscore.errors import CoupledSamplesError, EngineError
from gradscore.gradients import Engine, GradientWarning, read_graph
from gradscore.gradients.engine import OFTEN

pytestmark = pytest.mark.filterwarnings("ignore::gradscore.GradientWarning", "ignore:index_reduce:UserWarning")


def engine_of(model: nn.Module) -> Engine:
    return Engine(dict(model.named_parameters()))


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.double()


def hidden(model: TwoLayers, x: Tensor) -> Tensor:
    return torch.tanh(model.first(x))


@pytest.mark.parametrize(
    ("tokens", "lengths"), [(16, [3, 7, 11, 15]), (8, [2, 4, 6, 8]), (64, [12, 28, 44, 60]), (3, [1, 2, 3])], ids=str
)
def test_rows_that_fit_another_layout_by_chance(tokens: int, lengths: list[int]) -> None:
    """Tokens first, and the last one of each sample is looked at."""
    model = TwoLayers()
    engine = engine_of(model)
    for given in (lengths, lengths[::-1], [tokens] * len(lengths), [1, *lengths, tokens, 2]):
        last = hidden(model, numbers(tokens, len(given), 5))[torch.tensor(given) - 1, torch.arange(len(given))]
        assert_reference(engine, model.last(last))


def test_what_fits_another_layout_and_goes_on_fitting_is_not_probed_again(monkeypatch) -> None:
    """The first token of each. With T = N + 1 the row of sample n is n (T + 1), so it is n modulo N in every batch."""
    model = TwoLayers()
    engine = engine_of(model)
    for _ in range(2):
        assert_reference(engine, model.last(hidden(model, numbers(4, 5, 5))[:, 0]))
    monkeypatch.setattr("gradscore.gradients.engine.make_plan", None)
    for _ in range(2):
        assert_reference(engine, model.last(hidden(model, numbers(4, 5, 5))[:, 0]))


class Sorted(TwoLayers):
    """Samples in the order of a number of theirs, and back, by a way of picking rows."""

    def __init__(self, picked) -> None:
        super().__init__()
        self.picked = picked

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.last(self.picked(hidden(self, self.picked(x, order)), order.argsort()))


def one_hot(x: Tensor, order: Tensor) -> Tensor:
    return F.one_hot(order, len(x)).to(x.dtype)


def by_attention(x: Tensor, order: Tensor) -> Tensor:
    """Each sample attends to one, by the kernel that PyTorch has for it."""
    mask = one_hot(x, order).log().clamp(min=-1e4)[None, None]
    values = x[None, None]
    return F.scaled_dot_product_attention(0 * values, values, values, attn_mask=mask)[0, 0]


def by_attention_in_parts(x: Tensor, order: Tensor) -> Tensor:
    """The same by products and a softmax. PyTorch itself chooses by version, number of axes and device."""
    with sdpa_kernel(SDPBackend.MATH):
        return by_attention(x, order)


def by_slices(x: Tensor, order: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    for row, place in enumerate(order.tolist()):
        found[row : row + 1] = x[place : place + 1]
    return found


def by_largest(x: Tensor, order: Tensor) -> Tensor:
    kept = one_hot(x, order)[:, :, None] > 0
    return torch.where(kept, x[None], -torch.inf).amax(1)


class Reordered(torch.autograd.Function):
    """What PyTorch cannot look into."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return x[order]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.order.argsort()], None


WAYS = {
    "index": lambda x, order: x[order],
    "index select": lambda x, order: x.index_select(0, order),
    "gather": lambda x, order: x.gather(0, order.unsqueeze(1).expand_as(x)),
    "gather, axis from the end": lambda x, order: x.gather(-2, order.unsqueeze(1).expand_as(x)),
    "stack": lambda x, order: torch.stack([x[place] for place in order.tolist()]),
    "index add": lambda x, order: torch.zeros_like(x).index_add(0, order.argsort(), x),
    "product": lambda x, order: one_hot(x, order) @ x,
    "einsum": lambda x, order: torch.einsum("ji,id->jd", one_hot(x, order), x),
    "table": lambda x, order: F.embedding(order, x),
    "attention": by_attention,
    "slices": by_slices,
    "mask": lambda x, order: (one_hot(x, order)[:, :, None] * x[None]).sum(1),
    "mask, samples on the second axis": lambda x, order: (one_hot(x, order.argsort())[:, :, None] * x[:, None]).sum(0),
    "mask of a sum": lambda x, order: ((x[None] + x.new_zeros(len(x), 1, 1)) * one_hot(x, order)[:, :, None]).sum(1),
    "mask of copies": lambda x, order: (one_hot(x, order)[:, :, None] * x.repeat(len(x), 1, 1)).sum(1),
    "mask of an expansion": lambda x, order: (one_hot(x, order)[:, :, None] * x.expand(len(x), -1, -1)).sum(1),
    "largest": by_largest,
    "scatter reduce": lambda x, order: torch.zeros_like(x).scatter_reduce(
        0, order.argsort().unsqueeze(1).expand_as(x), x, "amax", include_self=False
    ),
    "index reduce": lambda x, order: torch.zeros_like(x).index_reduce(
        0, order.argsort(), x, "amax", include_self=False
    ),
    "function": Reordered.apply,
    "solution": lambda x, order: torch.linalg.solve(one_hot(x, order.argsort()), x),
    "loop": lambda x, order: torch.stack([sum(map(torch.mul, each, x)) for each in one_hot(x, order)]),
    "columns": lambda x, order: (x.t() @ one_hot(x, order).t()).t(),
    "convolution": lambda x, order: F.conv1d(x.flatten(1)[None], one_hot(x, order)[:, :, None])[0].view_as(x),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_samples_in_another_order(way) -> None:
    model = Sorted(way)
    engine = engine_of(model)
    x = numbers(8, 5)
    assert_reference(engine, model(x[x[:, 0].argsort()]))
    for _ in range(3):
        assert_reference(engine, model(numbers(8, 5)))


class Undone(torch.autograd.Function):
    """As `Reordered`, with an order that is saved as a tensor."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradient).index_copy(0, order, gradient), None


def by_grid(x: Tensor, order: Tensor) -> Tensor:
    places = torch.stack([torch.zeros_like(x[:, 0]), (2 * order + 1) / len(x) - 1], 1)[None, :, None]
    return F.grid_sample(x.t()[None, :, :, None], places, mode="nearest", align_corners=False)[0, :, :, 0].t()


def by_where(x: Tensor, order: Tensor) -> Tensor:
    rows = [x[place : place + 1].expand(len(x), -1) for place in range(len(x))]
    return sum(torch.where((order == place)[:, None], row, torch.zeros_like(x)) for place, row in enumerate(rows))


def by_unpooling(x: Tensor, order: Tensor) -> Tensor:
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))  # where each row goes
    return F.max_unpool1d(x.t()[None], places.expand(1, x.shape[1], -1), 1, output_size=(len(x),))[0].t()


HIDDEN_WAYS = {
    "sparse, written out": lambda x, order: torch.sparse_coo_tensor(
        order.argsort()[None], x, x.shape, check_invariants=False
    ).to_dense(),
    "sparse, compressed": lambda x, order: torch.sparse.mm(one_hot(x, order).to_sparse_csr(), x, "sum"),
    "sum of products": lambda x, order: torch.addbmm(torch.zeros_like(x), one_hot(x, order)[None], x[None]),
    "product with a vector": lambda x, order: torch.stack(
        [torch.addmv(torch.zeros_like(column), one_hot(x, order), column) for column in x.t()], 1
    ),
    "solution": lambda x, order: torch.linalg.solve(one_hot(x, order).t(), x),
    "solution of factors": lambda x, order: torch.linalg.lu_solve(*torch.linalg.lu_factor(one_hot(x, order).t()), x),
    "unpooling": by_unpooling,
    "bilinear": lambda x, order: F.bilinear(
        x.t().contiguous(), torch.ones_like(x[:1].t()), one_hot(x, order)[:, :, None]
    ).t(),
    "function": Undone.apply,
    "gather along the last axis": lambda x, order: x.t().gather(1, order.expand(x.shape[1], -1)).t(),
    "convolution": lambda x, order: F.conv1d(x[None], one_hot(x, order)[:, :, None])[0],
    "grid": by_grid,
    "where": by_where,
}


def keyed(samples: int, *, alike: bool) -> Tensor:
    found = numbers(samples, 5)
    found[:, 0] = 1.0 if alike else torch.arange(samples).flip(0)
    return found


class SortedInside(nn.Module):
    """Sorts what a first layer makes and puts it back, by their first number; those that are alike stay."""

    def __init__(self, picked) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.picked = picked
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(stable=True)
        found = self.middle(self.picked(torch.tanh(self.first(x)), order))
        return self.last(self.picked(torch.tanh(found), order.argsort()))


def test_rows_that_padding_turns_by_another_number_make_another_graph() -> None:
    model = nn.Linear(5, 3).double()
    one, same, other = (
        read_graph(F.pad(model(numbers(6, 5)), (0, 0, -by, by)), dict(model.named_parameters())).signature
        for by in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("way", HIDDEN_WAYS.values(), ids=HIDDEN_WAYS)
def test_samples_that_keep_their_order_in_the_first_batches(way) -> None:
    model = SortedInside(way)
    engine = engine_of(model)
    for samples, alike in ((3, True), (3, True), (6, True), (12, True), (6, False), (12, False), (6, True), (4, False)):
        assert_reference(engine, model(keyed(samples, alike=alike)))


def test_what_is_found_after_batches_that_were_not_looked_at_is_said(monkeypatch) -> None:
    monkeypatch.setattr("gradscore.gradients.plan._may_mix", lambda *_: False)
    model = SortedInside(Undone.apply)
    engine = engine_of(model)
    for samples in (3, 3, 6, 6, 6):
        assert_reference(engine, model(keyed(samples, alike=True)))
    with pytest.raises(EngineError, match="may be those of other samples"):
        assert_reference(engine, model(keyed(6, alike=False)))
    for samples in (6, 12):
        assert_reference(engine, model(keyed(samples, alike=False)))


def test_the_first_batch_after_the_second_is_looked_at(monkeypatch) -> None:
    monkeypatch.setattr("gradscore.gradients.plan._may_mix", lambda *_: False)
    model = SortedInside(Undone.apply)
    engine = engine_of(model)
    for samples, alike in ((3, True), (3, True), (6, False), (6, True), (12, False)):
        assert_reference(engine, model(keyed(samples, alike=alike)))


class SortedTexts(nn.Module):
    """Sorts texts by length behind a layer that saw them in their own order, as packing does, and back."""

    def __init__(self, picked) -> None:
        super().__init__()
        self.picked = picked
        self.table, self.middle, self.last = nn.Embedding(9, 5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        order = (tokens > 0).sum(1).argsort(stable=True)
        moved = torch.tanh(self.middle(self.picked(self.table(tokens).flatten(1), order).view(len(tokens), -1, 5)))
        return self.last(self.picked(moved.flatten(1), order.argsort()).view(len(tokens), -1, 6).sum(1))


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table, self.cell, self.last = nn.Embedding(9, 5), kind(5, 6, batch_first=True), nn.Linear(6, 3)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens > 0).sum(1)
        packed = pack_padded_sequence(self.table(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.last(pad_packed_sequence(self.cell(packed)[0], batch_first=True)[0].sum(1))


def texts(*lengths: int) -> Tensor:
    return torch.randint(1, 9, (len(lengths), 4)) * (torch.arange(4) < torch.tensor(lengths).unsqueeze(1))


SORTED = {
    **{name: SortedTexts(way) for name, way in WAYS.items() if name != "attention"},
    **{kind.__name__: Packed(kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
}


@pytest.mark.parametrize("model", SORTED.values(), ids=SORTED)
def test_samples_that_change_order_between_layers(model: nn.Module) -> None:
    """The pass that visits the layer below frees what leads to it."""
    engine = engine_of(model)
    for lengths in ((4, 3, 2, 2, 1), (2, 4, 1, 3, 2), (1, 4, 4), (2, 4, 1, 3, 2)):
        assert_reference(engine, model(texts(*lengths)), retain_graph=False)


def one_number(weight: Tensor, x: Tensor) -> Tensor:
    """One number for each sample, whose only axis is the first and the last."""
    order = x.argsort()
    moved = (x.gather(-1, order) * weight[0]).tanh().gather(-1, order.argsort())
    return torch.stack([moved, x * weight[1]], 1)


def test_samples_that_are_numbers_in_another_order() -> None:
    model = Function(2, one_number).double()
    engine = engine_of(model)
    assert_reference(engine, model(numbers(6).sort()[0]))
    for _ in range(3):
        assert_reference(engine, model(numbers(6)))


def test_products_of_attention_from_sample_to_sample_are_refused() -> None:
    model = Sorted(by_attention_in_parts)
    engine = engine_of(model)
    x = numbers(8, 5)
    assert_reference(engine, model(x[x[:, 0].argsort()]))
    with pytest.raises(CoupledSamplesError, match="mixes the samples"):
        assert_reference(engine, model(x))


def tokens_first(model: TwoLayers, x: Tensor) -> Tensor:
    """Samples in the order of a number of theirs, along the second axis."""
    order = x[0, :, 0].argsort()
    found = hidden(model, x.gather(1, order[None, :, None].expand_as(x)))
    return model.last(found.gather(1, order.argsort()[None, :, None].expand_as(found)).mean(0))


@pytest.mark.parametrize("tokens", [4, 6, 8])
def test_samples_in_another_order_on_the_second_axis(tokens: int) -> None:
    model = TwoLayers()
    engine = engine_of(model)
    x = numbers(tokens, 4, 5)
    assert_reference(engine, tokens_first(model, x[:, x[0, :, 0].argsort()]))
    for _ in range(3):
        assert_reference(engine, tokens_first(model, numbers(tokens, 4, 5)))


class Dispatched(nn.Module):
    """Experts that get their tokens by a product with a matrix of zeros and ones, as GShard's do."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.route, self.expert = nn.Linear(5, experts), nn.Parameter(torch.randn(experts, 5, 6))
        self.last = nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot(self.route(x).argmax(1), self.expert.shape[0]).to(x.dtype)
        place = (chosen.cumsum(0) * chosen).sum(1).long() - 1
        sent = torch.einsum("se,sc->sec", chosen, F.one_hot(place, len(x)).to(x.dtype))
        found = torch.bmm(torch.einsum("sec,sd->ecd", sent, x * 1.0), self.expert)
        return self.last(torch.tanh(torch.einsum("sec,ecf->sf", sent, found)))


@pytest.mark.parametrize("experts", [2, 3, 4])
def test_tokens_that_a_product_deals_out(experts: int) -> None:
    model = Dispatched(experts)
    engine = engine_of(model)
    for samples in (2, 3, 3, 8, 8, 4, 4):
        assert_reference(engine, model(numbers(samples, 5)))


class Experts(nn.Module):
    """Each token goes through one of two layers, as its first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.last = nn.ModuleList([nn.Linear(5, 6) for _ in range(2)]), nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        route = tokens[:, 0] > 0
        found = torch.zeros(len(tokens), 6, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            places = (route == bool(number)).nonzero().squeeze(1)
            found = found.index_add(0, places, expert(tokens[places]))
        return self.last(torch.tanh(found).unflatten(0, x.shape[:2]).sum(1))


class Masked(TwoLayers):
    """Two of three rows of each sample, or other ones: as many in all."""

    def forward(self, x: Tensor) -> Tensor:
        kept = hidden(self, x[x[..., 0] > 0])
        rows = (x[..., 0] > 0).nonzero()[:, 0]
        return self.last(torch.zeros(len(x), 6, dtype=x.dtype).index_add(0, rows, kept))


SIGNS = {
    "experts": (Experts, [[[-1, 1]] * 4, [[-1, -1], [-1, 1], [1, 1], [1, -1]], [[1, -1], [-1, 1], [-1, 1], [1, -1]]]),
    "a mask": (
        Masked,
        [[[1, 1], [1, 1]], [[1, -1], [1, -1]], [[-1, -1], [1, 1]], [[-1, 1], [1, -1]], [[1, 1], [-1, -1]]],
    ),
}


@pytest.mark.parametrize(("kind", "batches"), SIGNS.values(), ids=SIGNS)
def test_rows_that_go_where_their_first_number_says(kind: type[nn.Module], batches: list[list[list[int]]]) -> None:
    model = kind()
    engine = engine_of(model)
    for signs in batches:
        x = numbers(len(signs), 2, 5)
        x[..., 0] = x[..., 0].abs() * torch.tensor(signs)
        assert_reference(engine, model(x))


class Rounded(torch.autograd.Function):
    """A weight with few digits, whose gradient passes as it is."""

    @staticmethod
    def forward(_ctx, x: Tensor) -> Tensor:
        return (x * 64).round() / 64

    @staticmethod
    def backward(_ctx, gradient: Tensor) -> Tensor:
        return gradient


class Adapted(TwoLayers):
    """A frozen weight with a low-rank addition, normalised weights, functions of its own, and what tokens share."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 5))
        self.square = nn.Parameter(torch.randn(6, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.double()
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        found = F.linear(x, self.first.weight + self.one @ self.two, self.first.bias)
        found = self.normed(Rounded.apply(torch.tanh(found)))
        found = found * torch.sigmoid(found.mean(1, keepdim=True)) + F.linear(found[:, :1], Rounded.apply(self.square))
        return self.last(
            torch.einsum("ntd,df->ntf", self.attention(found, found, found)[0], self.one[:, :1]).flatten(1)
        )


def test_ordinary_networks_are_learnt_once(monkeypatch) -> None:
    model = Adapted()
    engine = engine_of(model)
    for _ in range(2):
        assert_reference(engine, model(numbers(3, 6, 5)))
    monkeypatch.setattr("gradscore.gradients.engine.make_plan", None)
    for samples in (4, 7, 3, 16):
        assert_reference(engine, model(numbers(samples, 6, 5)))


def test_a_weight_that_is_made_sparse_is_left_to_the_reference() -> None:
    model = TwoLayers()
    engine = engine_of(model)
    for samples in (2, 3, 6):
        weight = (model.last.weight * torch.eye(3, 6)).to_sparse()
        assert_reference(engine, torch.sparse.mm(weight, hidden(model, numbers(samples, 5)).t()).t())


def mean(model: TwoLayers, x: Tensor, axis: int) -> Tensor:
    return model.last(hidden(model, x).mean(axis))


def stacked(model: TwoLayers, x: Tensor, axis: int) -> Tensor:
    found = torch.stack([hidden(model, x[:, 0] * factor) for factor in (1.0, 2.0, 3.0, 4.0)], axis)
    return model.last(torch.tanh(found).sum(axis))


@pytest.mark.parametrize("function", [mean, stacked])
def test_another_axis(function) -> None:
    model = TwoLayers()
    engine = engine_of(model)
    for axis, shape in ((1, (4, 6, 5)), (0, (6, 4, 5)), (1, (6, 6, 5)), (0, (6, 6, 5)), (1, (4, 4, 5)), (0, (4, 4, 5))):
        assert_reference(engine, function(model, numbers(*shape), axis))


def test_graphs_that_differ_only_in_the_axes_they_exchange() -> None:
    layer, batch = nn.Linear(5, 5).double(), numbers(5, 5, 5)
    engine = engine_of(layer)
    for axes in ((1, 2), (0, 1), (1, 2)):
        assert_reference(engine, layer(batch).transpose(*axes).flatten(1))


@pytest.mark.parametrize("orders", [("a", "b"), ("ab", "ba"), ("a", "ab", "b", "a")], ids=str)
def test_layers_of_one_shape_that_change_places(orders: tuple[str, ...]) -> None:
    model, batch = nn.ModuleDict({name: nn.Linear(5, 5) for name in "ab"}).double(), numbers(6, 5)
    engine = engine_of(model)
    for order in orders:
        found = batch
        for name in order:
            found = model[name](found).tanh()
        assert_reference(engine, found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("types", [("float64", "bfloat16", "float64"), ("bfloat16", "float64", "bfloat16")], ids=str)
def test_weights_that_are_cast_to_another_type_each_time(types: tuple[str, ...]) -> None:
    weight, batch = nn.Parameter(torch.randn(4, 5)), torch.randn(6, 5)
    engine = Engine({"weight": weight})
    for name in types:
        dtype = getattr(torch, name)
        assert_reference(engine, F.linear(batch.to(dtype), weight.to(dtype)), rtol=1e-2, atol=1e-2)


def test_what_is_kept_of_batches_that_all_differ_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("gradscore.gradients.engine.GRAPHS", 4)
    model = Sorted(WAYS["index"])
    engine = engine_of(model)
    for _ in range(9):
        assert_reference(engine, model(numbers(6, 5)))
    assert len(engine._plans) <= 4


def test_there_is_a_notice_where_every_batch_is_learnt_anew() -> None:
    model = Sorted(WAYS["index"])
    engine = engine_of(model)
    for _ in range(OFTEN - 1):
        assert_reference(engine, model(numbers(6, 5)))
    with pytest.warns(GradientWarning, match="moves rows by what is in a batch"):
        assert_reference(engine, model(numbers(6, 5)))


def test_there_is_no_notice_where_lengths_alone_differ() -> None:
    model = TwoLayers()
    engine = engine_of(model)
    for tokens in range(2, 2 + 2 * OFTEN):
        assert_reference(engine, mean(model, numbers(4, tokens, 5), 1))
    assert engine.notices == []
