"""docs/audit.md and its data: what the tables and the text say is what the files have."""

import re
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"
PAGE = " ".join((DOCS / "audit.md").read_text(encoding="utf-8").split())
COUNTS = pd.read_csv(DOCS / "audit-counts.csv")
SCORES = pd.read_csv(DOCS / "audit-scores.csv")


def test_every_row_of_scores_is_in_the_page() -> None:
    for title, rows in SCORES.groupby("set"):
        areas = [f"{row.auroc_audit:.4f}, {row.auroc_loss:.4f}, {row.auroc_cleanlab:.4f}" for row in rows.itertuples()]
        assert f"| {title} | {' | '.join(areas)} |" in PAGE
        flags = [f"{row.f1_audit:.2f}, {row.f1_cleanlab:.2f}" for row in rows.itertuples()]
        assert f"| {title} | {' | '.join(flags)} |" in PAGE
    assert f"equal by interval, in {(SCORES['seeds_behind'] == 0).sum()} of {len(SCORES)} cases" in PAGE
    assert f"higher F1 in {(SCORES['f1_audit'] > SCORES['f1_cleanlab']).sum()}," in PAGE


def test_counts_are_of_the_file() -> None:
    for noise, some in COUNTS.groupby("noise"):
        held = [((some["low"] <= some["changed"]) & (some["changed"] <= some[end])).sum() for end in ("high", "up_to")]
        assert re.search(rf"\| {noise} \| [^\n]*?\| {held[0]}/{len(some)} \| {held[1]}/{len(some)} \|", PAGE)
        fifth = some[some["share"] == 0.2].groupby("set")[["estimate", "changed"]].sum()
        ratio = fifth["estimate"] / fifth["changed"]
        assert f"| {ratio.mean():.2f} ({ratio.min():.2f} to {ratio.max():.2f}) | {held[0]}/{len(some)} |" in PAGE
    by_instance = COUNTS[(COUNTS["noise"] == "instance") & (COUNTS["share"] > 0)]
    inside = [
        (by_instance["low"] <= by_instance["changed"]) & (by_instance["changed"] <= by_instance[end])
        for end in ("high", "up_to")
    ]
    assert (
        f"they hold {inside[0].sum()} of {len(by_instance)} changed sets; *or up to* holds {inside[1].sum()}**" in PAGE
    )
