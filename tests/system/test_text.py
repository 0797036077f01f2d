"""Texts of CSV files are texts in a spreadsheet too."""

import pandas as pd
import pytest

from gradscore.system import without_formulas

CELLS = {
    "formula": ("=1+1", "'=1+1"),
    "formula with plus": ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
    "formula with minus": ("-2+3", "'-2+3"),
    "function": ("@SUM(A1)", "'@SUM(A1)"),
    "after a tab": ("\t=1", "'\t=1"),
    "after a return": ("\r=1", "'\r=1"),
    "path": ("cats/1=2.png", "cats/1=2.png"),
    "number as text": ("-5", "-5"),
    "number": (-5.5, -5.5),
    "nothing": ("", ""),
    "missing": (None, None),
}


@pytest.mark.parametrize(("given", "wanted"), CELLS.values(), ids=CELLS)
def test_cells(given, wanted):
    table = pd.DataFrame({"cell": [given], "other": ["a"]}).astype({"cell": object})
    found = without_formulas(table)
    assert found["cell"].tolist() == [wanted]
    assert list(found) == ["cell", "other"]
    assert table["cell"].tolist() == [given]
