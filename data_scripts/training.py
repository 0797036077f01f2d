"""Training a small classifier, the same on every run, and writing its weights."""

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn


def train(model: nn.Module, images: Tensor, labels: Tensor, *, epochs: int, batch_size: int, rate: float) -> None:
    """Trains by Adam with a one-cycle schedule.

    Args:
        model: changed in place.
        images: (N, C, H, W), normalised.
        labels: (N,).
        epochs: passes over the data.
        batch_size: samples in a step.
        rate: highest learning rate.
    """
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of samples whose label is predicted."""
    predictions = torch.cat([model(batch).argmax(1) for batch in images.split(512)])
    return (predictions == labels).double().mean().item()


def save(model: nn.Module, path: Path) -> str:
    """Writes the weights under a temporary name, renames the file, and returns its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    save_file(model.state_dict(), temporary)
    temporary.replace(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()
