"""`gradscore score`: accept or reject new samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gradscore.errors import DataError

from .options import (
    ALPHA,
    BatchSizeOption,
    BundleArgument,
    ColumnOption,
    DeviceOption,
    HashOption,
    IdsOption,
    JsonOption,
    ModelOption,
    QuietOption,
    RootOption,
    SamplesArgument,
    ThreadsOption,
    TrustOption,
    WeightsOption,
    out_option,
)
from .output import Output, Terminal, counting, say

if TYPE_CHECKING:
    import pandas as pd

    from gradscore.deployment import Scorer

EXPLAINED = 5

NO_SAMPLE = "there is no sample in it"
"""Message about files and folders without samples."""

NAMES = {"wrong": "wrong", "ood": "OOD"}


def score(
    bundle: BundleArgument,
    samples: SamplesArgument,
    out: Annotated[Path | None, out_option("FILE", "Write a .parquet or .csv file.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the layers and statistics that moved each score most.")
    ] = False,
    fail_on_reject: Annotated[
        bool, typer.Option("--fail-on-reject", help="Exit with 1 if a sample is rejected or cannot be scored.")
    ] = False,
    alpha: Annotated[float | None, typer.Option("--alpha", help=f"{ALPHA}; the bundle's by default.")] = None,
    column: ColumnOption = None,
    ids: IdsOption = None,
    root: RootOption = None,
    batch_size: BatchSizeOption[int] = 64,
    device: DeviceOption[str] = "auto",
    model: ModelOption = None,
    weights: WeightsOption = None,
    sha256: HashOption = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide on new samples: how likely wrong, how likely out of distribution, accept or reject?

    After gradscore demo: gradscore score demo/scorer.gradscore demo/images/unknown/bag --out demo/new.csv --trust-code
    """
    from gradscore.data import check_options, name_user_files, refuse_inputs
    from gradscore.deployment import Scorer, score_files, table_writer

    files = name_user_files(samples)
    if out is not None:
        places = [place for file in files for place in file.places]
        refuse_inputs(out, [*places, bundle, *([] if weights is None else [weights])])
    options: dict[str, str | Path | None] = {"column": column, "ids": ids, "root": root}
    check_options(files, options)
    output = Output(as_json=as_json, quiet=quiet)
    scorer = Scorer.load(bundle, device=device, alpha=alpha, model_source=model, weights=weights, sha256=sha256)
    explained = EXPLAINED if explain else 0
    done, counts = Counter[str](), Counter[str]()
    rows, first_error, alike, doubtful = list[dict[Hashable, Any]](), "", set[str](), 0
    with ExitStack() as stack:
        # Lines about samples show how far it is; others among them would be in the way.
        tell = stack.enter_context(counting(quiet=quiet or (out is None and not as_json)))
        columns = [*scorer.columns(explain=explained), "file"]
        write = None if out is None else stack.enter_context(table_writer(out, columns))
        scored = score_files(scorer, files, options=options, batch_size=batch_size, explain=explained)
        for file, samples_of_file, table in scored:
            done[file.name] += len(table)
            tell("scoring" if len(files) == 1 else f"scoring {file.name}", done[file.name], samples_of_file)
            counts.update(table["decision"])
            if "wrong" in scorer.bundle.detectors:
                doubtful += int(((table["decision"] == "accept") & (table["probability_wrong"] > 0.5)).sum())
            first_error = first_error or next((error for error in table["error"] if error), "")
            if write is not None:
                write(table)
            elif as_json:
                rows += table.to_dict("records")
            elif len(files) == samples_of_file == 1:
                _print_card(output, table.iloc[0], scorer)
            else:
                _print_rows(output, table, scorer, alike)
    _print_summary(output, counts, doubtful=doubtful, first_error=first_error, out=out)
    decisions = {"accepted": counts["accept"], "rejected": counts["reject"], "not_scored": counts["error"]}
    output.document({**decisions, "samples": rows, "results": out})
    if not sum(counts.values()):
        raise DataError(f"{', '.join(samples)}: {NO_SAMPLE}")
    if counts["error"] == sum(counts.values()):
        raise typer.Exit(2)
    if fail_on_reject and counts["reject"] + counts["error"]:
        raise typer.Exit(1)


def _print_card(output: Output, row: pd.Series[Any], scorer: Scorer) -> None:
    """Prints the result of one sample, on a few lines."""
    if row["error"]:
        return
    output.say(row["sample_id"])
    card = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    reason = _reason(row)
    card.add_row("decision", f"{row['decision']}: {reason}" if reason else row["decision"])
    card.add_row("prediction", _class(row))
    for name, detector in scorer.bundle.detectors.items():
        known = _known(row[f"probability_{name}"])
        p_value = f"p-value {row[f'p_value_{name}']:.2g} (rejected up to {detector.threshold.alpha:.2g})"
        card.add_row(f"P({NAMES[name]})", f"{known}   {p_value}")
    output.show(card)
    for name in scorer.bundle.detectors:
        if f"drivers_{name}" in row.index:
            output.say(f"  {NAMES[name]} score, largest contributions: {row[f'because_{name}']}")
            for driver in str(row[f"drivers_{name}"]).split("; "):
                output.say(f"    {driver}")


def _print_rows(output: Output, table: pd.DataFrame, scorer: Scorer, alike: set[str]) -> None:
    """A line for each sample; one for all of a batch whose error is the same, which joins `alike`."""
    rows = table.to_dict("records")
    said = [str(row["error"]).replace(str(row["sample_id"]), "") for row in rows]
    errors = {each.partition(": ")[0] for each in said}  # what follows may speak of the batch
    if len(table) > 1 and len(errors) == 1 and "" not in errors:
        if not errors <= alike:
            output.say(f"error   {table['error'].iloc[0]} (and others likewise)")
        alike |= errors
        return
    for row in rows:
        if row["error"]:
            output.say(f"error   {row['error']}")
            continue
        known = {NAMES[name]: _known(row[f"probability_{name}"]) for name in scorer.bundle.detectors}
        values = ", ".join(f"P({name}) {probability}" for name, probability in known.items())
        output.say(f"{row['decision']}  {row['sample_id']}  {_class(row)}  {values}  {_reason(row)}".rstrip())
        for name in scorer.bundle.detectors:
            if f"drivers_{name}" in row:
                said = [str(row[f"{part}_{name}"]) for part in ("because", "drivers")]
                output.say(f"        {NAMES[name]}: {'; '.join(said)}")


def _reason(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Why a sample is rejected, or that it is accepted though it is probably wrong."""
    return str(row["reason"]) or ("doubtful" if row.get("probability_wrong", 0.0) > 0.5 else "")


def _class(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Predicted class: its name, where there is one, or its number."""
    return str(row["prediction_name"]) if "prediction_name" in row else f"class {row['prediction']}"


def _known(probability: float) -> str:
    """A probability, or `-` where no OOD set fitted the score, which then has none."""
    return "-" if math.isnan(probability) else f"{probability:.3f}"


def _print_summary(output: Output, counts: Counter[str], *, doubtful: int, first_error: str, out: Path | None) -> None:
    """Prints counts of decisions, of accepted samples with P(wrong) above 0.5, and where the results are."""
    if sum(counts.values()) > 1 or out is not None:
        output.say(f"{counts['accept']} accepted, {counts['reject']} rejected, {counts['error']} not scored")
    if doubtful:
        output.say(
            f"{doubtful} of {counts['accept']} accepted are doubtful, P(wrong) above 0.5; "
            "a larger --alpha accepts fewer",
            wrap=True,
        )
    not_scored(counts["error"], first_error=first_error)
    if out is not None:
        lost = f" ({counts['error']} of {sum(counts.values())} samples not scored: column error)"
        output.say(f"results: {out}{lost if counts['error'] else ''}")


def not_scored(count: int, *, first_error: str) -> None:
    """Sentence on how many samples could not be scored, if any, and why the first one could not."""
    if count:
        first = f"; the first: {first_error}" if first_error else ""
        say(Terminal(stderr=True), f"not scored: {count}{first}")
