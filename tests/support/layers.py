"""Layers and models that the engine is tried on."""

import torch
import torch.nn.functional as F
from torch import nn

N = 5
"""Samples of a batch."""


def images(*shape, dtype=torch.float64):
    return torch.randn(N, *shape, dtype=dtype)


def tokens(length=7, size=20):
    return torch.randint(0, size, (N, length))


def indices(*shape, size=12):
    return torch.randint(0, size, (N, *shape))


class Function(nn.Module):
    """A parameter and a function of it and the batch."""

    def __init__(self, shape, function):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.function = function

    def forward(self, x):
        return self.function(self.weight, x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x, _ = self.lstm(self.embed(x))
        x, _ = self.gru(x.transpose(0, 1))
        return self.head(x[-1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return (torch.tanh(self.inner(self.inner(self.embed(x)))) @ self.embed.weight.t()).mean(1)


class VisionTransformer(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, N, 8))
        self.batch_first = batch_first
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        x = self.layer(x) if self.batch_first else self.layer(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x[:, 0])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True))) + x)


def resnet():
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), Block(6), Block(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    model.train()(torch.randn(16, 3, 8, 8))
    return model


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(6 * 3 * 3, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


class Module(nn.Module):
    """A module and a function of it and the batch."""

    def __init__(self, module, function):
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, x):
        return self.function(self.module, x)


MODELS = {
    "MLP": lambda: (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), images(6)),
    "LeNet": lambda: (lenet(), images(1, 14, 14)),
    "ResNet with batch norm": lambda: (resnet(), images(3, 8, 8)),
    "ViT": lambda: (VisionTransformer(batch_first=True), images(3, 8, 8)),
    "ViT, time first": lambda: (VisionTransformer(batch_first=False), images(3, 8, 8)),
    "LSTM and GRU": lambda: (Recurrent(), tokens()),
    "tied weights": lambda: (Tied(), tokens()),
}


def outputs_of(case, device="cpu"):
    """Parameters, outputs and a gradient at these, with the same numbers on every device."""
    torch.manual_seed(0)
    model, batch = case()
    model = model.double().eval().to(device)
    recurrent = any(isinstance(each, nn.RNNBase) for each in model.modules())
    with torch.backends.cudnn.flags(enabled=not recurrent):  # it differentiates them in training mode alone
        outputs = model(batch.to(device)).flatten(1)
    gradient = torch.randn(outputs.shape, dtype=outputs.dtype)
    return dict(model.named_parameters()), outputs, gradient.to(device)
