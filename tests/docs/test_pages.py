"""What the documentation says of the code by name."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = "benchmarks|cli|configs|data_scripts|docs|gradscore|tests"
PAGES = {page.name: page for page in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))}
REGISTRIES = {"RULES", "LOSSES", "STATISTICS", "SOURCES", "MODEL_SOURCES", "AUGMENTATIONS", "BASELINES", "QUANTITIES"}
RECIPES = re.findall(r"^\| .* \| `([A-Z_]+)` (?:there|in `.*?`) \| .* \|$", CONTRIBUTING, re.MULTILINE)


def test_files_that_are_mentioned_are_there():
    mentioned = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
    names = {name for page in PAGES.values() for name in mentioned.findall(page.read_text())}
    assert {name for name in names if not (ROOT / name).exists()} == set()


def test_every_registry_has_a_recipe():
    assert set(RECIPES) == REGISTRIES
