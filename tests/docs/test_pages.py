"""What the documentation says of the code by name."""

import csv
import pkgutil
import re
from pathlib import Path

from gradscore.evaluation.metrics import METRICS

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


def test_what_the_page_of_python_is_made_of_is_there():
    for name in re.findall(r"^::: (\S+)$", PAGES["python.md"].read_text(), re.MULTILINE):
        pkgutil.resolve_name(name)


INTERVALS = {
    **{f"{name} of OOD samples": f"| {name}, OOD samples |" for name in METRICS},
    **{f"{name} of wrong predictions": f"| {name}, wrong predictions |" for name in (*METRICS, "aurc")},
    "gain": "| gain in AUROC |",
    "group of OOD sets": "| AUROC, mean of three sets |",
    "gain of a group": "| gain, mean of three sets |",
    "Brier score": "| brier |",
    "accuracy of shifted sets": "| accuracy |",
    "comparison of two runs": "| AUROC, two classifiers |",
    "test of AUROCs on the same samples": "| auroc, other scores |",
    "test of AUROCs of two truths": "| auroc, two truths |",
    "test of rates on the same samples": "| rate |",
    "false-alarm rate of a threshold": "a threshold's own false-alarm rate",
}
"""Every kind of interval that is printed, and its row on the page, or in its file, that says how often it covers."""


def test_every_kind_of_interval_was_measured():
    page = PAGES["evidence.md"].read_text(encoding="utf-8")
    measured = csv.reader((ROOT / "docs" / "interval-coverage.csv").read_text(encoding="utf-8").splitlines())
    page += "".join(f"| {name} |" for name, *_ in measured)
    assert [kind for kind, row in INTERVALS.items() if row not in page] == []
