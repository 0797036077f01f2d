"""The rows of a split, and how fast they come."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradscore.features import split_rows
from gradscore.features.split_rows import SplitRows

SECONDS = {"of one batch": ([3.0], None), "the first does not count": ([30.0, 31.0, 32.0], 4.0)}


@pytest.mark.parametrize(("ends", "expected"), SECONDS.values(), ids=SECONDS)
def test_rate(ends, expected, monkeypatch):
    clock = iter(ends)
    monkeypatch.setattr(split_rows, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    extractor = SimpleNamespace(values=lambda images, copies: np.zeros((len(images), 2)), copies_of=lambda _: None)
    rows = SplitRows(extractor, split="in_dist.fit", num_classes=2)
    batch = SimpleNamespace(images=torch.zeros(4, 1), content_hashes=[], sample_ids=list("abcd"))
    for _ in ends:
        rows.compute(batch)
    assert rows.rate == expected
