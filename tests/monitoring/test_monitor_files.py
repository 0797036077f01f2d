"""What a monitor writes for programs, and its page."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from gradscore.deployment import DETECTORS
from gradscore.errors import OutputError
from gradscore.monitoring import Monitor, write_monitor
from gradscore.monitoring.monitor_files import _evidence, json_lines, prometheus
from gradscore_cli.monitor import interval_of

LINE = re.compile(r'gradscore_monitor_[a-z0-9_]+(\{(?:stream|says)="(?:[^"\\\n]|\\.)*"\})? -?[0-9.e+-]+')


@pytest.fixture(scope="module")
def watched(bundle, table) -> Monitor:
    """A monitor of one window; not to be changed."""
    monitor = Monitor(bundle, window=100)
    monitor.update(table(100))
    return monitor


def test_files_say_what_the_monitor_says(bundle, table, tmp_path: Path) -> None:
    monitor = Monitor(bundle, window=100)
    monitor.update(table(250).assign(sample_id="<b>one</b>"))
    files = write_monitor(monitor, tmp_path, name="a model")
    assert [json.loads(line) for line in files.tables[0].read_text().splitlines()] == [
        {**asdict(window), "changes": []} for window in monitor.windows
    ]
    assert f"gradscore_monitor_estimated_accuracy {monitor.windows[1].accuracy!r}\n" in files.tables[1].read_text()
    page = files.html.read_text()
    assert "No change" in page
    assert "&lt;b&gt;one" in page
    assert "<b>one" not in page


def test_a_window_full_of_ood_samples_has_a_notice(bundle, table, tmp_path: Path) -> None:
    """Windows of 10, 30 and 60 % that are flagged as OOD: of the last nothing is estimated."""
    monitor = Monitor(bundle, window=100)
    rows = table(300)
    flagged = np.concatenate([np.arange(100) < share for share in (10, 30, 60)])
    monitor.update(rows.assign(reason=np.where(flagged, DETECTORS["ood"].reason, "")))
    files = write_monitor(monitor, tmp_path)
    page = files.html.read_text()
    first, second, _ = monitor.windows
    assert f"({100 * second.low:.1f} to {100 * second.high:.1f} %)" in page
    assert f"({100 * first.low:.1f} to {100 * first.high:.1f} %)" in page
    assert interval_of(second) == f"{second.low:.3f} to {second.high:.3f}"
    assert interval_of(first) == f"{first.low:.3f} to {first.high:.3f}"
    begins = (
        "where more than 15 % of a window is flagged",
        "no accuracy is given for a window with more than",
    )
    assert [sum(each.startswith(begin) for each in monitor.notices) for begin in begins] == [1, 1]


def test_figures_are_in_the_format_of_prometheus(watched: Monitor) -> None:
    powers = {**watched.windows[0].log10_e_values, 'odd "name"\\': 0.0}
    text = prometheus([replace(watched.windows[0], log10_e_values=powers)], [])
    assert all(LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
    assert text.endswith("\n")
    assert 'stream="odd \\"name\\"\\\\"' in text


def test_e_values_are_on_one_scale_on_the_page_and_in_the_files(bundle, table) -> None:
    """An alarm is raised at 1 / alpha whatever the stream."""
    monitor = Monitor(bundle, window=100, alpha=0.02)
    monitor.update(table(300, worse=4.0))
    alarm = next(each for each in monitor.changes[0].alarms if each.stream == "score_wrong")
    evidence, border = dict(_evidence(monitor.windows, monitor))["score_wrong"]
    ends = [window.log10_e_values["score_wrong"] for window in monitor.windows]
    np.testing.assert_allclose(border.y, 50)
    np.testing.assert_allclose(np.log10(evidence.y), ends)
    assert evidence.y[int(alarm.raised) - 1] == pytest.approx(alarm.e_value)
    figures = prometheus(monitor.windows, monitor.changes)
    assert f'gradscore_monitor_log10_e_value{{stream="score_wrong"}} {ends[-1]!r}\n' in figures


def test_a_change_is_the_same_sentence_everywhere(bundle, table, tmp_path: Path) -> None:
    monitor = Monitor(bundle, window=100)
    monitor.update(table(300, worse=4.0))
    (change,) = monitor.changes
    files = write_monitor(monitor, tmp_path)
    lines = [json.loads(line) for line in files.tables[0].read_text().splitlines()]
    assert [line["changes"] for line in lines if line["changes"]] == [[change.sentence]]
    told = f'gradscore_monitor_change{{says="{change.sentence}"}} {float(len(change.alarms))}\n'
    assert told in files.tables[1].read_text()
    assert change.sentence in files.html.read_text()


def test_e_values_that_no_axis_holds_are_drawn_at_its_end(watched: Monitor) -> None:
    far = replace(watched.windows[0], log10_e_values=dict.fromkeys(watched.watched, 400.0))
    assert [lines[0].y.tolist() for _, lines in _evidence([far], watched)] == [[1e100]] * len(watched.watched)


def test_nothing_watched_so_far_is_a_page_too(bundle, tmp_path: Path) -> None:
    monitor = Monitor(bundle, window=100)
    files = write_monitor(monitor, tmp_path)
    assert json_lines(monitor.windows, []) == files.tables[0].read_text() == ""
    assert "No sample so far" in files.html.read_text()
    assert "gradscore_monitor_samples_total 0.0" in files.tables[1].read_text()


@pytest.mark.parametrize(("state", "is_counted"), [("state.json", True), (None, False)])
def test_files_that_cannot_be_written_after_the_samples_were_counted(
    bundle, table, tmp_path: Path, state: str | None, is_counted: bool
) -> None:
    monitor = Monitor(bundle, window=100, state=state and tmp_path / state)
    monitor.update(table(100))
    (tmp_path / "metrics.prom").mkdir()
    with pytest.raises(OutputError, match=r"metrics\.prom") as caught:
        write_monitor(monitor, tmp_path)
    assert (f"These samples are counted in {tmp_path / 'state.json'}: do not" in str(caught.value)) == is_counted


def test_without_the_packages_for_pages_no_earlier_page_stays(watched: Monitor, tmp_path: Path, monkeypatch) -> None:
    assert write_monitor(watched, tmp_path).html.is_file()
    monkeypatch.setattr("gradscore.reporting.pages.PACKAGES", ("no_such_package",))
    files = write_monitor(watched, tmp_path)
    assert "pip install 'gradscore[report]'" in files.notice
    assert [*tmp_path.glob("*.html")] == []
