"""`gradscore check`: is this model still as good as the expected figures say?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from gradscore.errors import BadSampleError, ConfigError, GradscoreError
from gradscore.notices import notes

from .options import (
    BatchSizeOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunOutOption,
    SetOption,
    SourceArgument,
    ThreadsOption,
    TrustOption,
    WorkersOption,
    given_settings,
)
from .output import Output, cell, figures_table
from .run import completed

if TYPE_CHECKING:
    from gradscore.check import CheckReport, CheckTest, ExpectedFigures, Policy, Sources
    from gradscore.store import RunFolder

COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "info": "default"}


def check(
    context: typer.Context,
    source: SourceArgument,
    expected: Annotated[Path, typer.Option("--expected", metavar="FILE", help="The expected figures, a JSON file.")],
    update: Annotated[
        bool,
        typer.Option("--update", help="Show the difference, then make this run the expected figures."),
    ] = False,
    margins: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="NAME=VALUE",
            help="Another margin than the expected one: accuracy, auroc, false_alarm, detection or feature; also "
            "level, and with --update alpha. With --update it is written to the expected figures.",
        ),
    ] = None,
    out: RunOutOption = None,
    settings: SetOption = None,
    device: DeviceOption[str | None] = None,
    batch_size: BatchSizeOption[int | None] = None,
    workers: WorkersOption = None,
    _trust: TrustOption = False,
    without_sources: Annotated[
        bool,
        typer.Option(
            "--without-sources",
            help="Compare the stored run; do not look at its model and data.",
        ),
    ] = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    as_json: JsonOption = False,
    _threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare a model with expected figures: is it still as good?

    With a configuration it first does what gradscore run does: extracts what is missing or changed, fits and evaluates.
    A run folder is compared as stored; it is refused if its model, data or features changed since.

    Exits with 0 if it is no worse than the margins allow, 1 if it is worse, 2 if the input cannot be used or changed
    since the run was made, and 3 if the samples leave it undecided.

    After gradscore demo: gradscore check demo/gradscore.yaml --expected demo/expected.json --trust-code --update

    Then: gradscore check demo/gradscore.yaml --expected demo/expected.json --junit demo/check.xml --trust-code
    """
    from gradscore.check import (
        check_junit_target,
        check_run,
        make_expected,
        read_expected,
        to_junit,
        write_expected,
    )
    from gradscore.store import refuse_doubtful_labels, refuse_run_files
    from gradscore.system import check_target, followed, write_text

    if junit is not None and junit.resolve() == expected.resolve():
        raise ConfigError(f"--junit {junit}: this is the file of --expected as well; give each a path of its own")
    for option, target in {"--junit": junit, "--expected": expected if update else None}.items():
        if target is not None:
            refuse_run_files(target, option=option)
            check_target(target)
    if junit is not None:
        check_junit_target(junit)
    with _refusal_in(junit, source):
        known = None if update and not expected.exists() else read_expected(expected)
        policy = _policy(known, margins or ())
        if not update and known is not None and policy.alpha != known.policy.alpha:
            raise ConfigError(
                f"--margin alpha={policy.alpha:g}: the thresholds of {expected} are frozen at alpha "
                f"{known.policy.alpha:g}; add --update to freeze others, or leave it out"
            )
        output = Output(as_json=as_json, quiet=quiet)
        given = given_settings(settings, device=device, batch_size=batch_size, workers=workers)
        try:
            folder, sources = _run_of(context, output, source, given, out=out, without_sources=without_sources)
        except BadSampleError as error:
            if known is None:
                raise
            again = (
                f"if it is among the samples of {expected}, a run without it cannot be compared: repair it, or delete "
                "that file and make it anew with --update"
            )
            raise BadSampleError(f"{error}; {again}") from None
        if update:
            refuse_doubtful_labels(folder, said=f"{expected} was not written")
        if known is None:
            made = make_expected(folder, policy, sources=sources)
            write_expected(expected, made)
            if junit is not None:
                write_text(followed(junit), to_junit(check_run(folder, made, policy=policy, sources=sources)))
            _print_new(output, made, expected)
            return
        report = check_run(folder, known, policy=policy, sources=sources)
        _print(output, report)
        if junit is not None:
            write_text(followed(junit), to_junit(report))
        if update:
            write_expected(expected, report.current)
            output.say(f"expected figures updated: {expected}")
            return
        if report.exit_code:
            raise typer.Exit(report.exit_code)


@contextmanager
def _refusal_in(junit: Path | None, source: Path) -> Iterator[None]:
    """Has JUnit XML say that a check was refused or ended early: that of an earlier one would pass for its result."""
    from gradscore.check import refusal_to_junit
    from gradscore.system import followed, write_text

    try:
        yield
    except BaseException as error:
        if junit is not None and not isinstance(error, typer.Exit):
            kind = "" if isinstance(error, GradscoreError) else f"{type(error).__name__}: "
            kind = "interrupted: " if isinstance(error, KeyboardInterrupt) else kind
            write_text(followed(junit), refusal_to_junit(source, f"{kind}{error}"))
        raise


def _run_of(
    context: typer.Context,
    output: Output,
    source: Path,
    settings: list[str],
    *,
    out: Path | None,
    without_sources: bool,
) -> tuple[RunFolder, Sources]:
    """The run that is compared, that of a configuration made up to date, and what is done about its model and data."""
    from gradscore.store import RunFolder, label_warnings

    if source.is_file() or source.suffix in (".yaml", ".yml"):
        if without_sources:
            raise ConfigError("--without-sources is for a run folder; a configuration is run on its model and data")
        summary, _, _ = completed(context, output, source, settings, out=out, check_kept=True, answer=False)
        return RunFolder(summary.run), "extracted"
    if out is not None or settings:
        raise ConfigError(
            f"{source}: a run folder is compared as stored; --out, --set, --device, --batch-size and --workers "
            "say how a configuration is run: give the configuration in its place, or leave them out"
        )
    folder = RunFolder(source)
    output.tell(*label_warnings(folder), stderr=True)
    return folder, "left out" if without_sources else "compared"


def _policy(expected: ExpectedFigures | None, margins: list[str] | tuple[()]) -> Policy:
    from pydantic import ValidationError

    from gradscore.check import Policy

    settings = (Policy() if expected is None else expected.policy).model_dump()
    given = set[str]()
    for margin in margins:
        name, equals, value = margin.partition("=")
        if name not in settings or not equals:
            raise ConfigError(f"--margin {margin}: wanted NAME=VALUE with one of {', '.join(settings)}")
        if name in given:
            raise ConfigError(f"--margin {margin}: {name} is given twice; give each margin once")
        given.add(name)
        settings[name] = value
    try:
        return Policy.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--margin {first['loc'][0]}={first['input']}: {first['msg']}") from None


def _print_new(output: Output, made: ExpectedFigures, path: Path) -> None:
    size = f"{path.stat().st_size / 1024:.0f} KiB"
    output.say(f"new expected figures: {path} ({size}); commit it, and compare without --update")
    output.tell(*notes(made.notices))
    output.document({"expected": path})


def cells_of(test: CheckTest) -> tuple[str, str, str, str]:
    """Table cells of a test: the expected value, the run's, the bounds of the change, and the margin."""
    from gradscore.evaluation import signed

    bounds = "-" if test.low is None or test.high is None else f"{signed(test.low, 4)} to {signed(test.high, 4)}"
    return cell(test.before), cell(test.now), bounds, "-" if test.margin is None else f"{test.margin:g}"


def _print(output: Output, report: CheckReport) -> None:
    table = figures_table(["", "test"], ["expected", "now", "better by, bounds", "margin"])
    for test in report.tests:
        table.add_row(Text(test.status, style=COLOURS[test.status]), test.name, *cells_of(test))
    output.say(report.summary, *report.problems)
    output.show(table)
    output.say(
        "bounds are one-sided, and negative for the worse; a test passes if the lower one is above -margin",
        "detection is by one score at its frozen threshold; the report sets a threshold at 5 % false alarms "
        "anew, and a bundle decides by both scores",
        detail=True,
    )
    output.say(*(test.message for test in report.tests if test.status == "info"), detail=True)
    output.tell(*notes(report.notices), rest="gradscore check --json")
    output.document(
        {
            "run": report.run,
            "status": report.status,
            "exit_code": report.exit_code,
            "tests": report.tests,
            "caveats": report.caveats,
            "notices": report.notices,
        }
    )
