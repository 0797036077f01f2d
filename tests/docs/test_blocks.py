"""Every fenced block of README and manual is run by a test, or checked against what it speaks of."""

import copy
import re

import pytest
import yaml
from manual_pages import PAGES, ROOT, TUTORIALS, Block, blocks_of

from gradscore.config import Config

COMMANDS = ("sh", "bash")
"""Languages of blocks whose commands `test_commands.py` gives to the parsers that will read them."""

TESTS = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
CALLS = re.findall(r'\b(?:blocks_of|code_of|run_page)\("([\w.-]+)"(?:, "(\w+)")?', TESTS)
RUN = {(page, language or "python") for page, language in CALLS} | {(page, "python") for page in TUTORIALS}
"""By page and language, the blocks that a test asks for, to run them."""

SHOWN = {
    ("README.md", "text"): "what `gradscore demo`, which takes a minute, prints: figures differ by processor",
    ("monitoring.md", "text"): "an alarm as it is printed: figures differ by samples",
    ("tutorial-tables.md", "text"): "what the steps before print: figures differ by processor",
    ("tutorial-text.md", "text"): "what the steps before print: figures differ by processor",
}
"""By page and language, what others print, and why no test compares it figure for figure."""

GENERATED = re.compile(r"^<!-- table: .*?^<!-- end -->", re.DOTALL | re.MULTILINE)

FRAGMENTS = {block.place: block for page in PAGES if (page, "yaml") not in RUN for block in blocks_of(page, "yaml")}
"""Parts of configurations."""

MINIMAL = {
    "model": {"source": "torchvision:resnet18", "checkpoint": "weights.pt", "num_classes": 3},
    "preprocessing": {"mean": [0.5], "std": [0.5]},
    "data": {"in_dist": {"fit": {"source": "folder:images/fit"}, "test": {"source": "folder:images/test"}}},
    "run": "run",
}
"""A configuration that is complete with nothing to spare."""


def merged(below: dict, above: dict) -> dict:
    """Both, with what `above` says where they differ."""
    found = copy.deepcopy(below)
    for key, value in above.items():
        inner = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if inner else value
    return found


def is_covered(block: Block) -> bool:
    by_kind = block.language in COMMANDS or block.place in FRAGMENTS or is_generated(block)
    return by_kind or (block.page, block.language) in {*RUN, *SHOWN}


def is_generated(block: Block) -> bool:
    """Whether it stands in a part that docs/tables.py makes, which `test_tables.py` compares."""
    return any(block.text in part for part in GENERATED.findall(PAGES[block.page].read_text()))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def test_every_block_is_covered() -> None:
    assert [block.place for block in BLOCKS if not is_covered(block)] == []


def test_no_entry_is_stale() -> None:
    there = {(block.page, block.language) for block in BLOCKS}
    assert {*RUN, *SHOWN} - there == set()


def test_code_is_fenced() -> None:
    """Code that is only indented has no language, and nothing would check it."""
    indented = re.compile(r"^\n {4}(?:python|gradscore|make|pip|[A-Z_]+=\S+) .*$", re.MULTILINE)
    assert [name for name, page in PAGES.items() if indented.search(page.read_text())] == []


@pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS)
def test_fragment_fits_into_a_configuration(fragment: Block) -> None:
    """Each of its keys is known, and its values are allowed."""
    given = yaml.safe_load(fragment.text)
    assert given.keys() <= Config.model_fields.keys()
    assert Config.model_validate(merged(MINIMAL, given))
