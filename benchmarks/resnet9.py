"""The ResNet-9 of TRAK's examples for CIFAR-10; plain torch, so that a peer's environment can build it too."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Residual(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x + self.module(x)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def resnet9() -> nn.Module:
    return nn.Sequential(
        convolution(3, 64),
        convolution(64, 128, 5, 2, 2),
        Residual(nn.Sequential(convolution(128, 128), convolution(128, 128))),
        convolution(128, 256),
        nn.MaxPool2d(2),
        Residual(nn.Sequential(convolution(256, 256), convolution(256, 256))),
        convolution(256, 128, padding=0),
        nn.AdaptiveMaxPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(128, 10, bias=False),
        Times(0.2),
    )


def load_images(path: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Normalised images (n, 3, 32, 32) and labels of an npz file, the first `count` of them."""
    content = np.load(path)
    images = torch.from_numpy(content["images"][:count]).permute(0, 3, 1, 2).float() / 255
    images = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    return images.contiguous(), torch.from_numpy(content["labels"][:count])


def trained(path: Path, *, epochs: int = 3, batch_size: int = 100) -> nn.Module:
    """Trained on the images of an npz file: 10,000 of them take about ten minutes on two cores."""
    images, labels = load_images(path)
    torch.manual_seed(0)
    model = resnet9().to(memory_format=torch.channels_last)
    steps = epochs * -(-len(images) // batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.4, total_steps=steps, pct_start=0.3, final_div_factor=1e3
    )
    for epoch in range(epochs):
        for rows in torch.randperm(len(images)).split(batch_size):
            batch = images[rows].flip(3) if torch.rand(1) < 0.5 else images[rows]
            logits = model(batch.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits, labels[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}", file=sys.stderr, flush=True)
    return model
