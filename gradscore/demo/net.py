"""The network of the demo, and what trains it: `python net.py` reads images/train and writes weights.safetensors.

Classes are the folders of images/train in alphabetical order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

MEAN, STD = 0.286, 0.353
"""Of the pixels, from 0 to 1; gradscore.yaml has them too."""


class SmallCNN(nn.Module):
    """A network of LeNet's size for grey images of 28 x 28 pixels."""

    def __init__(self, num_classes: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.hidden = nn.Linear(32 * 7 * 7, 128)
        self.classes = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1, 28, 28) to logits (N, num_classes)."""
        return self.classes(self.hidden(self.features(images)).relu())


def read(folder: Path) -> tuple[Tensor, Tensor]:
    """Normalised images (N, 1, 28, 28) and labels (N,)."""
    classes = sorted(path.name for path in folder.iterdir())
    files = sorted(folder.glob("*/*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    return (torch.from_numpy(pixels).float().unsqueeze(1) / 255 - MEAN) / STD, labels


def train(model: nn.Module, images: Tensor, labels: Tensor, *, epochs: int = 6, batch_size: int = 32) -> None:
    """Trains by Adam with a one-cycle schedule, the same on every run."""
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = epochs * -(-len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    torch.set_num_threads(1)  # steps this small only wait for each other
    here = Path(__file__).parent
    torch.manual_seed(0)
    network = SmallCNN()
    images, labels = read(here / "images" / "train")
    train(network, images, labels)
    save_file(network.state_dict(), here / "weights.safetensors")
    print(f"trained on {len(images)} images: {here / 'weights.safetensors'}")
