"""docs/detection.md and its data, docs/detection.csv."""

import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from detection import table  # noqa: E402

PAGE = (ROOT / "docs" / "detection.md").read_text(encoding="utf-8")
ROWS = pd.read_csv(ROOT / "docs" / "detection.csv")
SETS = ROWS[(ROWS["protocol"] != "wrong") & ~ROWS["set"].str.endswith("(mean)")]


def test_the_tables_are_of_the_file() -> None:
    assert f"<!-- detection begins -->\n{table(ROWS)}\n<!-- detection ends -->" in PAGE


def test_every_set_is_there_under_every_protocol() -> None:
    assert (SETS.groupby(["network", "set"])["protocol"].nunique() == 3).all()


def test_the_text_says_what_the_file_has() -> None:
    of_wrong = ROWS[ROWS["protocol"] == "wrong"]
    said = " ".join(PAGE.split())
    assert f"is at most 0.002 behind the best baseline on all {len(of_wrong)} networks" in said
    assert of_wrong["gain"].round(3).min() >= -0.002
    means = ROWS[(ROWS["set"] == "all (mean)") & (ROWS["protocol"] == "in_dist_only")].set_index("network")["gain"]
    text, cells, other = -means.sort_values().head(3).round(3)
    assert means.sort_values().index[:2].tolist() == ["text", "cells"]
    assert f"the means of text and cells are {text} and {cells} behind, those of the others at most {other}" in said
