"""What moved is named, and rounding is not called a move."""

import numpy as np
import pandas as pd
import pytest

from gradscore.check.differences import feature_drift
from gradscore.check.expected import Probe

HASHES = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
COLUMNS = {
    "logit_0": [3.0, 1.0],
    "logit_1": [1e-9, -2.0],
    "uniform/a.weight/max": [2.0, 1.0],
    "uniform/a.weight/mean": [1e-9, 0.5],
    "uniform/a.weight/l1": [10.0, 1e-30],
    "uniform/b.bias/l1": [5.0, None],
}
PROBE = Probe(content_hash=HASHES, columns=COLUMNS)


def table(**changes: list[float]) -> pd.DataFrame:
    columns = {name.replace("_of_", "/").replace("__", "."): values for name, values in changes.items()}
    hashes = [f"{name}ffff" for name in HASHES]
    return pd.DataFrame({"content_hash": hashes, **COLUMNS, **columns}).iloc[::-1].reset_index(drop=True)


CASES = {
    "nothing": (table(), 0.0, []),
    "a little": (table(logit_0=[3.0003, 1.0]), 1e-4, []),
    "much": (table(logit_0=[3.3, 1.0]), 0.3 / 3.3, ["logit_0"]),
    "a small logit beside a large one": (table(logit_1=[2e-9, -2.0]), 3e-10, []),
    "a small mean beside a large maximum": (table(uniform_of_a__weight_of_mean=[3e-9, 0.5]), 1e-9, []),
    "a tiny norm that doubled": (table(uniform_of_a__weight_of_l1=[10, 2e-30]), 0.5, ["uniform/a.weight/l1"]),
    "a value that came": (table(uniform_of_b__bias_of_l1=[5.0, 1.0]), np.inf, ["uniform/b.bias/l1"]),
    "a value that went": (table(logit_0=[np.nan, 1.0]), np.inf, ["logit_0"]),
}


@pytest.mark.parametrize(("now", "largest", "moved"), CASES.values(), ids=CASES)
def test_moves(now: pd.DataFrame, largest: float, moved: list[str]) -> None:
    drift = feature_drift(PROBE, now, tolerance=1e-3)
    assert drift.largest == pytest.approx(largest, rel=1e-3, abs=2e-9)
    assert (drift.moved, drift.schema, drift.samples) == (moved, "", 2)


def test_the_place_in_words() -> None:
    drift = feature_drift(PROBE, table(uniform_of_a__weight_of_l1=[20.0, 1e-30]), tolerance=1e-3)
    assert drift.place == "l1 of layer a.weight, loss uniform"


def test_columns_that_differ() -> None:
    drift = feature_drift(PROBE, table().rename(columns={"uniform/b.bias/l1": "uniform/c.bias/l1"}), tolerance=1e-3)
    assert drift.schema == "missing uniform/b.bias/l1; unexpected uniform/c.bias/l1"


def test_no_sample_in_common() -> None:
    assert feature_drift(PROBE, table().assign(content_hash=["x", "y"]), tolerance=1e-3).samples == 0
