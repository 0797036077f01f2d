"""A detector of a classifier of texts: batches of keyword arguments, of lengths that differ, from a collator."""

import importlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import gradscore
from gradscore.errors import DataError, ModelError
from gradscore.system import import_torchvision

import_torchvision()  # so that importing transformers does not fail for what torchvision lacks
transformers = importlib.import_module("transformers")

SETTINGS: dict[str, Any] = {
    "features": {"statistics": ["l2"], "losses": ["uniform"], "granularity": "module"},
    "meta": {"Cs": [0.01], "boosts": [10.0], "cv_folds": 2},
    "alpha": 0.2,
}


def collate(rows: list[dict[str, Any]]) -> Any:
    """As collators of transformers do: padded to the longest of the batch."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    labels = torch.tensor([row["label"] for row in rows])
    return transformers.BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels})


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(1, 30, generator.integers(3, 8)).tolist() for _ in range(count)]
    return [{"input_ids": row, "label": (row[0] + 1) % 2} for row in rows]


def loader(count: int, seed: int) -> DataLoader:
    return DataLoader(texts(count, seed), batch_size=32, collate_fn=collate)


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
        )
        return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def detector(bert: nn.Module) -> gradscore.Detector:
    return gradscore.Detector(bert, **SETTINGS).fit(loader(240, 0), calibration=loader(80, 1), auxiliary=[])


def logits(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        return model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits


def test_predictions_are_those_of_the_model(bert, detector) -> None:
    table = detector.score(loader(64, 2))
    wanted = torch.cat([logits(bert, batch).argmax(1) for batch in loader(64, 2)])
    assert table["prediction"].tolist() == wanted.tolist()


def test_a_bundle_of_texts_can_be_loaded(bert, detector, tmp_path) -> None:
    path = detector.save(tmp_path / "texts.gradscore")
    again = gradscore.Detector.load(path, model=bert)
    pd.testing.assert_frame_equal(again.score(loader(64, 2)), detector.score(loader(64, 2)))


def test_another_score_of_texts_is_saved(bert, detector, tmp_path) -> None:
    path = detector.save(tmp_path / "energy.gradscore", scores="energy")
    table = gradscore.Detector.load(path, model=bert).score(loader(64, 2))
    wanted = torch.cat([-logits(bert, batch).logsumexp(1) for batch in loader(64, 2)])
    assert table["score_ood"].to_numpy() == pytest.approx(wanted.numpy(), abs=1e-5)


def test_a_name_the_model_does_not_know_is_refused(bert) -> None:
    ids = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(ModelError, match="words"):
        gradscore.features(bert, [{"words": ids}])


def test_entries_of_other_sizes_are_refused(bert) -> None:
    ids = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(DataError, match="as many samples in every input"):
        gradscore.features(bert, [{"input_ids": ids, "attention_mask": ids[:2]}])


OUTPUTS = {
    "tuple, named": (lambda z: (z.sum(), z, z + 1), {"output": 1}),
    "mapping": (lambda z: {"logits": z, "hidden": z}, {}),
    "one logit": (lambda z: z[:, :1], {"one_logit": True}),
}


class Returning(nn.Module):
    def __init__(self, change) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layer(x))


@pytest.mark.parametrize(("change", "options"), OUTPUTS.values(), ids=OUTPUTS)
def test_logits_are_found_among_what_a_model_returns(change, options) -> None:
    model, x = Returning(change).eval(), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = gradscore.features(model, x, statistics=["l2"], **options)
    raw = model.layer(x).detach()
    wanted = torch.stack([torch.zeros(5), raw[:, 0]], 1) if "one_logit" in options else raw
    columns = [name for name in found.columns if name.startswith("logit_")]
    assert found[columns].to_numpy() == pytest.approx(wanted.numpy(), rel=1e-6, abs=1e-6)


def test_probabilities_are_refused() -> None:
    with pytest.raises(ModelError, match="softmax"):
        gradscore.features(Returning(lambda z: z.softmax(1)).eval(), torch.randn(5, 4))
