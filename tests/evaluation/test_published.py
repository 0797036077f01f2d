"""The same figures as pytorch-ood's on the same scores; its AUPR joins points by straight lines, which is too high."""

import importlib

import numpy as np
import pytest
import torch

from gradscore.compat import import_torchvision
from gradscore.evaluation.metrics import METRICS

GENERATOR = np.random.default_rng(0)
POSITIVE = np.arange(400) % 3 == 0
SCORES = {
    "overlapping": GENERATOR.normal(POSITIVE * 1.5, 1.0),
    "inverted": GENERATOR.normal(POSITIVE * -1.0, 1.0),
    "apart": GENERATOR.normal(POSITIVE * 20.0, 1.0),
    "tied": np.round(GENERATOR.normal(POSITIVE * 1.5, 1.0)),
}
PEERS = {
    "auroc": ("AUROC", {}),
    "fpr95_ood_positive": ("FPRAtTPR", {"tpr": 0.95}),
}


@pytest.mark.parametrize("metric", PEERS)
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_same_as_pytorch_ood(scores, metric):
    import_torchvision()
    name, settings = PEERS[metric]
    peer = getattr(importlib.import_module("pytorch_ood.metrics"), name)(**settings)
    peer.update(torch.from_numpy(scores), torch.from_numpy(np.where(POSITIVE, -1, 0)))
    [expected] = peer.compute().values()
    assert METRICS[metric](scores, POSITIVE) == pytest.approx(expected, abs=1e-9)
