"""docs/audit.md and its data: what the tables and the text say is what the files have."""

import re
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"
PAGE = " ".join((DOCS / "audit.md").read_text(encoding="utf-8").split())
COUNTS = pd.read_csv(DOCS / "audit-counts.csv")
SCORES = pd.read_csv(DOCS / "audit-scores.csv")


def test_every_row_of_scores_is_in_the_page() -> None:
    for row in SCORES.itertuples():
        areas = " | ".join(f"{each:.4f}" for each in (row.auroc_audit, row.auroc_loss, row.auroc_cleanlab))
        assert f"| {row.set} | {row.noise} | {areas} | {row.f1_audit:.2f} | {row.f1_cleanlab:.2f} |" in PAGE
    assert f"equal by interval, in {(SCORES['seeds_behind'] == 0).sum()} of {len(SCORES)} rows" in PAGE
    assert f"higher F1 in {(SCORES['f1_audit'] > SCORES['f1_cleanlab']).sum()}," in PAGE


def test_counts_are_of_the_file() -> None:
    for noise, some in COUNTS.groupby("noise"):
        held = [((some["low"] <= some["changed"]) & (some["changed"] <= some[end])).sum() for end in ("high", "up_to")]
        assert re.search(rf"\| {noise} \| [^\n]*?\| {held[0]} of {len(some)} \| {held[1]} of {len(some)} \|", PAGE)
        fifth = some[some["share"] == 0.2].groupby("set")[["estimate", "changed"]].sum()
        ratio = fifth["estimate"] / fifth["changed"]
        assert f"| {ratio.mean():.2f} ({ratio.min():.2f} to {ratio.max():.2f}) | {held[0]} of" in PAGE
    by_instance = COUNTS[(COUNTS["noise"] == "instance") & (COUNTS["share"] > 0)]
    inside = [
        (by_instance["low"] <= by_instance["changed"]) & (by_instance["changed"] <= by_instance[end])
        for end in ("high", "up_to")
    ]
    assert (
        f"they hold {inside[0].sum()} of {len(by_instance)} changed sets; *or up to* holds {inside[1].sum()}**" in PAGE
    )
