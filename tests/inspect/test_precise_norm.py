"""Norms of tensors beside NumPy in float64: long ones, rows, and squares that float32 cannot hold."""

import numpy as np
import pytest
import torch

from gradscore.inspect.layer_quantities import precise_norm

SHAPES = {"long": (5_000_000,), "a matrix": (300, 70), "no elements": (0, 3), "one number": ()}


def random(shape, factor=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * factor


@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30], ids=["usual", "tiny", "huge"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_norms(shape, factor):
    tensor = random(shape, factor)
    found = precise_norm(tensor)
    assert (found.dtype, found.shape) == (torch.float64, ())
    np.testing.assert_allclose(found, np.sqrt((tensor.double().numpy() ** 2).sum()), rtol=1e-7)


@pytest.mark.parametrize("layout", ["by rows", "by columns"])
def test_norms_of_rows(layout):
    tensor = random((7, 20_000)) if layout == "by rows" else random((20_000, 7)).t()
    found = precise_norm(tensor, dim=1)
    np.testing.assert_allclose(found, np.sqrt((tensor.double().numpy() ** 2).sum(1)), rtol=1e-7)
