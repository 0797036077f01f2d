"""What docs/projections.md tells its readers to do, done."""

from contextlib import chdir

import numpy as np
import pytest
import torch
from both_ways import reference_of
from manual_pages import code_of

import gradscore


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("projections")


@pytest.fixture(scope="module")
def names(folder):
    found = {}
    with chdir(folder):
        exec(compile(code_of("projections.md"), "projections.md", "exec"), found)
    return found


def test_no_query_is_its_own_nearest(names):
    assert names["nearest"].places.shape == (5, 3)
    assert not (names["nearest"].places == np.arange(5)[:, None]).any()
    assert names["products"].shape == (5, 300)


def test_products_are_about_the_exact_ones(names):
    model, losses = names["model"], names["cross_entropy"](names["model"](names["images"]), names["labels"])
    gradients = reference_of(dict(model.named_parameters()), losses, torch.ones_like(losses)).values()
    whole = torch.cat([each.flatten(1) for each in gradients], 1).numpy()
    norms = np.linalg.norm(whole, axis=1)
    errors = (names["products"] - whole[:5] @ whole.T) / norms / norms[:5, None]
    assert np.sqrt((errors**2).mean()) < 1.5 / np.sqrt(4096)  # one over the root of dim, where g h is small


def test_folder_is_read_again(names, folder):
    read = gradscore.load_projections(folder / "projected")
    assert np.array_equal(read.values, names["bank"].values)
