"""What the documentation says of the code by name."""

import re
import tomllib
from pathlib import Path

from manual_pages import code_of

from gradscore.baselines import BASELINES
from gradscore.data import AUGMENTATIONS, SOURCES
from gradscore.gradients import RULES
from gradscore.inspect import QUANTITIES
from gradscore.losses import LOSSES
from gradscore.models import MODEL_SOURCES
from gradscore.statistics import STATISTICS

ROOT = Path(__file__).parent.parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = "benchmarks|cli|configs|data_scripts|docs|gradscore|tests"
PAGES = {page.name: page for page in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))}
REGISTRIES = {
    registry.group: registry
    for registry in (RULES, LOSSES, STATISTICS, SOURCES, MODEL_SOURCES, AUGMENTATIONS, BASELINES, QUANTITIES)
}
RECIPES = re.findall(
    r"^\| .* \| `([A-Z_]+)` (?:there|in `.*?`) \| .* \| `(gradscore\.\w+)` \|$", CONTRIBUTING, re.MULTILINE
)


def test_files_that_are_mentioned_are_there():
    mentioned = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
    names = {name for page in PAGES.values() for name in mentioned.findall(page.read_text())}
    assert {name for name in names if not (ROOT / name).exists()} == set()


def test_entry_points_are_of_registries():
    groups = tomllib.loads(code_of("CONTRIBUTING.md", "toml"))["project"]["entry-points"]
    assert [group for group in groups if group not in REGISTRIES] == []


def test_every_registry_has_a_recipe():
    assert {group: globals()[table] for table, group in RECIPES} == REGISTRIES
