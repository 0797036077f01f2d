"""The command of benchmarks/detection.py, in its small form, on the network that is made soonest."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from detection import MEAN, PROTOCOLS, main


@pytest.mark.slow
def test_every_set_of_a_network_has_its_cell_under_every_protocol(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- detection begins -->\n<!-- detection ends -->\n", encoding="utf-8")
    arguments = ["--out", str(tmp_path / "zoo"), "--small", "--only", "cells", "--threads", "1", "--write", str(page)]
    found = main(arguments)
    chosen = found[found["score"] == "chosen"]
    assert set(chosen["protocol"]) == {*PROTOCOLS, "wrong"}
    of_sets = chosen[~chosen["dataset"].str.endswith("(mean)") & (chosen["protocol"] != "wrong")]
    assert of_sets.groupby("protocol")["dataset"].nunique().eq(6).all()
    np.testing.assert_allclose(chosen["auroc"] - chosen["best_auroc"], chosen["gain"], atol=1e-12)
    rows = pd.read_csv(page.with_suffix(".csv"))
    assert len(rows) == len(chosen)
    means = rows[(rows["set"] == MEAN) & (rows["protocol"] == PROTOCOLS[0])]
    assert f"| cells | {means['auroc'].item():.3f} |" in page.read_text(encoding="utf-8")
