"""docs/data.md: every row names a test that holds it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = re.sub(r"<!-- table: .*?<!-- end -->", "", (ROOT / "docs/data.md").read_text(), flags=re.DOTALL)  # generated
ROWS = re.findall(r"^\|.*\| `(test_\w+)` \|$", PAGE, re.MULTILINE)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
}


def test_every_row_has_a_test() -> None:
    rows = re.findall(r"^\|(?!---).*\|$", PAGE, re.MULTILINE)
    heads = [row for row in rows if row.endswith("| test |")]
    assert len(ROWS) == len(rows) - len(heads) > 30


@pytest.mark.parametrize("name", sorted(set(ROWS)))
def test_the_test_of_a_row_exists(name: str) -> None:
    assert name in TESTS
