"""What `gradscore score` says of samples on the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .output import Output, Terminal, say

if TYPE_CHECKING:
    import pandas as pd

    from gradscore.deployment import Scorer

NAMES = {"wrong": "wrong", "ood": "OOD"}


def print_card(output: Output, row: pd.Series[Any], scorer: Scorer) -> None:
    """One sample, on a few lines."""
    output.say(row["sample_id"])
    if row["error"]:
        return
    card = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    card.add_row("prediction", _class(row))
    for name, detector in scorer.bundle.detectors.items():
        known = _known(row[f"probability_{name}"])
        p_value = f"p-value {row[f'p_value_{name}']:.4f}, rejected at {detector.threshold.alpha:.4g} and below"
        card.add_row(f"P({NAMES[name]})", f"{known}   {p_value}")
    card.add_row("decision", row["decision"] + (f": {row['reason']}" if row["reason"] else ""))
    output.show(card)
    for name in scorer.bundle.detectors:
        if f"drivers_{name}" in row.index:
            output.say(f"  what moved the score for '{NAMES[name]}' most: {row[f'because_{name}']}")
            for driver in str(row[f"drivers_{name}"]).split("; "):
                output.say(f"    {driver}")


def print_rows(output: Output, table: pd.DataFrame, scorer: Scorer) -> None:
    """A line for each sample."""
    for row in table.to_dict("records"):
        if row["error"]:
            output.say(f"error   {row['error']}")
            continue
        values = [
            f"P({NAMES[name]}) {_known(row[f'probability_{name}'])} p {row[f'p_value_{name}']:.4f}"
            for name in scorer.bundle.detectors
        ]
        reason = f"  {row['reason']}" if row["reason"] else ""
        output.say(f"{row['decision']}  {row['sample_id']}  {_class(row)}  {'  '.join(values)}{reason}")
        for name in scorer.bundle.detectors:
            if f"drivers_{name}" in row:
                output.say(f"        {NAMES[name]}: {row[f'because_{name}']}; {row[f'drivers_{name}']}")


def _class(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """What was predicted: the name of the class, where there is one."""
    return str(row["prediction_name"]) if "prediction_name" in row else f"class {row['prediction']}"


def _known(probability: float) -> str:
    """A probability, or `-` from a one-class model, which has none."""
    return "-" if math.isnan(probability) else f"{probability:.3f}"


def print_summary(output: Output, counts: Counter[str], *, first_error: str, out: Path | None) -> None:
    """How many of which decision there were, and where they are."""
    if sum(counts.values()) > 1 or out is not None:
        output.say(f"{counts['accept']} accepted, {counts['reject']} rejected, {counts['error']} not scored")
    not_scored(counts["error"], first_error=first_error)
    if out is not None:
        output.say(f"results: {out}")


def not_scored(count: int, *, first_error: str) -> None:
    """How many samples could not be scored, if any, and why the first one could not."""
    if count:
        first = f"; the first: {first_error}" if first_error else ""
        say(Terminal(stderr=True), f"not scored: {count}{first}")
