"""docs/detection.md and its data, docs/detection.csv."""

import re
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
    protocols = re.findall(r"`(\w+)`", re.search(r"Under (.*?) the score", PAGE, re.DOTALL)[1])
    close = [(SETS["gain"][SETS["protocol"] == each] >= -0.003).sum() for each in protocols]
    means = ROWS[ROWS["set"] == "all (mean)"]
    ahead = [(means["gain"][means["protocol"] == each] > 0).sum() for each in protocols]
    of_wrong = ROWS[ROWS["protocol"] == "wrong"]
    said = " ".join(PAGE.split())
    assert f"best baseline on {close[0]}, {close[1]} and {close[2]} of {len(SETS) // 3} sets" in said
    assert f"by mean on {ahead[0]}, {ahead[1]} and {ahead[2]} of {len(of_wrong)} networks" in said
    assert f"within 0.002 on all {len(of_wrong)}." in said
    assert of_wrong["gain"].round(3).min() >= -0.002
