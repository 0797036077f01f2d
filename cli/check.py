"""`gradscore check`: is this model still as good as the expected figures say?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gradscore.errors import ConfigError
from gradscore.notices import notes

from .extract import BatchOption, DeviceOption, OutOption, WorkersOption, settings_of
from .options import Command, QuietOption, SetOption, SourceArgument, ThreadsOption, TrustOption
from .output import Output, figures_table
from .run import completed

if TYPE_CHECKING:
    from gradscore.check import CheckReport, ExpectedFigures, Policy, Sources

COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "info": "default"}


STDOUT = Path("-")
"""The file that stands for standard output."""


class WritesJson(Command):
    """A command whose `--json` is followed by a file or by nothing, for standard output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts standard output where no file follows; a configuration or run folder is what is checked."""
        given = [
            f"--json={STDOUT}" if arg == "--json" and not _is_file(following) else arg
            for arg, following in zip(args, [*args[1:], ""], strict=True)
        ]
        return super().parse_args(ctx, given)


def _is_file(argument: str) -> bool:
    if argument.startswith("-") or not argument:
        return argument == str(STDOUT)
    return "://" not in argument and not _is_config(Path(argument)) and not (Path(argument) / "manifest.json").is_file()


def _is_config(source: Path) -> bool:
    return source.suffix in (".yaml", ".yml")


def check(
    context: typer.Context,
    source: SourceArgument,
    expected: Annotated[Path, typer.Option("--expected", metavar="FILE", help="The expected figures, a JSON file.")],
    update: Annotated[
        bool,
        typer.Option("--update", help="Show the difference, then make this run the expected figures; exits with 0."),
    ] = False,
    margins: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="NAME=VALUE",
            help="Another margin than the expected one: accuracy, auroc, false_alarm, detection or feature; also alpha "
            "and level. With --update it is written to the expected figures.",
        ),
    ] = None,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
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
    markdown: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="[FILE]", help="Write JSON; without a file on standard output.")
    ] = None,
    _threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare a model with expected figures: is it still as good?

    With a configuration it first does what gradscore run does: extracts what is missing or changed, fits and evaluates.
    A run folder is compared as it is, if nothing changed since: neither its model and data, nor its features after the
    evaluation.

    Exits with 0 if it is no worse than the margins allow, 1 if it is worse, 2 if the input cannot be used or changed
    since the run was made, and 3 if the samples cannot tell.

    After gradscore demo: gradscore check demo/gradscore.yaml --expected demo/expected.json --trust-code --update

    Then: gradscore check demo/gradscore.yaml --expected demo/expected.json --junit demo/check.xml --trust-code
    """
    # These import PyTorch, which help need not wait for.
    from gradscore.check import check_run, make_expected, read_expected, write_expected
    from gradscore.store import RunFolder, label_warnings, refuse_run_files
    from gradscore.system import check_target

    files = {"--junit": junit, "--markdown": markdown, "--json": json_file}
    _check_targets({"--expected": expected, **files})
    for option, target in {**files, "--expected": expected if update else None}.items():
        if target not in (None, STDOUT):
            refuse_run_files(target, option=option)
            check_target(target)
    known = None if update and not expected.exists() else read_expected(expected)
    policy = _policy(known, margins or ())
    output = Output(as_json=json_file == STDOUT, quiet=quiet)
    given = settings_of(settings, device=device, batch_size=batch_size, workers=workers)
    sources: Sources = "left out" if without_sources else "compared"
    if _is_config(source) or source.is_file():
        if without_sources:
            raise ConfigError("--without-sources is for a run folder; a configuration is run on its model and data")
        summary, _, _ = completed(context, output, source, given, out=out, check_kept=True, advise=False)
        folder, sources = RunFolder(summary.run), "extracted"
    else:
        if out is not None or given:
            raise ConfigError(
                f"{source}: a run folder is compared as it is; --out, --set, --device, --batch-size and --workers "
                "say how a configuration is run: give the configuration in its place, or leave them out"
            )
        folder = RunFolder(source)
        output.tell(*label_warnings(folder), stderr=True)
    if known is None:
        made = make_expected(folder, policy, sources=sources)
        write_expected(expected, made)
        output.say(f"new expected figures: {expected} ({expected.stat().st_size / 1024:.0f} KiB)")
        output.document({"expected": expected})
        return
    report = check_run(folder, known, policy=policy, sources=sources)
    _print(output, report)
    _write(output, report, files)
    if update:
        write_expected(expected, report.current)
        output.say(f"expected figures updated: {expected}")
        return
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _check_targets(files: Mapping[str, Path | None]) -> None:
    """Refuses options that name the same file, of which one would replace what the other reads or writes."""
    seen: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise ConfigError(f"{option} {path}: this is the file of {other} as well; give each a path of its own")


def _policy(expected: ExpectedFigures | None, margins: list[str] | tuple[()]) -> Policy:
    from pydantic import ValidationError

    from gradscore.check import Policy

    settings = (Policy() if expected is None else expected.policy).model_dump()
    for margin in margins:
        name, equals, value = margin.partition("=")
        if name not in settings or not equals:
            raise ConfigError(f"--margin {margin}: wanted NAME=VALUE with one of {', '.join(settings)}")
        settings[name] = value
    try:
        return Policy.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--margin {first['loc'][0]}={first['input']}: {first['msg']}") from None


def _print(output: Output, report: CheckReport) -> None:
    from gradscore.check import cells_of

    table = figures_table(["", "test"], ["expected", "now", "change, bounds", "margin"])
    for test in report.tests:
        status = "unclear" if test.status == "inconclusive" else test.status
        table.add_row(Text(status, style=COLOURS[test.status]), test.name, *cells_of(test))
    output.show(table)
    output.say(
        "change: for the better, with one-sided bounds; a test passes if the lower one is above -margin", detail=True
    )
    output.say(*report.problems)
    output.say(*(test.message for test in report.tests if test.status == "info"), detail=True)
    output.tell(*notes(report.notices), rest="gradscore check --json")
    output.say(report.summary)


def _write(output: Output, report: CheckReport, files: Mapping[str, Path | None]) -> None:
    """Writes what was found to the files of options, and for GitHub to where it looks."""
    from gradscore.check import to_annotations, to_json, to_junit, to_markdown
    from gradscore.system import write_text

    renderings = {"--junit": to_junit, "--markdown": to_markdown, "--json": to_json}
    for option, path in files.items():
        if path == STDOUT:
            typer.echo(renderings[option](report), nl=False)
        elif path is not None:
            write_text(path, renderings[option](report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        typer.echo(to_annotations(report), nl=False, err=output.as_json)
        _append_summary(os.environ, to_markdown(report))


def _append_summary(environment: Mapping[str, str], text: str) -> None:
    path = environment.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
