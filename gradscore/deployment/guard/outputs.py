"""A check for machines and people: JSON, JUnit XML, Markdown, and annotations of GitHub."""

from __future__ import annotations

import json
from dataclasses import asdict
from xml.etree import ElementTree as Xml

from .check import CheckReport
from .gates import Gate

MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "info": "-"}

LARGE = 100
"""From here on, decimals say nothing."""


def to_json(report: CheckReport) -> str:
    """The report as JSON: `run`, `status`, `exit_code`, `gates`, `caveats` and `notices`."""
    content = {
        "run": report.run,
        "status": report.status,
        "exit_code": report.exit_code,
        "gates": [asdict(gate) for gate in report.gates],
        "caveats": report.caveats,
        "notices": report.notices,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def to_junit(report: CheckReport) -> str:
    """The report as JUnit XML: a test case for each gate; what is inconclusive is an error, not a failure."""
    counts = {status: sum(gate.status == status for gate in report.gates) for status in MARKS}
    suite = Xml.Element(
        "testsuite",
        name=f"gradscore check {report.run}",
        tests=str(len(report.gates)),
        failures=str(counts["fail"]),
        errors=str(counts["inconclusive"]),
        skipped=str(counts["info"]),
    )
    for gate in report.gates:
        case = Xml.SubElement(suite, "testcase", classname=f"gradscore.{gate.metric}", name=gate.name)
        kind = {"fail": "failure", "inconclusive": "error", "info": "skipped"}.get(gate.status)
        if kind is not None:
            Xml.SubElement(case, kind, message=gate.message)
        Xml.SubElement(case, "system-out").text = gate.message
    if report.caveats:
        Xml.SubElement(suite, "system-out").text = "\n".join(report.caveats)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def to_markdown(report: CheckReport) -> str:
    """The report as Markdown, for the summary of a job."""
    lines = [
        f"## {MARKS[report.status]} gradscore check: {report.verdict}",
        "",
        *[line for caveat in report.caveats for line in (f"**{_cell(caveat)}**", "")],
        "| | gate | expected | now | change for the better, bounds | margin | n | method |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *(_row(gate) for gate in report.gates),
        "",
        *(f"- {_cell(gate.message)}" for gate in report.gates if gate.status in ("fail", "inconclusive")),
        *(f"- note: {_cell(notice)}" for notice in report.notices),
    ]
    return "\n".join(lines).rstrip() + "\n"


def to_annotations(report: CheckReport) -> str:
    """Workflow commands of GitHub: an error for each gate that failed, a warning for inconclusive ones and caveats."""
    kinds = {"fail": "error", "inconclusive": "warning"}
    lines = [
        f"::{kinds[gate.status]} title=gradscore check::{_escaped(gate.message)}"
        for gate in report.gates
        if gate.status in kinds
    ]
    lines += [f"::warning title=gradscore check::{_escaped(caveat)}" for caveat in report.caveats]
    return "".join(f"{line}\n" for line in lines)


def gate_cells(gate: Gate) -> tuple[str, str, str, str]:
    """What a gate compares, as text: expected, run, the bounds of the change for the better, and the margin."""
    bounds = "-" if gate.low is None or gate.high is None else f"{gate.low:+.4f} to {gate.high:+.4f}"
    margin = "-" if gate.margin is None else f"{gate.margin:g}"
    number = _rate if gate.metric in ("speed", "samples") else _number
    return number(gate.before), number(gate.now), bounds, margin


def _number(value: float | None) -> str:
    """A value with four decimals, a large one with none, or `-`."""
    return "-" if value is None else f"{value:.4f}" if abs(value) < LARGE else f"{value:.0f}"


def _rate(value: float | None) -> str:
    """A count, or samples per second, of which decimals say nothing."""
    return "-" if value is None else f"{value:.0f}"


def _row(gate: Gate) -> str:
    row = [MARKS[gate.status], gate.name, *gate_cells(gate), str(gate.n), gate.method]
    return "| " + " | ".join(map(_cell, row)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
