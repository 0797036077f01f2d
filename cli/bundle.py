"""`gradscore bundle`: from a run folder to one file that decides on new samples."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradscore.notices import notes, urgent

from .options import (
    AlphaOption,
    JsonOption,
    ModelOption,
    QuietOption,
    RunArgument,
    ThreadsOption,
    TrustOption,
    out_option,
)
from .output import Output, counting, figures_table

if TYPE_CHECKING:
    from gradscore.deployment import Bundle, FalseAlarms

NEAR = 0.1
"""A bundle may fall short of its alpha by such a part of it before anything is said."""


def bundle(
    run: RunArgument,
    out: Annotated[Path, out_option("FILE", "The bundle to write.")] = Path("scorer.gradscore"),
    alpha: AlphaOption[float] = 0.05,
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="Put the weights inside, instead of naming their file.")
    ] = False,
    model: ModelOption = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            metavar="[wrong=|ood=]NAME",
            help="Decide by a baseline of evaluate's tables, such as energy or ood=knn, not by a meta model.",
            show_default=False,
        ),
    ] = None,
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor",
            help="Learn the estimated accuracy under shift, for gradscore monitor, from shifted copies of "
            "in_dist.fit images.",
        ),
    ] = False,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> dict[str, Any]:
    """Pack what decisions on new samples need into one file: models, calibration, thresholds.

    It holds scores and features of single samples (with --monitor labels, too): it is as confidential as they are.

    Where the report says that a baseline catches more, --score has it decide instead, with thresholds of its own.

    After gradscore demo: gradscore bundle demo/run --out demo/strict.gradscore --alpha 0.01 --trust-code
    """
    from gradscore.deployment import (
        COPIES,
        check_bundle_target,
        make_bundle,
        write_bundle,
    )
    from gradscore.store import RunFolder, label_warnings

    check_bundle_target(out)
    output = Output(as_json=as_json, quiet=quiet)
    folder = RunFolder(run)
    with counting(quiet=quiet or not monitor) as tell:
        made = make_bundle(
            folder,
            alpha=alpha,
            with_weights=with_weights,
            model_source=model,
            scores=scores or (),
            shifted_copies=COPIES if monitor else 0,
            progress=tell,
        )
    doubts = [*label_warnings(folder), *urgent(notes(made.notices))]
    output.tell(*doubts, stderr=True)
    replaced = out.exists()
    written = write_bundle(out, made)
    document = {**_document(made, out=out, sha256=written), "warnings": doubts}
    output.document(document)
    _print(output, made, out=out, sha256=written, replaced=replaced)
    trust = " --trust-code" if folder.names_code else ""
    output.say(f"Next: gradscore {'monitor' if monitor else 'score'} {quote(str(out))} SAMPLES{trust}", detail=True)
    return document


def _weights_of(made: Bundle) -> str | None:
    """Path of the weights; None where a program has them."""
    from gradscore.system import as_address

    return None if made.model.checkpoint is None else as_address(made.model.checkpoint)


def _document(made: Bundle, *, out: Path, sha256: str) -> dict[str, Any]:
    from gradscore.deployment import joint_false_alarms

    detectors = {
        name: {
            "protocol": detector.protocol,
            "score": detector.model.name,
            "calibration_samples": detector.threshold.n,
            "alpha": detector.threshold.alpha,
            "realised_rate": detector.threshold.realised_rate(),
            "threshold": detector.threshold.value,
        }
        for name, detector in made.detectors.items()
    }
    weights = None if made.weights is not None else _weights_of(made)
    both = joint_false_alarms(made.detectors)
    return {
        "bundle": out,
        "sha256": sha256,
        "alpha": made.alpha,
        "detectors": detectors,
        "together": {"alpha": both.alpha, "realised_rate": both.realised_rate()},
        "rejections": made.rejections,
        "sentence": _catches(made),
        "weights": weights,
        "notices": made.notices,
    }


def _catches(made: Bundle) -> str:
    """Sentence on what a bundle rejects of the samples that its run reports, in the words of the verdict."""
    from gradscore.deployment import RIGHT
    from gradscore.evaluation import describe_share

    right = [100 * each.rejected / each.samples for each in made.rejections if each.what == RIGHT]
    rejected = (
        f"On the run's own test samples the bundle rejects {right[0]:.1f}"
        if right
        else f"The bundle rejects at most {100 * made.alpha:.4g}"
    )
    caught = [
        describe_share(each.rejected / each.samples, each.samples, each.what, each.group)
        for each in made.rejections
        if each.what != RIGHT
    ]
    report = " The report's figures are with 5 % false alarms by each score." if len(made.detectors) > 1 else ""
    unknown = "; the run reports no OOD samples and no wrong predictions, so what it catches is not known."
    found = f", and catches {', '.join(caught)}.{report}" if caught else unknown
    said = f"{rejected} % of correct predictions{found}"
    if "ood" in made.detectors and made.detectors["ood"].protocol == "known":
        said += " The OOD score was fitted on other samples of these sets; expect less of new kinds."
    return said


def _falls_short(made: Bundle) -> Iterator[str]:
    """What would do where the calibration is too small to reject nearly as much as was allowed."""
    from gradscore.deployment import neighbouring_levels, samples_needed

    level, more = neighbouring_levels(made.detectors)
    if level >= (1 - NEAR) * made.alpha:
        return
    got = max(each.threshold.n for each in made.detectors.values())
    enough = samples_needed(NEAR * made.alpha / len(made.detectors))
    ways = [
        *([f"about {enough} correctly predicted calibration samples"] if got < enough else []),
        *([f"--alpha {ceil(1e4 * more) / 1e4:.4g}"] if more < 1 else []),
    ]
    if ways:
        yield (
            f"{got} calibration samples allow a false-alarm rate of {100 * level:.1f} %, below the "
            f"{100 * made.alpha:.4g} % asked for; {' or '.join(ways)} brings it nearer to that."
        )


def _rates(limit: FalseAlarms) -> tuple[str, str]:
    """The bound of a rate of false alarms, and its interval."""
    low, high = limit.realised_rate()
    return f"{100 * limit.alpha:.2g} %", f"{100 * low:.1f}-{100 * high:.1f} %"


def _print(output: Output, made: Bundle, *, out: Path, sha256: str, replaced: bool) -> None:
    from gradscore.deployment import DETECTORS, joint_false_alarms
    from gradscore.evaluation import describe_score

    figures = ["samples", "false\nalarms\nat most,\nmean", "90 %", "threshold"]
    table = figures_table(["finds", "score"], figures)
    for name, detector in made.detectors.items():
        limit = detector.threshold
        cells = str(limit.n), *_rates(limit), f"{limit.value:.4g}"
        table.add_row(DETECTORS[name].what, describe_score(detector.model.name), *cells)
    if len(made.detectors) > 1:
        table.add_row("both together", "", "", *_rates(joint_false_alarms(made.detectors)), "")
    output.say(_catches(made), *_falls_short(made), wrap=True)
    output.show(table)
    output.say(
        "samples: of the calibration; false alarms: correctly predicted in-distribution samples rejected, on average; "
        "90 %: their range over calibrations of this size",
        detail=True,
    )
    output.tell(*notes(made.notices), rest="gradscore bundle --json")
    output.say(
        f"weights: {'inside' if made.weights is not None else _weights_of(made)}",
        f"bundle: {out} ({out.stat().st_size / 1024:.0f} KiB){', in the place of the one that was there' * replaced}",
        f"sha256: {sha256}",
    )
