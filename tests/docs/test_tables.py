"""The tables in the documentation are those of the code."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from manual_pages import manual_tables
from pydantic import Field

from gradscore.config import Config

ROOT = Path(__file__).parent.parent.parent
tables = manual_tables()

PAGES = {path.name: path for path in tables.PAGES}


TEXTS = {name: path.read_text() for name, path in PAGES.items()}


def test_pages_are_up_to_date():
    outdated = [name for name, text in TEXTS.items() if text != tables.filled(text)]
    assert outdated == [], "run `make docs-tables`"


def test_every_part_stands_on_one_page():
    found = [part for text in TEXTS.values() for _, part, _ in tables.MARKED.findall(text)]
    assert sorted(found) == sorted(tables.PARTS)


def test_what_stands_between_the_marks_is_replaced():
    page = "before\n<!-- table: sources -->\noutdated\n<!-- end -->\nafter\n"
    lines = tables.filled(page).splitlines()
    assert lines[:2] == ["before", "<!-- table: sources -->"]
    assert lines[3].startswith("- `folder:<dir>`: ")
    assert lines[-2:] == ["<!-- end -->", "after"]
    assert "outdated" not in lines


def test_a_mark_that_nothing_fills_is_an_error():
    with pytest.raises(KeyError, match="sauces"):
        tables.filled("<!-- table: sauces -->\n<!-- end -->\n")


def test_bars_in_cells_are_escaped():
    assert tables.table(["a"], [["|x|"]]).splitlines() == ["| a |", "|---|", r"| \|x\| |"]


TYPES = {
    "a number with bounds": (Annotated[float, Field(ge=0, le=1)], "number ≥ 0 and ≤ 1"),
    "one of some": (Literal["a", "b"], "`a`, `b`"),
    "or nothing": (int | None, "integer or null"),
    "a pair": (tuple[int, int], "[integer, integer]"),
    "a mapping": (dict[str, Any], "mapping of text to any"),
    "a list of bounded numbers": (list[Annotated[float, Field(gt=0)]], "list of numbers > 0"),
}


@pytest.mark.parametrize(("annotation", "wanted"), TYPES.values(), ids=TYPES)
def test_types_in_words(annotation: object, wanted: str) -> None:
    assert tables.words(annotation) == wanted


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    names = {name for section in places() for name in section.model_fields}
    assert [name for name in names if f"\n- `{name}` (" not in page and f"\n## `{name}`\n" not in page] == []


def places() -> dict[type, list[str]]:
    found: dict[type, list[str]] = {}
    tables.gather(Config, "", found)
    return found


def test_a_section_stands_once_with_all_its_places() -> None:
    headings = {", ".join(paths) for paths in places().values()}
    of_sets = ", ".join(f"data.in_dist.{name}" for name in ("fit", "test", "calibration", "bank"))
    assert {"", "model", of_sets, "data.ood[]"} <= headings
