"""Self-tests of models that take whole numbers: what is asked is made up, and the model takes it."""

import importlib
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from gradscore.config import FeaturesConfig
from gradscore.deployment.self_test import REAL_VALUES, self_test_inputs, self_test_of
from gradscore.extractor import Extractor
from gradscore.models import Interface
from gradscore.system import Inputs, import_torchvision

import_torchvision()  # which transformers imports, and which may lack operators
transformers = importlib.import_module("transformers")

LENGTHS = torch.tensor([9, 3, 5, 9, 7, 4])
MASK = (torch.arange(9) < LENGTHS[:, None]).long()
TEXTS = torch.where(MASK.bool(), torch.randint(3, 9, (6, 9), generator=torch.Generator().manual_seed(0)), 0)
TEXTS[torch.arange(6), LENGTHS - 1] = 2  # the end of each text
CATEGORIES = torch.tensor([[0, 5, 1], [1, 2, 0], [1, 0, 2], [0, 1, 2]])


class Categories(nn.Module):
    """A table for each column, of 2, 6 and 3 categories."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (2, 6, 3))
        self.last = nn.Linear(12, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.cat([table(values[:, place]) for place, table in enumerate(self.tables)], dim=1))


class FromOne(Categories):
    """Counts categories from 1, as nobody says."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values - 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.last = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.last(self.cell(packed)[1][0][0])


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(values.float())


class OneHot(Counts):
    """Takes rows with a single one alone, as nothing says."""

    def forward(self, values: Tensor) -> Tensor:
        if not (values.sum(1) == 1).all():
            raise ValueError("rows must have a single one")
        return super().forward(values)


def bert() -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=40, num_labels=2, **sizes))


def bart() -> nn.Module:
    """Wants as many ends in every text."""
    names = ["encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"]
    sizes = dict.fromkeys(names, 1)
    config = transformers.BartConfig(vocab_size=40, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, num_labels=2,
                                     pad_token_id=0, eos_token_id=2, max_position_embeddings=12, **sizes)  # fmt: skip
    return transformers.BartForSequenceClassification(config)


MODELS = {
    "BERT": (bert, {"input_ids": TEXTS, "attention_mask": MASK, "token_type_ids": torch.zeros_like(TEXTS)}),
    "recurrent with lengths": (Recurrent, {"tokens": TEXTS, "lengths": LENGTHS}),
    "categories": (Categories, CATEGORIES),
    "categories from one": (FromOne, CATEGORIES + 1),
    "counts": (Counts, CATEGORIES * 10),
    "truth values": (bert, {"input_ids": TEXTS, "attention_mask": MASK.bool()}),
}


def extractor_of(model: nn.Module) -> Extractor:
    Interface(num_classes=2).attach(model)
    return Extractor(model.eval(), features=FeaturesConfig(losses=["uniform"]), num_classes=2)


def arrays(inputs: Inputs) -> dict[str, Tensor]:
    return dict(inputs) if isinstance(inputs, Mapping) else {"values": inputs}


@pytest.mark.filterwarnings("ignore:cell:gradscore.gradients.GradientWarning")
@pytest.mark.parametrize(("kind", "samples"), MODELS.values(), ids=MODELS)
def test_what_is_asked_is_no_sample(kind: type[nn.Module], samples: Inputs) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        extractor = extractor_of(kind())
    asked, notices = self_test_of(samples, extractor)
    assert notices == []
    inputs = self_test_inputs(asked)
    assert np.isfinite(extractor.values(inputs)).all()
    names = ["input_ids", "tokens", "values"]
    found, known = (
        {name: each for name, each in arrays(given).items() if name in names} for given in (inputs, samples)
    )
    (rows,), (before,) = found.values(), known.values()
    assert not set(map(tuple, rows.tolist())) & set(map(tuple, before.tolist()))
    assert {name: each.dtype for name, each in arrays(inputs).items()} == {
        name: each.dtype for name, each in arrays(samples).items()
    }


def test_masks_stay_and_ids_are_between_those_of_samples() -> None:
    asked, _ = self_test_of(arrays(MODELS["BERT"][1]), extractor_of(bert()))
    wanted = MASK[torch.arange(8) % 6].numpy()
    np.testing.assert_array_equal(asked["attention_mask"], wanted)
    assert (asked["input_ids"] >= TEXTS.amin(0).numpy()).all()
    assert (asked["input_ids"] <= TEXTS.amax(0).numpy()).all()


REAL = {
    "rows that nothing says": (OneHot, torch.eye(3, dtype=torch.int64)),
    "as many ends in every text": (bart, {"input_ids": TEXTS, "attention_mask": MASK}),
    "one sample of categories": (Categories, CATEGORIES[:1]),
}


@pytest.mark.parametrize(("kind", "samples"), REAL.values(), ids=REAL)
def test_values_of_samples_are_said(kind: type[nn.Module], samples: Inputs) -> None:
    """Where a model refuses what is made up, or nothing can be, its samples are asked, and the user is told."""
    asked, notices = self_test_of(samples, extractor_of(kind()))
    assert notices == [REAL_VALUES]
    found, known = arrays(self_test_inputs(asked)), arrays(samples)
    assert all(torch.equal(found[name], each[torch.arange(8) % len(each)]) for name, each in known.items())
