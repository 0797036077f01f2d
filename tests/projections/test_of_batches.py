"""Projections of losses that call the model themselves: of language models, for example."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from both_ways import reference_of
from projection_matrices import matrix
from torch import nn

import gradscore
from gradscore.errors import ConfigError, CoupledSamplesError, DataError, EngineError, ModelError

WORDS = 30
LENGTHS = (9, 4, 7, 2, 8, 5)


class Tied(nn.Module):
    """Predicts the next word from a running mean; its table is input and output."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 12)
        self.middle = nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, ids):
        seen = self.table(ids)
        mean = seen.cumsum(1) / torch.arange(1, ids.shape[1] + 1).unsqueeze(1)
        return self.norm(torch.tanh(self.middle(mean))) @ self.table.weight.T


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tied().double().eval()


def padded(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(0, WORDS, (len(lengths), width), generator=generator)
    mask = torch.stack([(torch.arange(width) < length).long() for length in lengths])
    return {"ids": ids * mask, "mask": mask}


def of_tokens(model, batch):
    """(N, T): zero for padding."""
    logits = model(batch["ids"])[:, :-1]
    each = F.cross_entropy(logits.transpose(1, 2), batch["ids"][:, 1:], reduction="none")
    return each * batch["mask"][:, 1:]


def of_texts(model, batch):
    return of_tokens(model, batch).sum(1)


BATCHES = [padded(LENGTHS[:4]), padded(LENGTHS[4:], seed=2)]
"""The second is of another width."""


def truth(model, batches=BATCHES):
    """The whole gradient of every text, one backward pass each, by name."""
    found = []
    for batch in batches:
        losses = of_texts(model, batch)
        found.append(reference_of(dict(model.named_parameters()), losses, torch.ones_like(losses)))
    return {name: torch.cat([each[name] for each in found]).flatten(1).numpy() for name in found[0]}


@pytest.mark.parametrize("losses", [of_texts, of_tokens], ids=lambda each: each.__name__)
def test_projections_of_texts_are_those_of_their_whole_gradients(model, losses):
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    wanted = sum(each @ matrix(name, shapes[name], 64, 3).T for name, each in truth(model).items())
    found = gradscore.project(model, BATCHES, losses=losses, dim=64, seed=3)
    np.testing.assert_allclose(found.values * found.scale[:, None], wanted, rtol=1e-9, atol=1e-12 * abs(wanted).max())


def test_a_loss_of_logits_gives_the_same_both_ways():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).double().eval()
        images, labels = torch.randn(10, 6, dtype=torch.double), torch.arange(10) % 3
    by_logits = gradscore.project(model, (images, labels), loss="label", dim=64)
    by_batches = gradscore.project(
        model,
        [(images[:7], labels[:7]), (images[7:], labels[7:])],
        losses=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        dim=64,
    )
    np.testing.assert_allclose(by_batches.dot(), by_logits.dot(), rtol=1e-9)
    assert by_batches.labels.tolist() == by_batches.predictions.tolist() == [-1] * 10


def averaged_over_the_batch(model, batch):
    return of_tokens(model, batch).sum(1) / batch["mask"].sum()


def raising(model, batch):
    return of_texts(model, batch["texts"])


REFUSED = {
    "a loss of another model": (
        {"losses": lambda m, b: of_texts(Tied().double().eval(), b)},
        EngineError,
        "does not depend on the parameters of the model.* a copy",
    ),
    "a loss that raises": ({"losses": raising}, EngineError, "loss 'raising': .*batch of 4 samples: KeyError: 'texts'"),
    "no parameters": ({"parameters": []}, ConfigError, r"parameters: wanted .* got \[\]"),
    "a number among parameters": ({"parameters": ["table.*", 3]}, ConfigError, "parameters: wanted .* got .*3"),
    "a batch size": ({"batch_size": 8}, ConfigError, "batch_size: does not go with losses"),
    "a loss as well": ({"loss": "label"}, ConfigError, "loss: does not go with losses"),
    "one logit": ({"one_logit": True}, ConfigError, "one_logit: does not go with losses"),
    "a name": ({"losses": "label"}, ConfigError, "losses: wanted one function or None, got 'label'"),
    "no parameter": ({"parameters": "tail.*"}, ConfigError, "tail"),
    "a loss of the batch": ({"losses": averaged_over_the_batch}, CoupledSamplesError, "number of\\s+tokens"),
    "one loss for all": ({"losses": lambda m, b: of_texts(m, b).sum()}, EngineError, "one value for each sample"),
    "no batches": ({"data": []}, DataError, "wanted batches, got none"),
    "a batch": ({"data": BATCHES[0]}, DataError, r"give \[batch\]"),
    "no samples": ({"data": [{"ids": torch.zeros(0, 3)}]}, DataError, "one sample or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(model, name):
    given, error, said = REFUSED[name]
    arguments = {"data": BATCHES, "losses": of_texts, **given}
    with pytest.raises(error, match=said):
        gradscore.project(model, dim=64, **arguments)


def test_outputs_for_every_token_name_the_way_of_losses(model):
    with pytest.raises(ModelError, match=r"got Tensor of shape \(3, 9, 30\), as language models have"):
        gradscore.project(nn.Sequential(model).eval(), padded(LENGTHS[:3])["ids"], dim=64)


def test_shared_tensors_and_half_precision_count_as_content(model):
    batch = {**padded(LENGTHS[:3]), "bias": torch.tensor(0.5), "weights": torch.ones(3, dtype=torch.bfloat16)}
    other = {**batch, "weights": torch.tensor([1, 2, 1], dtype=torch.bfloat16)}
    hashes = [gradscore.project(model, [each], losses=of_texts, dim=64).content_hashes for each in (batch, other)]
    assert [one == another for one, another in zip(*hashes, strict=True)] == [True, False, True]
