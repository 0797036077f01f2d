"""Features of losses that a program gives: one for each sample, or for each token of it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import gradscore
from gradscore.errors import ConfigError, CoupledSamplesError, DataError, EngineError, ModelError
from gradscore.gradients import reference_gradients
from gradscore.system import import_torchvision

import_torchvision()
transformers = pytest.importorskip("transformers")

WORDS, LENGTHS = 40, (9, 4, 7, 2, 8)
STATISTICS = ["l2", "max", "mean"]
TINY = {
    "vocab_size": WORDS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)).double().eval()


@pytest.fixture(scope="module")
def texts():
    torch.manual_seed(1)
    return [torch.randint(0, WORDS, (length,)) for length in LENGTHS]


def padded(texts):
    """What a collator of transformers makes of texts."""
    width = max(map(len, texts))
    ids = torch.stack([F.pad(text, (0, width - len(text))) for text in texts])
    return {"input_ids": ids, "attention_mask": torch.stack([torch.arange(width) < len(text) for text in texts]).long()}


def each_token(model, batch):
    """Of every token but the first, zero for padding."""
    logits = model(**batch).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    return losses * batch["attention_mask"][:, 1:]


def mean_of_text(model, batch):
    return each_token(model, batch).sum(1) / batch["attention_mask"][:, 1:].sum(1)


def reference(model, losses, chosen):
    """Statistics of one gradient by the slow way: (parameters * statistics,)."""
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((losses * chosen).sum(), list(parameters.values()), retain_graph=True)
    return np.array([value for g in found for value in (float(g.norm()), float(g.max()), float(g.mean()))])


def columns(table):
    return table[[name for name in table if name.startswith("loss/")]].to_numpy()


@pytest.mark.parametrize("batches", [[5], [1, 4]], ids=str)
def test_a_padded_batch_gives_each_text_its_own_figures(model, texts, batches):
    starts = np.cumsum([0, *batches])
    loader = [padded(texts[start : start + size]) for start, size in zip(starts, batches, strict=False)]
    table = gradscore.features(model, loader, losses=mean_of_text, statistics=STATISTICS)
    assert table["sample_id"].tolist() == ["0", "1", "2", "3", "4"]
    assert list(table)[:3] == ["sample_id", "loss", "loss/transformer.wte.weight/l2"]
    alone = [mean_of_text(model, padded([text])) for text in texts]
    truth = np.stack([reference(model, losses, torch.ones_like(losses)) for losses in alone])
    np.testing.assert_allclose(table["loss"], [losses.item() for losses in alone], rtol=1e-12)
    np.testing.assert_allclose(columns(table), truth, rtol=1e-9, atol=1e-14)


def test_losses_of_tokens_are_summed(model, texts):
    batch = padded(texts)
    table = gradscore.features(model, [batch], losses=each_token, statistics=STATISTICS)
    sums = gradscore.features(model, [batch], losses=lambda *given: each_token(*given).sum(1), statistics=STATISTICS)
    np.testing.assert_allclose(table.drop(columns="sample_id"), sums.drop(columns="sample_id"), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("samples", [1, 4])
def test_each_token_has_the_gradient_of_its_own_loss(model, texts, samples):
    batch = padded(texts[:samples])
    table = gradscore.features(model, [batch], losses=each_token, statistics=STATISTICS, tokens="each")
    losses = each_token(model, batch)
    pairs = [(sample, token) for sample in range(samples) for token in range(losses.shape[1])]
    assert list(table)[:3] == ["sample_id", "token", "loss"]
    assert list(zip(table["sample_id"].map(int), table["token"], strict=True)) == pairs
    truth = []
    for pair in pairs:
        chosen = torch.zeros_like(losses)
        chosen[pair] = 1
        truth.append(reference(model, losses, chosen))
    np.testing.assert_allclose(table["loss"], losses.detach().flatten(), rtol=1e-12)
    np.testing.assert_allclose(columns(table), np.stack(truth), rtol=1e-9, atol=1e-14)


def test_parameters_and_granularity(model, texts):
    options = {"statistics": ["l2"], "losses": mean_of_text}
    parts = gradscore.features(model, [padded(texts)], parameters=["*.h.0.*"], **options)
    whole = gradscore.features(model, [padded(texts)], parameters=["*.h.0.*"], granularity="model", **options)
    np.testing.assert_allclose(whole["loss/model/l2"], np.linalg.norm(columns(parts), axis=1))


def test_batches_of_pairs_and_of_tensors():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    inputs, targets = torch.randn(6, 4).double(), torch.randn(6, 2).double()

    def squared(model, batch):
        return (model(batch[0]) - batch[1]).square().sum(1)

    pairs = gradscore.features(model.eval(), [(inputs, targets)], losses=squared, statistics=["l2"])
    alone = gradscore.features(
        model,
        [torch.cat([inputs, targets], dim=1)],
        losses=lambda model, batch: squared(model, (batch[:, :4], batch[:, 4:])),
        statistics=["l2"],
    )
    truth = [
        [float(gradient.norm()) for gradient in each.values()]
        for _, each in reference_gradients(
            squared(model, (inputs, targets)), torch.ones(6).double(), dict(model.named_parameters())
        )
    ]
    np.testing.assert_allclose(columns(pairs), truth, rtol=1e-10)
    np.testing.assert_allclose(columns(alone), truth, rtol=1e-10)


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class Example:
    inputs: torch.Tensor
    targets: torch.Tensor
    name: str = "a"


@dataclass
class Output(transformers.utils.ModelOutput):
    inputs: torch.Tensor | None = None
    targets: torch.Tensor | None = None


CONTAINERS = {
    "dataclass": Example,
    "named tuple in a list": lambda inputs, targets: [Pair(inputs, targets), "text", torch.Size([2])],
    "output of transformers": lambda inputs, targets: Output(inputs=inputs, targets=targets),
    "mapping that cannot change": lambda inputs, targets: [
        SimpleNamespace(targets=None), MappingProxyType({"pair": Pair(inputs, targets)})
    ],
}  # fmt: skip


def squared_error(model, batch):
    """Of what has `inputs` and `targets`, wherever in the batch that is."""
    pair = batch[1]["pair"] if isinstance(batch, list) and isinstance(batch[1], dict) else batch
    pair = pair[0] if isinstance(pair, list) else pair
    return (model(pair.inputs) - pair.targets).square().sum(1)


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_reach_the_loss_as_they_are(container):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()
    pair = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    found = gradscore.features(model, [container(*pair)], losses=squared_error, statistics=["l2"])
    plain = gradscore.features(
        model, [pair], losses=lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1), statistics=["l2"]
    )
    np.testing.assert_array_equal(columns(found), columns(plain))


def test_a_tensor_in_two_places_stays_one():
    model, inputs = nn.Linear(4, 3).eval(), torch.randn(6, 4)
    shared = []

    def reconstruction(model, batch):
        shared.append(batch["inputs"] is batch["targets"][0])
        return model(batch["inputs"]).sum(1) + batch["targets"][0].sum(1)

    gradscore.features(model, [{"inputs": inputs, "targets": (inputs,)}], losses=reconstruction, statistics=["l2"])
    assert shared == [True] * 3  # the batch, and twice a few of its samples


def test_the_engine_learns_from_two_samples_of_every_size(model, texts, monkeypatch):
    seen = []
    learn = gradscore.Engine.learn
    monkeypatch.setattr(
        gradscore.Engine, "learn", lambda engine, losses, ones: (seen.append(len(losses)), learn(engine, losses, ones))
    )
    long, short = padded(texts), padded(texts[1:4])
    gradscore.features(model, [long, short, long, short], losses=mean_of_text, statistics=["l2"])
    assert seen == [2, 2]


def divided_by_the_batch(model, batch):
    return each_token(model, batch).sum(1) / batch["attention_mask"][:, 1:].sum()


def with_a_bad_number(model, batch):
    return each_token(model, batch).sum(1) / (batch["attention_mask"].sum(1) - 2)


REFUSED = {
    "a mean over the batch": (
        lambda *given: mean_of_text(*given).mean(),
        {},
        EngineError,
        r"of shape \(5,\).*got \(\)",
    ),
    "another number of losses": (lambda *given: each_token(*given).flatten(), {}, EngineError, "one value for each"),
    "no tensor": (lambda model, batch: model(**batch), {}, EngineError, "must return a tensor"),
    "of a copy": (
        lambda model, batch: mean_of_text(copy.deepcopy(model), batch),
        {},
        EngineError,
        "does not depend on the parameters of the model.* a copy",
    ),
    "that raises": (lambda model, batch: batch["words"], {}, EngineError, "KeyError: 'words'"),
    "not finite": (with_a_bad_number, {}, EngineError, "loss of sample 3 of the batch is not finite"),
    "divided by the batch's tokens": (
        divided_by_the_batch,
        {},
        CoupledSamplesError,
        "of each sample, not of the batch",
    ),
    "one loss, each token": (mean_of_text, {"tokens": "each"}, EngineError, r"of shape \(5, tokens\)"),
    "each token of a named loss": (["uniform"], {"tokens": "each"}, ConfigError, "one value for each sample"),
    "a function in a list": (
        [mean_of_text],
        {},
        ConfigError,
        r"losses: wanted text, .*one function.*, got \[<function",
    ),
    "settings of classifiers": (each_token, {"batch_size": 4}, ConfigError, "batch_size: does not go with"),
}


@pytest.mark.parametrize(("losses", "options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(model, texts, losses, options, error, message):
    with pytest.raises(error, match=message):
        gradscore.features(model, [padded(texts)], losses=losses, **options)


class Kept(dict):
    def __setitem__(self, name, value):
        raise TypeError("kept")


DATA = {
    "one batch": (lambda batch: batch, "wanted batches for the loss"),
    "a tensor": (lambda batch: batch["input_ids"], "give \\[batch\\]"),
    "none": (lambda batch: [], "wanted batches, got none"),
    "packed": (lambda batch: [pack_sequence([torch.ones(2), torch.ones(1)])], "got a PackedSequence; give padded"),
    "a class that keeps its entries": (
        lambda batch: [Kept(batch)],
        r"a Kept cannot be given other tensors \(TypeError",
    ),
}


@pytest.mark.parametrize(("data", "message"), DATA.values(), ids=DATA)
def test_refused_data(model, texts, data, message):
    with pytest.raises(DataError, match=message):
        gradscore.features(model, data(padded(texts)), losses=each_token, statistics=["l2"])


def test_a_model_in_training_mode_is_refused(texts):
    training = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)).train()
    with pytest.raises(ModelError, match="training mode"):
        gradscore.features(training, [padded(texts)], losses=each_token)


def test_two_samples_that_are_divided_by_their_number_are_refused():
    model = nn.Linear(4, 3).eval()
    batches = list(torch.randn(6, 4).split(2))
    with pytest.raises(CoupledSamplesError, match="changes with the other samples"):
        gradscore.features(model, batches, losses=lambda m, b: (m(b) ** 2).sum(1) / len(b), statistics=["l2"])


def test_a_loss_over_the_tokens_of_a_batch_is_refused_though_the_first_batches_have_no_padding() -> None:
    model = nn.Embedding(9, 1).eval()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        kept = batch["mask"]
        return ((model(batch["ids"])[..., 0] ** 2) * kept).sum(1) / (kept.sum() / len(kept))

    full = {"ids": torch.arange(12).reshape(3, 4) % 9, "mask": torch.ones(3, 4, dtype=torch.int64)}
    padded_batch = {**full, "mask": torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]])}
    assert len(gradscore.features(model, [full, full], losses=loss, statistics=["l2"])) == 6
    with pytest.raises(CoupledSamplesError, match="divide by the number of tokens of each sample, not of the batch"):
        gradscore.features(model, [full, full, padded_batch], losses=loss, statistics=["l2"])


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) ** 2).sum(1)


ACROSS = {
    "what is harder than most": lambda losses: losses * (losses > losses.mean()),
    "weights by place": lambda losses: losses * torch.arange(len(losses)),
    "weights by rank": lambda losses: losses * losses.argsort().argsort(),
    "sorted": lambda losses: losses.sort().values,
    "backwards": lambda losses: losses.flip(0),
}


@pytest.mark.parametrize("change", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize("samples", [2, 3, 10])
def test_losses_that_look_across_samples_are_refused(change: Callable[[Tensor], Tensor], samples: int) -> None:
    """Among the first samples alone some of them change nothing."""
    torch.manual_seed(samples)
    model = nn.Linear(4, 3).eval()
    batch = torch.randn(samples, 4)
    with pytest.raises(CoupledSamplesError, match=r"weight no sample by its rank or place.*into the batch"):
        gradscore.features(model, [batch], losses=lambda m, b: change(squares(m, b)), statistics=["l2"])


def test_a_small_term_of_the_batch_beside_one_large_loss_is_refused() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3).double().eval(), torch.randn(16, 4, dtype=torch.float64)
    inputs[3] *= 100

    def balanced(model: nn.Module, batch: Tensor) -> Tensor:
        return squares(model, batch) + 0.1 * model(batch).mean()

    with pytest.raises(CoupledSamplesError, match=r"gradient of a sample's loss changes .*that balances experts"):
        gradscore.features(model, [inputs], losses=balanced, statistics=["l2"])
    gradscore.features(model, [inputs], losses=squares, statistics=["l2"])


def test_samples_that_the_model_is_certain_of_beside_one_that_it_is_not_are_no_coupling() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(40, 3).eval(), 40 * torch.randn(64, 40)
    labels = model(inputs).argmax(1)
    labels[5] = (labels[5] + 1) % 3

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    found = gradscore.features(model, [(inputs, labels)], losses=loss, statistics=["l2"])
    assert found["loss"].median() < 1e-3 < 1 < found["loss"].max()


@pytest.mark.parametrize("samples", [2, 3, 10])
def test_a_broadcast_that_gives_every_sample_all_labels_is_no_loss_of_tokens(samples: int) -> None:
    model, labels = nn.Linear(4, 1).eval(), torch.randn(samples)
    with pytest.raises(CoupledSamplesError, match=rf"\({samples}, {samples}\) for {samples}; .*were broadcast"):
        gradscore.features(model, [(torch.randn(samples, 4), labels)], losses=lambda m, b: (m(b[0]) - b[1]) ** 2)


def test_what_is_no_tensor_stays_with_its_sample() -> None:
    model = nn.Linear(4, 3).eval()
    weight = {"rare": 5.0, "common": 1.0}
    batch = {"x": torch.randn(6, 4), "kind": ["common", "rare"] * 3}

    def weighted(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        rows = range(len(batch["x"]))
        return squares(model, batch["x"]) * torch.tensor([weight[batch["kind"][row]] for row in rows])

    found = gradscore.features(model, [batch], losses=weighted, statistics=["l2"])
    assert found["loss"].tolist() == pytest.approx(weighted(model, batch).tolist())
