"""What a monitor writes for programs, and its page."""

import json
import re
from pathlib import Path

from gradscore.monitoring import Monitor, json_lines, prometheus, write_monitor

LINE = re.compile(r'gradscore_monitor_[a-z0-9_]+(\{stream="(?:[^"\\\n]|\\.)*"\})? -?[0-9.e+-]+')


def test_files_say_what_the_monitor_says(bundle, table, tmp_path: Path) -> None:
    monitor = Monitor(bundle, by=100)
    monitor.update(table(250).assign(sample_id="<b>one</b>"))
    files = write_monitor(monitor, tmp_path, name="a model")
    assert [json.loads(line) for line in files.lines.read_text().splitlines()] == [
        window.plain() for window in monitor.windows
    ]
    assert f"gradscore_monitor_expected_accuracy {monitor.windows[1].accuracy!r}\n" in files.figures.read_text()
    page = files.html.read_text()
    assert "No alarm" in page
    assert "&lt;b&gt;one" in page
    assert "<b>one" not in page


def test_figures_are_in_the_format_of_prometheus(bundle, table) -> None:
    monitor = Monitor(bundle, by=100)
    monitor.update(table(100))
    text = prometheus(monitor.windows, monitor.alarms, [*monitor.watched, 'odd "name"\\'])
    assert all(LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
    assert text.endswith("\n")
    assert 'stream="odd \\"name\\"\\\\"' in text


def test_nothing_watched_so_far_is_a_page_too(bundle, tmp_path: Path) -> None:
    monitor = Monitor(bundle, by=100)
    files = write_monitor(monitor, tmp_path)
    assert json_lines(monitor.windows) == files.lines.read_text() == ""
    assert "No sample so far" in files.html.read_text()
    assert "gradscore_monitor_samples_total 0.0" in files.figures.read_text()
