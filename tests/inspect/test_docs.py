"""What docs/inspect.md tells its readers to do, done."""

import re
import warnings
from contextlib import chdir
from pathlib import Path

import pandas as pd
import pytest
from manual_pages import run_page

from gradscore.inspect import QUANTITIES

pytestmark = pytest.mark.slow

TEXT = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("docs")


@pytest.fixture(scope="module")
def names(folder):
    with warnings.catch_warnings(), chdir(folder):
        for message in ("LeafSpec.*deprecated", "does not have many workers", "logging interval"):
            warnings.filterwarnings("ignore", f".*{message}", module="lightning.pytorch")
        return run_page("inspect.md")


def test_training_loop(names):
    figures = names["figures"].set_index(["epoch", "quantity", "measure", "layer", "statistic"])["value"]
    assert figures[(1, "output gradient", "norm", "2", "count")] == 10
    assert figures[(0, "gradient histogram", "gradients", "(model)", "count")] == 2 * 32 * 195
    assert figures[(1, "gradient signal-to-noise ratio", "batch", "(model)", "count")] == 2


def test_picture_of_a_run(names, folder):
    assert names["troubles"] == []
    assert all((folder / name).is_file() for name in ("training.html", "training.parquet"))
    assert pd.read_parquet(folder / "training.parquet")["stop"].max() == 20


def test_with_lightning(names):
    trained = names["trained"].set_index(["epoch", "quantity", "measure", "layer", "statistic"])["value"]
    assert trained[(1, "output gradient", "norm", "net.2", "count")] == 4
    assert trained[(0, "gradient signal-to-noise ratio", "batch", "(model)", "count")] == 1


EXPECTED = {
    "saturation": {"0", "1", "2"},
    "largest output gradient": {"0", "1", "2"},
    "sparsity": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "rank": {"0", "2"},
    "spread of sample norms": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "explicit": {"(model)"},
}


@pytest.mark.parametrize("quantity", EXPECTED)
def test_own_quantities(names, quantity):
    assert {entry.layer for entry in names["found"] if entry.quantity == quantity} == EXPECTED[quantity]


def test_values_of_own_quantities(names):
    means = {(entry.quantity, entry.layer): entry.value for entry in names["found"] if entry.statistic == "mean"}
    assert means["rank", "0"] == 8
    assert names["by_hand"].value["share of zeros"]["anything"].mean == 0.5


def test_all_quantities_are_listed():
    assert re.findall(r"^- `(\w+)` \(`\w+`\): ", TEXT, re.MULTILINE) == list(QUANTITIES)
