"""The compiled loops of histograms and moments: the same without them, and on any number of threads."""

import numpy as np
import pytest
import torch

from gradscore.inspect.histograms import Histogram
from gradscore.inspect.sample_gradients import EntryMoments
from gradscore.kernels import dispatch

VALUES = torch.tensor([[0.3, -0.2, 0.0], [5.0, -5.0, 0.1], [np.nan, np.inf, 0.5]], dtype=torch.float64)


def found_without_and_with(make, monkeypatch):
    fast = make()
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    return make(), fast


def several_threads(monkeypatch):
    monkeypatch.setattr(dispatch, "PARALLEL_ELEMENTS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def histogram_of(*columns):
    histogram = Histogram((8, 4)[: 1 + len(columns)], ((-1.0, 1.0), (-2.0, 2.0))[: 1 + len(columns)])
    histogram.add(VALUES, *columns)
    return histogram.counts.tolist(), histogram.non_finite, histogram.largest


PARAMETERS = {
    "one axis": (),
    "two axes": (torch.tensor([0.5, -3.0, 1.0]),),
    "a parameter that is not finite": (torch.tensor([0.5, np.nan, 1.0]),),
}


@pytest.mark.parametrize("columns", PARAMETERS.values(), ids=PARAMETERS)
def test_histograms_with_and_without_compiled_loops(columns, monkeypatch):
    plain, fast = found_without_and_with(lambda: histogram_of(*columns), monkeypatch)
    assert plain == fast
    assert fast[1] == (4 if columns and not columns[0].isfinite().all() else 2)


LARGE = {
    "near zero": (0.1, 5),
    "everywhere": (2.0, 5),
    "other bins": (0.5, 300),
}


def counts(scale, rows, axes):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(rows, 300_000 // rows, generator=generator) * scale
    columns = torch.randn(values.shape[1], generator=generator)
    histogram = Histogram((20, 30)[:axes], ((-1.0, 1.0), (-1.5, 1.6))[:axes])
    histogram.add(*(values, columns)[:axes])
    return histogram.counts.tolist()


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize(("scale", "rows"), LARGE.values(), ids=LARGE)
def test_many_values_without_compiled_loops_and_on_several_threads(scale, rows, axes, monkeypatch):
    plain, fast = found_without_and_with(lambda: counts(scale, rows, axes), monkeypatch)
    assert plain == fast
    monkeypatch.undo()
    several_threads(monkeypatch)
    assert counts(scale, rows, axes) == fast


def test_moments_with_and_without_compiled_loops(monkeypatch):
    values = torch.randn(7, 5000, generator=torch.Generator().manual_seed(0))
    plain, fast = found_without_and_with(lambda: EntryMoments.of(values), monkeypatch)
    for moments in (plain, fast):
        np.testing.assert_allclose(moments.mean, values.double().mean(0), atol=1e-7)
        np.testing.assert_allclose(moments.squares, 7 * values.double().var(0, correction=0), rtol=1e-5)


def test_moments_on_several_threads_and_on_one(monkeypatch):
    values = torch.randn(7, 50_000, generator=torch.Generator().manual_seed(0))
    alone = EntryMoments.of(values)
    several_threads(monkeypatch)
    shared = EntryMoments.of(values)
    assert torch.equal(shared.mean, alone.mean)
    assert torch.equal(shared.squares, alone.squares)
