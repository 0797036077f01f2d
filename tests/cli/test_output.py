"""What `--json` and `--quiet` do to what commands say."""

import json
import math
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from commands import cli

from gradscore.notices import Notice
from gradscore_cli.output import Output, figures_table, folded, json_text


@dataclass
class Pair:
    where: Path
    value: float


PLAIN = {
    "data class": (Pair(Path("a/b"), 0.5), {"where": "a/b", "value": 0.5}),
    "not finite": ([math.nan, math.inf, np.float32("nan")], [None, None, None]),
    "numbers of NumPy": ([np.float64(0.5), np.int64(3), np.bool_(True)], [0.5, 3, True]),
    "tuples and keys": ({1: (1, 2)}, {"1": [1, 2]}),
    "time": (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
}


@pytest.mark.parametrize(("content", "wanted"), PLAIN.values(), ids=PLAIN)
def test_json_text(content: object, wanted: object) -> None:
    assert json.loads(json_text(content)) == wanted


def test_many_lines_are_folded() -> None:
    lines = [str(number) for number in range(12)]
    assert folded(lines, rest="report.html") == [*lines[:10], "and 2 more, in report.html"]
    assert folded(lines[:10], rest="report.html") == lines[:10]


SPOKEN = {
    "as usual": ({}, "warning: w\nresult\nreading aid\nnote: n\n", "running c\n"),
    "quiet": ({"quiet": True}, "warning: w\nresult\n", ""),
    "JSON": ({"as_json": True}, "[]\n", "warning: w\nrunning c\nnote: n\n"),
    "JSON, quiet": ({"as_json": True, "quiet": True}, "[]\n", "warning: w\n"),
}


@pytest.mark.parametrize(("options", "out", "err"), SPOKEN.values(), ids=SPOKEN)
def test_where_things_are_said(options, out: str, err: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(**options)
    output.tell(Notice("w", "warning"))
    output.tell("running c", stderr=True)
    output.say("result")
    output.say("reading aid", detail=True)
    output.tell(Notice("n"), rest="nowhere")
    output.document([])
    assert capsys.readouterr() == (out, err)


REPORTS = {
    "extract": (["extract", "{run}/config.yaml", "--out", "{run}", "--trust-code"], {"run", "splits", "accuracy"}),
    "run": (["run", "{run}/config.yaml", "--out", "{run}", "--trust-code"], {"extract", "fit_meta", "evaluate"}),
    "fit-meta": (["fit-meta", "{run}", "--trust-code"], {"models", "skipped", "path"}),
    "evaluate": (["evaluate", "{run}", "--trust-code"], {"verdicts", "records", "report"}),
    "compare": (["compare", "{run}", "{run}/../copy"], {"compared", "first"}),
    "doctor": (["doctor", "{run}/config.yaml", "--samples", "20", "--trust-code"], {"usable", "remarks"}),
    "inspect": (
        ["inspect", "{run}", "--samples", "8", "--quantities", "gradient_geometry", "--trust-code"],
        {"verdict", "findings", "tables", "report"},
    ),
    "bundle": (
        ["bundle", "{run}", "--out", "{run}/../made.gradscore", "--alpha", "0.1", "--trust-code"],
        {"sha256", "detectors"},
    ),
    "check --update": (["check", "{run}", "--expected", "{run}/../expected.json", "--update"], {"status", "tests"}),
    "first check --update": (["check", "{run}", "--expected", "{run}/../new.json", "--update"], {"expected"}),
    "check": (["check", "{run}", "--expected", "{run}/../expected.json"], {"status", "tests"}),
    "verify": (["verify", "{run}"], {"intact", "damaged"}),
}


@pytest.fixture(scope="module")
def own_run(make_run) -> Path:
    """A run that may be written to, and expected figures beside it."""
    run: Path = make_run()
    cli("check", run, "--expected", f"{run}/../expected.json", "--update")
    shutil.copytree(run, run.parent / "copy")
    return run


@pytest.mark.parametrize(("command", "keys"), REPORTS.values(), ids=REPORTS)
def test_every_report_is_json(own_run: Path, command: list[str], keys: set[str]) -> None:
    result = cli(*(part.format(run=own_run) for part in command), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout).keys() >= keys


def test_a_bundle_of_an_ood_set_of_in_distribution_samples_says_so_first(make_run, tmp_path: Path) -> None:
    own = {"name": "own", "source": "sklearn:digits", "select": {"start": 100, "stop": 200}}
    run = make_run(evaluate=False, ood=[own])
    command = ["bundle", str(run), "--out", str(tmp_path / "x.gradscore"), "--alpha", "0.2", "--trust-code", "-q"]
    result = cli(*command)
    assert "warning: ood.own: 100 of 100 samples are copies of in-distribution samples" in result.stderr
    assert "ood.own: 100 of 100" not in result.stdout


def test_scores_as_json(small_bundle: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 8, 8), np.uint8))
    command = ["score", str(small_bundle), str(tmp_path / "two.npz"), "--trust-code", "--json"]
    result = cli(*command)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found["samples"]) == found["accepted"] + found["rejected"] == 2
    assert {"sample_id", "decision", "probability_wrong", "p_value_ood"} <= found["samples"][0].keys()


def test_what_the_code_of_a_model_prints_is_no_part_of_a_document(make_run) -> None:
    run = make_run(evaluate=False)
    with (run.parent / "net.py").open("a") as file:
        file.write("\nprint('here is a model')\n")
    result = cli("doctor", run / "config.yaml", "--trust-code", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)
    assert "here is a model" in result.stderr


def test_quiet_leaves_results(own_run: Path) -> None:
    loud, quiet = (cli("fit-meta", own_run, *extra) for extra in ([], ["-q"]))
    assert quiet.stderr == ""
    assert "fitting " in loud.stderr
    assert set(quiet.stdout.splitlines()) <= set(loud.stdout.splitlines())
    assert f"kept as they were: {own_run / 'meta'}" in quiet.stdout


def test_progress_without_a_terminal_is_plain_lines(own_run: Path, tmp_path: Path) -> None:
    command = ["extract", f"{own_run}/config.yaml", "--out", str(tmp_path / "run"), "--trust-code"]
    lines = cli(*command).stderr.splitlines()
    assert "100 of 500 samples (in_dist.fit)" in lines
    assert lines[-1] == "500 of 500 samples (ood.noise)"
    assert "\x1b" not in "".join(lines)


def test_names_with_colons_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    table = figures_table(["name"], [])
    table.add_row("ood.:b:")
    output.say("run :b:")
    output.tell("note: :b:")
    output.show(table)
    assert capsys.readouterr().out.count(":b:") == 3


def test_a_command_of_several_steps_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.tell(Notice("labels are odd", "warning"))
    output.tell(Notice("labels are odd", "warning"), Notice("weights, too", "caution"))
    assert capsys.readouterr().out == "warning: labels are odd\nwarning: weights, too\n"
