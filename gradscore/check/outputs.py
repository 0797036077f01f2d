"""A check for machines and people: JSON, JUnit XML, Markdown, and annotations of GitHub."""

from __future__ import annotations

import json
from dataclasses import asdict
from xml.etree import ElementTree as Xml

from .comparison import CheckReport, CheckTest

MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "info": "-"}

LARGE = 100
"""From here on, decimals say nothing."""


def to_json(report: CheckReport) -> str:
    """The report as JSON: `run`, `status`, `exit_code`, `tests`, `caveats` and `notices`."""
    content = {
        "run": report.run,
        "status": report.status,
        "exit_code": report.exit_code,
        "tests": [asdict(test) for test in report.tests],
        "caveats": report.caveats,
        "notices": report.notices,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def to_junit(report: CheckReport) -> str:
    """The report as JUnit XML: a test case for each test; what is inconclusive is an error, not a failure."""
    kinds = {"fail": "failure", "inconclusive": "error", "info": "skipped"}
    counts = {kind: sum(test.status == status for test in report.tests) for status, kind in kinds.items()}
    suite = Xml.Element(
        "testsuite",
        name=f"gradscore check {report.run}",
        tests=str(len(report.tests)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    for test in report.tests:
        case = Xml.SubElement(suite, "testcase", classname=f"gradscore.{test.metric}", name=test.name)
        if test.status in kinds:
            Xml.SubElement(case, kinds[test.status], message=test.message)
        Xml.SubElement(case, "system-out").text = test.message
    if report.caveats:
        Xml.SubElement(suite, "system-out").text = "\n".join(report.caveats)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def to_markdown(report: CheckReport) -> str:
    """The report as Markdown, for the summary of a job."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    def row(test: CheckTest) -> str:
        cells = [MARKS[test.status], test.name, *cells_of(test), str(test.n), test.method]
        return "| " + " | ".join(map(cell, cells)) + " |"

    lines = [
        f"## {MARKS[report.status]} gradscore check: {report.verdict}",
        "",
        *[line for caveat in report.caveats for line in (f"**{cell(caveat)}**", "")],
        "| | test | expected | now | change for the better, bounds | margin | n | method |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *map(row, report.tests),
        "",
        *(f"- {cell(problem)}" for problem in report.problems),
        *(f"- note: {cell(notice)}" for notice in report.notices),
    ]
    return "\n".join(lines).rstrip() + "\n"


def to_annotations(report: CheckReport) -> str:
    """Workflow commands of GitHub: an error for each test that failed, a warning for inconclusive ones and caveats."""
    kinds = {"fail": "error", "inconclusive": "warning"}
    found = [(kinds[test.status], test.message) for test in report.tests if test.status in kinds]
    found += [("warning", caveat) for caveat in report.caveats]
    escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    return "".join(f"::{kind} title=gradscore check::{text.translate(escapes)}\n" for kind, text in found)


def cells_of(test: CheckTest) -> tuple[str, str, str, str]:
    """What a test compares, as text: the expected value, the run's, the bounds of the change, and the margin."""
    bounds = "-" if test.low is None or test.high is None else f"{test.low:+.4f} to {test.high:+.4f}"
    margin = "-" if test.margin is None else f"{test.margin:g}"

    def number(value: float | None) -> str:
        if value is None:
            return "-"
        is_count = test.metric in ("speed", "samples") or abs(value) >= LARGE
        return f"{value:.0f}" if is_count else f"{value:.4f}"

    return number(test.before), number(test.now), bounds, margin
