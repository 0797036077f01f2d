"""Sick and healthy networks on which the findings of `gradscore.inspect` are tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradscore.system import import_torchvision


@dataclass(frozen=True)
class Patient:
    """A network, and samples to run it on."""

    model: nn.Module
    images: Tensor


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1, torch.tensor(data.target)


def trained(model: nn.Module, *, size: int = 8, channels: int = 1, steps: int = 80, rate: float = 2e-3) -> Patient:
    """A network trained on digits a little, with samples that it has not seen."""
    images, labels = digits()
    images = F.interpolate(images, size=(size, size)).repeat(1, channels, 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for step in range(steps):
        batch = slice(32 * step % 1500, 32 * step % 1500 + 32)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return Patient(model.eval(), images[1600:1664])


def random(model: nn.Module, *, size: int = 32, channels: int = 3, words: int = 0) -> Patient:
    """A fresh network, with noise or words at random."""
    images = torch.randint(0, words, (24, 12)) if words else torch.randn(24, channels, size, size)
    return Patient(model.eval(), images)


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )


def with_batch_norm() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def mlp(depth: int, gain: float, activation: type[nn.Module], width: int = 64) -> nn.Sequential:
    """Layers whose weights have a standard deviation of gain / root of the width."""
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(depth):
        layer = nn.Linear(64 if len(layers) == 1 else width, width)
        nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, activation()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Residual(nn.Module):
    """Blocks beside which the signal passes; no layer for activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.second = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for first, second in zip(self.first, self.second, strict=True):
            x = x + second(F.relu(first(x)))
        return self.head(x.mean((2, 3)))


class Detached(nn.Module):
    """Trains its last layer only, though nobody asked for that."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).detach().flatten(1))


class Root(nn.Module):
    """Takes the root of what is zero for some samples, where it has no slope."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.features(x.flatten(1))
        return self.head((found * (found > 0)).sqrt())


class Between(nn.Module):
    """Divides dark samples by one and others by zero in its own forward, behind its layers or between them."""

    def __init__(self, *, behind: bool) -> None:
        super().__init__()
        self.features, self.head, self.behind = nn.Linear(64, 32), nn.Linear(32, 10), behind

    def forward(self, x: Tensor) -> Tensor:
        share = (x.mean((1, 2, 3)) <= -0.4).float().unsqueeze(1)
        found = self.features(x.flatten(1)).tanh()
        return self.head(found) / share * share if self.behind else self.head(found / share * share)


def changed(patient: Patient, change: Callable[[nn.Module], object]) -> Patient:
    with torch.no_grad():
        change(patient.model)
    return patient


def on_digits(model: nn.Module) -> Patient:
    return Patient(model.eval(), digits()[0][1600:1664])


def dead_units() -> Patient:
    return changed(trained(cnn()), lambda model: model[2].bias[:8].fill_(-100))


def dead_layer() -> Patient:
    return changed(trained(cnn()), lambda model: model[2].bias.fill_(-100))


def dead_block() -> Patient:
    return changed(trained(Residual()), lambda model: model.first[2].bias.fill_(-100))


def nan_weight() -> Patient:
    return changed(trained(cnn()), lambda model: model[2].weight.view(-1)[5:6].fill_(torch.nan))


def infinite_input() -> Patient:
    patient = trained(cnn())
    images = patient.images.clone()
    images[3, 0, 2, 2] = torch.inf
    return Patient(patient.model, images)


def saturated() -> Patient:
    return changed(trained(cnn()), lambda model: [each.mul_(30) for each in (model[2].weight, model[5].weight)])


def raw_bytes() -> Patient:
    patient = trained(with_batch_norm())
    return Patient(patient.model, (patient.images + 1) * 127.5)


def foreign_statistics() -> Patient:
    return changed(trained(with_batch_norm()), lambda model: model[4].running_mean.add_(50))


def frozen_layer() -> Patient:
    return changed(trained(Residual()), lambda model: model.second[1].requires_grad_(False))


def constant_output() -> Patient:
    return changed(trained(cnn()), lambda model: model[5].bias.add_(1e9))


def zeroed_head() -> Patient:
    return changed(trained(cnn()), lambda model: [each.zero_() for each in (model[5].weight, model[5].bias)])


def overflow() -> Patient:
    return changed(trained(cnn()), lambda model: [model[each].weight.mul_(1e25) for each in (0, 2)])


@dataclass(frozen=True)
class Sick:
    """How to make a sick network, and the one finding that is expected."""

    make: Callable[[], Patient]
    kind: str
    layer: str
    because: tuple[str, ...] = ()


SICK = {
    "half of a layer's units dead": Sick(dead_units, "dead units", "2"),
    "a layer dead": Sick(dead_layer, "dead layer", "2", ("0", "1", "the same outputs for every sample")),
    "a block dead, beside which the signal passes": Sick(dead_block, "dead layer", "first.2"),
    "vanishing through ten sigmoids": Sick(lambda: on_digits(mlp(10, 1, nn.Sigmoid)), "vanishing", "1"),
    "exploding, mildly": Sick(lambda: on_digits(mlp(8, 8, nn.ReLU)), "exploding", "1"),
    "exploding until only rounding is left": Sick(lambda: on_digits(mlp(60, 4, nn.Tanh, 256)), "exploding", "1"),
    "one weight NaN": Sick(nan_weight, "bad weight", "2.weight"),
    "one input infinite": Sick(infinite_input, "bad input", "(input)"),
    "weights too large, outputs saturated": Sick(saturated, "saturated", "(model)"),
    "inputs as bytes, not normalised": Sick(raw_bytes, "wrong scale", "(input)", ("1", "4")),
    "batch norm with statistics of other data": Sick(foreign_statistics, "wrong scale", "4"),
    "a layer frozen by accident": Sick(frozen_layer, "frozen", "second.1"),
    "features detached by accident": Sick(lambda: on_digits(Detached()), "cut off", "features.2", ("features.0",)),
    "a bias so large that outputs are constant": Sick(constant_output, "constant output", "5"),
    "a last layer that is zero": Sick(zeroed_head, "constant output", "5"),
    "gradient of a root at zero": Sick(lambda: on_digits(Root()), "bad gradient", "features"),
    "outputs beyond float32": Sick(overflow, "bad output", "2"),
    "a division by zero behind the last layer": Sick(lambda: on_digits(Between(behind=True)), "bad output", "(model)"),
}


def from_torchvision(name: str, **options: object) -> nn.Module:
    import_torchvision()
    from torchvision import models

    return models.get_model(name, weights=None, num_classes=10, **options)


def from_timm(name: str, **options: object) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10, **options)


class Logits(nn.Module):
    """A network of transformers that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits


def from_transformers(name: str, **options: object) -> nn.Module:
    import_torchvision()
    import transformers

    kind = getattr(transformers, name)
    return Logits(kind(kind.config_class(num_labels=10, **options)))


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PATCHES = {**SMALL, "image_size": 16, "patch_size": 4, "num_channels": 1}
PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 1, 2, 2]}
TIMM_VIT = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 48, "num_heads": 3}

HEALTHY: dict[str, Callable[[], Patient]] = {
    "torchvision resnet18, fresh": lambda: random(from_torchvision("resnet18")),
    "torchvision vgg11, fresh": lambda: random(from_torchvision("vgg11", dropout=0.0), size=32),
    "torchvision densenet121, fresh": lambda: random(from_torchvision("densenet121")),
    "torchvision swin_t, fresh": lambda: random(from_torchvision("swin_t")),
    "timm resnet10t, fresh, branches that begin at zero": lambda: random(from_timm("resnet10t")),
    "timm convnext_atto, fresh": lambda: random(from_timm("convnext_atto")),
    "timm vit_tiny, fresh": lambda: random(from_timm("vit_tiny_patch16_224", **TIMM_VIT)),
    "timm nf_resnet26, fresh": lambda: random(from_timm("nf_resnet26")),
    "timm mobileone_s0, fresh, branches that add up": lambda: random(from_timm("mobileone_s0")),
    "transformers Bert, fresh": lambda: random(
        from_transformers("BertForSequenceClassification", vocab_size=64, **SMALL), words=64
    ),
    "transformers ViT, fresh": lambda: random(
        from_transformers("ViTForImageClassification", **PATCHES), size=16, channels=1
    ),
    "transformers Segformer, fresh, attention over one key": lambda: random(
        from_transformers("SegformerForImageClassification", attn_implementation="eager", **PYRAMID)
    ),
    "transformers PVT, fresh, attention over one key": lambda: random(
        from_transformers("PvtForImageClassification", image_size=32, **PYRAMID)
    ),
    "transformers CvT, fresh, one query of many is used": lambda: random(
        from_transformers("CvtForImageClassification", embed_dim=[8, 16, 32], num_heads=[1, 1, 2], depth=[1, 2, 3])
    ),
    "timm poolformer_s12, fresh, pooling over one place": lambda: random(from_timm("poolformer_s12")),
    "small CNN, trained": lambda: trained(cnn()),
    "small CNN with batch norm, trained": lambda: trained(with_batch_norm()),
    "residual network without layers for activations, trained": lambda: trained(Residual()),
    "torchvision resnet18, trained": lambda: trained(from_torchvision("resnet18"), size=16, channels=3, steps=30),
    "timm vit_tiny, trained": lambda: trained(
        from_timm("vit_tiny_patch16_224", **{**TIMM_VIT, "img_size": 16, "patch_size": 4, "in_chans": 1}), size=16
    ),
    "transformers ViT, trained": lambda: trained(from_transformers("ViTForImageClassification", **PATCHES), size=16),
}
