"""The training steps that both sides look at; plain torch, so that the environment of the peers can run it."""

from collections.abc import Iterator

import torch
from models import build, images
from torch import Tensor, nn

STEPS, BATCH = 4, 16
BINS, SPAN = 40, (-0.05, 0.05)
BINS_2D, SPANS_2D = (20, 16), ((-0.05, 0.05), (-0.1, 0.1))
EPSILON = 1e-5


def lenet() -> nn.Module:
    return build("LeNet 32-64").train()


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(STEPS):
        yield images(BATCH, seed=step), torch.randint(10, (BATCH,), generator=torch.Generator().manual_seed(step))
