"""Inputs by name, weights of any precision, and what is said where a model cannot take its inputs."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from both_ways import reference_of
from torch import nn
from trusted import built

import gradscore
from gradscore.config import FeaturesConfig
from gradscore.errors import ModelError
from gradscore.extractor import Extractor
from gradscore.models import Interface, ModelConfig
from gradscore.system import import_torchvision

import_torchvision()
transformers = importlib.import_module("transformers")

FEATURES = FeaturesConfig(losses=["uniform"], statistics=["l2"], penultimate=False)


def bert() -> nn.Module:
    torch.manual_seed(0)
    settings = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    return transformers.BertForSequenceClassification(settings).eval()


def extractor(model: nn.Module, *, classes: int = 3) -> Extractor:
    Interface(num_classes=classes).attach(model)
    return Extractor(model, num_classes=classes, features=FEATURES)


def tokens(rows: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 30, (rows, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": (torch.arange(6) < torch.arange(1, rows + 1)[:, None] % 6 + 1).long()}


def test_gradients_of_keyword_inputs_are_those_of_one_pass_for_each_sample() -> None:
    model, batch = bert().double(), tokens(5)
    found = extractor(model)
    found.prepare({name: each[:3] for name, each in batch.items()})
    values = found.values(batch)
    outputs = model(batch)
    # Of the loss "uniform" the gradient at the logits is softmax - 1 / K.
    exact = reference_of(found.engine.parameters, outputs, outputs.detach().softmax(1) - 1 / 3)
    wanted = np.stack([exact[name].flatten(1).norm(dim=1).numpy() for name in found.engine.parameters], axis=1)
    np.testing.assert_allclose(values[:, 3:], wanted, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(values[:, :3], outputs.detach(), rtol=1e-12)


def test_forward_passes_take_keyword_inputs() -> None:
    model, batch = bert(), tokens(5)
    found = extractor(model).forward_values(batch)
    np.testing.assert_allclose(found, model(batch).detach(), rtol=1e-6, atol=1e-6)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3).half()

    def forward(self, x):
        return self.last(self.first(x))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, mask):
        return self.layer(x * mask)


def program(folder: Path) -> nn.Module:
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.zeros(1, 4),)), folder / "net.pt2")
    return built(ModelConfig(source=f"program:{folder}/net.pt2", num_classes=3))


class ComplexLinear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3, bias=False, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.complex(x, torch.zeros_like(x))).real


def test_inputs_of_complex_weights_are_of_the_type_of_their_parts() -> None:
    model, inputs = ComplexLinear().eval(), torch.randn(5, 4, dtype=torch.float64)
    found = gradscore.features(model, inputs, losses=["uniform"], statistics=["l2"])
    logits = model(inputs)
    assert found.filter(like="logit_").to_numpy() == pytest.approx(logits.detach().numpy(), rel=1e-12)
    wanted = [
        float(torch.autograd.grad(-row.log_softmax(0).mean(), model.weight, retain_graph=True)[0].norm())
        for row in logits
    ]
    assert found["uniform/weight/l2"].to_numpy() == pytest.approx(wanted, rel=1e-9)


class Misspelt(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weihgt * super().forward(x)  # noqa: F821


HINTS = {
    "weights of two types": (lambda folder: Mixed(), torch.zeros(5, 4), r"give all weights of the model one type"),
    "a missing argument": (lambda folder: Masked(), torch.zeros(5, 4), "forward has to take what is given"),
    "an unknown argument": (
        lambda folder: Masked(), {"x": torch.zeros(5, 4), "masks": torch.zeros(5, 4)},
        r"keyword argument 'masks'; .* names of its parameters \(np\.savez.* labels under 'labels'",
    ),
    "a program of fixed shape": (program, torch.zeros(5, 4), "export it with dynamic_shapes whose first axis"),
    "arrays of another shape": (
        lambda folder: Masked(), {name: torch.zeros(5, 3) for name in ("x", "mask")}, "as many numbers, in the same",
    ),
    "channels": (
        lambda folder: nn.Sequential(nn.Conv2d(3, 3, 2), nn.Flatten()), torch.zeros(5, 1, 2, 2),
        r"cannot take images of shape \(1, 2, 2\): .* check preprocessing \(resize, crop, channels\)",
    ),
    "columns": (
        lambda folder: nn.Linear(4, 3), torch.zeros(5, 3),
        r"\(3,\): .* samples have as many numbers.*by arguments: {inputs: \[COLUMN",
    ),
    "channels that lie last": (
        lambda folder: nn.Sequential(nn.Conv2d(3, 3, 2), nn.Flatten()), torch.zeros(5, 2, 2, 3),
        r"shape \(2, 2, 3\): .*give images\.permute\(0, 3, 1, 2\)",
    ),
    "one image for a batch": (
        lambda folder: nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), torch.zeros(3, 4, 4),
        r"shape \(4, 4\): .*one sample as x\[None\], and several as torch\.stack\(list\)",
    ),
    "a token beyond the vocabulary": (
        lambda folder: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, 3)), torch.full((5, 4), 9),
        "whole number is beyond the rows of an embedding: check the tokenizer",
    ),
    "a name that is not there": (
        lambda folder: Misspelt(), torch.zeros(5, 4), "'weihgt' is not defined; this is an error of the code"
    ),
    "softmax": (
        lambda folder: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), torch.zeros(5, 4), "take the softmax out",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "batch", "message"), HINTS.values(), ids=HINTS)
def test_what_is_said(tmp_path: Path, make, batch, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        extractor(make(tmp_path)).values(batch)
