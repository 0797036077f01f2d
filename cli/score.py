"""`gradscore score`: accept or reject new samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gradscore.errors import DataError, EngineError, ModelError

from .options import (
    DEVICES,
    BatchSizeOption,
    JsonOption,
    QuietOption,
    ThreadsOption,
    TrustOption,
    file_at_hand,
    output_at_hand,
)
from .output import Output, Terminal, counting, say

if TYPE_CHECKING:
    import pandas as pd

    from gradscore.data import UserFile
    from gradscore.deployment import Scorer
    from gradscore.pipeline import Progress

OF_A_FILE = (DataError, EngineError, ModelError)
"""What a file of samples can be to blame for."""

EXPLAINED = 5

NAMES = {"wrong": "wrong", "ood": "OOD"}

BundleArgument = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A file made by gradscore bundle.", callback=file_at_hand)
]
SamplesArgument = Annotated[
    list[str],
    typer.Argument(metavar="SAMPLES...", help="Images, folders, patterns, .npz, .csv or Parquet files."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write a .parquet, .csv or .jsonl file.",
        callback=output_at_hand,
    ),
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Name the layers and statistics that moved each score most.")
]
FailOption = Annotated[
    bool, typer.Option("--fail-on-reject", help="Exit with 1 if a sample is rejected or cannot be scored.")
]
AlphaOption = Annotated[float | None, typer.Option("--alpha", help="Another false-alarm rate than the bundle's.")]
ColumnOption = Annotated[
    str | None, typer.Option("--column", help="The column of tables, or the array of .npz files, with the samples.")
]
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="Let paths in tables lead anywhere below this folder, not only below their own.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar=DEVICES, help="Where to compute.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="SOURCE", help="Where the model's code is, if not beside or below the bundle."),
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE", help="Where the weights are now, if they were moved.")
]
HashOption = Annotated[str | None, typer.Option("--sha256", help="Refuse a bundle with another SHA-256.")]


def score(
    bundle: BundleArgument,
    samples: SamplesArgument,
    out: OutOption = None,
    explain: ExplainOption = False,
    fail_on_reject: FailOption = False,
    alpha: AlphaOption = None,
    column: ColumnOption = None,
    root: RootOption = None,
    batch_size: BatchSizeOption = 64,
    device: DeviceOption = "auto",
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
    # These import PyTorch, which help need not wait for.
    from gradscore.data import check_options, name_user_files, refuse_inputs
    from gradscore.deployment import Scorer
    from gradscore.store import refuse_run_files

    if out is not None:
        refuse_run_files(out, option="--out")
    files = name_user_files(samples)
    if out is not None:
        refuse_inputs(out, files)
    check_options(files, {"column": column, "root": root})
    output = Output(as_json=as_json, quiet=quiet)
    moved: dict[str, Any] = {"model_source": model, "weights": weights, "sha256": sha256}
    scorer = Scorer.load(bundle, device=device, alpha=alpha, **moved)
    scoring = _Scoring(
        output=output,
        scorer=scorer,
        files=files,
        opening={"column": column, "root": root, "columns": scorer.bundle.input_columns},
        settings={"batch_size": batch_size, "explain": EXPLAINED if explain else 0},
    )
    counts = scoring.run(out)
    if not sum(counts.values()):
        raise DataError(f"{', '.join(map(str, samples))}: there is no sample in it")
    if counts["error"] == sum(counts.values()):
        raise typer.Exit(2)
    if fail_on_reject and counts["reject"] + counts["error"]:
        raise typer.Exit(1)


@dataclass
class _Scoring:
    """Scores all files, shows or writes the results, and counts the decisions."""

    output: Output
    scorer: Scorer
    files: Sequence[UserFile]
    opening: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[Hashable, Any]] = field(default_factory=list)
    samples: int = 0
    first_error: str = ""

    def run(self, out: Path | None) -> Counter[str]:
        """Scores, says what was found, and gives how often each decision was made."""
        # Lines about samples show how far it is; others among them would be in the way.
        silent = self.output.quiet or (out is None and not self.output.as_json)
        with counting(quiet=silent) as tell:
            counts = self._scored(out, tell)
        _print_summary(self.output, counts, first_error=self.first_error, out=out)
        decisions = {"accepted": counts["accept"], "rejected": counts["reject"], "not_scored": counts["error"]}
        self.output.document({**decisions, "samples": self.rows, "results": out})
        return counts

    def _scored(self, out: Path | None, tell: Progress) -> Counter[str]:
        """One table, or lines, of all files."""
        from gradscore.deployment import table_writer

        counts = Counter[str]()
        with ExitStack() as stack:
            write = None if out is None else stack.enter_context(table_writer(out, self._columns()))
            for place, file in enumerate(self.files):
                try:
                    for table in self._tables(file, tell):
                        counts.update(table["decision"])
                        self._take(table, write)
                except OF_A_FILE as error:
                    failed = {file.name: str(error), **self._unreadable(self.files[place + 1 :])}
                    if len(failed) == 1:
                        raise
                    what = f"{len(failed)} of the files cannot be scored; mend them or leave them out:"
                    raise DataError("\n  ".join([what, *failed.values()])) from error
        return counts

    def _unreadable(self, files: Sequence[UserFile]) -> dict[str, str]:
        """Those of some files that cannot even be opened, and why."""
        from gradscore.data import open_user_file

        found = {}
        for file in files:
            try:
                open_user_file(file, **self.opening)
            except DataError as error:
                found[file.name] = str(error)
        return found

    def _tables(self, file: UserFile, tell: Progress) -> Iterator[pd.DataFrame]:
        """The results of a file, batch by batch, with a column `file` that says where each sample comes from."""
        from gradscore.data import open_user_file
        from gradscore.objects import called
        from gradscore.printable import storable

        images = open_user_file(file, **self.opening)
        source = None if file.file is None else storable(called(str(file.file)))  # images are files of their own
        done, total = 0, len(images)
        self.samples += total
        for scored in _naming(file, self.scorer.stream(images, **self.settings)):
            table = scored.assign(file=scored["sample_id"] if source is None else source)
            done += len(table)
            tell("scoring" if len(self.files) == 1 else f"scoring {file.name}", done, total)
            self.first_error = self.first_error or next((error for error in table["error"] if error), "")
            yield table

    def _take(self, table: pd.DataFrame, write: Callable[[pd.DataFrame], None] | None) -> None:
        if write is not None:
            write(table)
        elif self.output.as_json:
            self.rows += table.to_dict("records")
        elif len(self.files) == self.samples == 1:
            _print_card(self.output, table.iloc[0], self.scorer)
        else:
            _print_rows(self.output, table, self.scorer)

    def _columns(self) -> list[str]:
        return [*self.scorer.columns(explain=self.settings["explain"]), "file"]


def _naming(file: UserFile, tables: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The tables of a file, whose name is in the message where its samples cannot be used."""
    try:
        yield from tables
    except DataError as error:
        raise (error if file.name in str(error) else DataError(f"{file.name}: {error}")) from None


def _print_card(output: Output, row: pd.Series[Any], scorer: Scorer) -> None:
    """One sample, on a few lines."""
    output.say(row["sample_id"])
    if row["error"]:
        return
    card = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    card.add_row("prediction", _class(row))
    for name, detector in scorer.bundle.detectors.items():
        known = _known(row[f"probability_{name}"])
        alike = f"{100 * row[f'p_value_{name}']:.3g} % of good samples are as suspicious"
        card.add_row(f"P({NAMES[name]})", f"{known}   {alike} (limit {100 * detector.threshold.alpha:.2g} %)")
    card.add_row("decision", row["decision"] + (f": {row['reason']}" if row["reason"] else ""))
    output.show(card)
    for name in scorer.bundle.detectors:
        if f"drivers_{name}" in row.index:
            output.say(f"  what moved the score for '{NAMES[name]}' most: {row[f'because_{name}']}")
            for driver in str(row[f"drivers_{name}"]).split("; "):
                output.say(f"    {driver}")


def _print_rows(output: Output, table: pd.DataFrame, scorer: Scorer) -> None:
    """A line for each sample."""
    for row in table.to_dict("records"):
        if row["error"]:
            output.say(f"error   {row['error']}")
            continue
        known = {NAMES[name]: _known(row[f"probability_{name}"]) for name in scorer.bundle.detectors}
        values = ", ".join(f"P({name}) {probability}" for name, probability in known.items())
        reason = f"  {row['reason']}" if row["reason"] else ""
        output.say(f"{row['decision']}  {row['sample_id']}  {_class(row)}  {values}{reason}")
        for name in scorer.bundle.detectors:
            if f"drivers_{name}" in row:
                said = [str(row[f"{part}_{name}"]) for part in ("because", "drivers")]
                output.say(f"        {NAMES[name]}: {'; '.join(filter(None, said))}")


def _class(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """What was predicted: the name of the class, where there is one."""
    return str(row["prediction_name"]) if "prediction_name" in row else f"class {row['prediction']}"


def _known(probability: float) -> str:
    """A probability, or `-` from a one-class model, which has none."""
    return "-" if math.isnan(probability) else f"{probability:.3f}"


def _print_summary(output: Output, counts: Counter[str], *, first_error: str, out: Path | None) -> None:
    """How many of which decision there were, and where they are."""
    if sum(counts.values()) > 1 or out is not None:
        output.say(f"{counts['accept']} accepted, {counts['reject']} rejected, {counts['error']} not scored")
    not_scored(counts["error"], first_error=first_error)
    if out is not None:
        lost = f" ({counts['error']} of {sum(counts.values())} samples not scored: column error)"
        output.say(f"results: {out}{lost if counts['error'] else ''}")


def not_scored(count: int, *, first_error: str) -> None:
    """How many samples could not be scored, if any, and why the first one could not."""
    if count:
        first = f"; the first: {first_error}" if first_error else ""
        say(Terminal(stderr=True), f"not scored: {count}{first}")
