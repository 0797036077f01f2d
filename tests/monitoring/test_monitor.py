"""A monitor: windows, going on from a state, and what it refuses."""

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

import gradscore
from gradscore.errors import ConfigError, DataError, MonitorError, OutputError
from gradscore.monitoring import Monitor
from gradscore.monitoring.streams import after_window


def test_windows_hold_what_their_samples_say(bundle, table) -> None:
    rows = table(250)
    monitor = Monitor(bundle, window=100)
    complete = monitor.update(rows)
    first = rows.iloc[:100]
    assert [window.name for window in complete] == ["1", "2"]
    assert [(window.first, window.samples, window.complete) for window in monitor.windows] == [
        (0, 100, True),
        (100, 100, True),
        (200, 50, False),
    ]
    assert complete[0].rejected == pytest.approx(first["decision"].eq("reject").mean())
    assert complete[0].ood == pytest.approx(first["reason"].str.contains("OOD score above its threshold").mean())
    confidence = 1 / (1 + np.exp(-first["watched_confidence"]))
    assert complete[0].mean_confidence == pytest.approx(confidence.mean())
    least = first[["p_value_wrong", "p_value_ood"]].min(axis=1)
    assert complete[0].suspicious[0].sample_id == first["sample_id"].iloc[int(least.to_numpy().argmin())]
    assert complete[0].low <= complete[0].accuracy <= complete[0].high


@pytest.mark.parametrize("is_sorted", [False, True])
def test_samples_in_runs_of_a_class_are_said_to_be(bundle, table, is_sorted: bool) -> None:
    rows = table(200)
    rows = rows.sort_values("prediction", kind="stable") if is_sorted else rows
    monitor = Monitor(bundle, window=100)
    monitor.update(rows)
    assert any("follow each other more often than by chance" in notice for notice in monitor.notices) == is_sorted


@pytest.mark.parametrize(("classes", "is_said"), [(range(10), False), (range(6), False), (range(3), True)])
def test_windows_of_few_classes_are_said_to_be(bundle, table, classes, is_said: bool) -> None:
    rows = table(1000)
    monitor = Monitor(bundle, window=50)
    (window, *_) = monitor.update(rows[rows["prediction"].isin(classes)])
    assert window.accuracy is not None
    assert any("fewer than half as many classes as usual" in notice for notice in monitor.notices) == is_said


def test_the_confidence_is_the_largest_softmax_probability(scored, watching_file) -> None:
    scorer = gradscore.Scorer.load(watching_file, trust_code=True)
    pixels = np.round(load_digits().images[420:430, None] * (255 / 16))
    with torch.no_grad():
        logits = scorer.model(torch.tensor(pixels, dtype=torch.float32) / 127.5 - 1)
    found = 1 / (1 + np.exp(-scored["watched_confidence"][:10]))
    np.testing.assert_allclose(found, logits.softmax(1).max(1).values, rtol=1e-4)


def test_the_incomplete_window_is_worked_out_once_after_each_update(bundle, table, monkeypatch) -> None:
    monitor, rows, worked_out = Monitor(bundle, window=100), table(80), []

    def counted(*arguments, **settings):
        worked_out.append(settings["name"])
        return after_window(*arguments, **settings)

    monkeypatch.setattr("gradscore.monitoring.monitor.after_window", counted)
    for part, samples in ((rows.iloc[:60], 60), (rows.iloc[60:], 80)):
        monitor.update(part)
        assert (monitor.windows[0].samples, monitor.changes, type(monitor.notices)) == (samples, [], list)
    assert worked_out == ["1", "1"]


def watched(path: Path) -> dict:
    """A state but for the hash of the last call."""
    return {**json.loads(path.read_text())["state"], "last": ""}


@pytest.mark.parametrize("cut", [100, 170])
def test_one_call_is_two(bundle, table, tmp_path: Path, cut: int) -> None:
    rows = table(300)
    Monitor(bundle, window=np.int64(100), state=tmp_path / "one").update(rows)
    Monitor(bundle, window=100, state=tmp_path / "two").update(rows.iloc[:cut])
    Monitor(bundle, window=100, state=tmp_path / "two").update(rows.iloc[cut:])
    assert watched(tmp_path / "one") == watched(tmp_path / "two")


def test_a_table_read_from_csv_is_the_same(bundle, scored, tmp_path: Path) -> None:
    """Of samples that are all accepted, whose reasons a CSV file has as missing values."""
    accepted = scored[scored["decision"] == "accept"].head(120)
    accepted.to_csv(tmp_path / "table.csv", index=False)
    found = [Monitor(bundle, window=60, state=tmp_path / f"{place}.json") for place in range(2)]
    for monitor, rows in zip(found, (accepted, pd.read_csv(tmp_path / "table.csv")), strict=True):
        monitor.update(rows)
    first, second = (monitor.windows for monitor in found)
    assert [(each.ood, each.rejected, each.samples) for each in second] == [(0.0, 0.0, 60)] * 2
    assert [each.accuracy for each in second] == pytest.approx([each.accuracy for each in first], abs=1e-9)


def test_a_score_without_a_probability_has_none_among_the_suspicious(bundle, table, tmp_path: Path) -> None:
    """As where a baseline decides: `gradscore bundle --score wrong=energy`."""
    monitor = Monitor(bundle, window=50, state=tmp_path / "state.json")
    monitor.update(table(60).assign(probability_wrong=pd.Series([None] * 60, dtype=object)))
    assert {each.probability_wrong for window in monitor.windows for each in window.suspicious} == {None}


def test_a_table_that_comes_twice_in_a_row_is_said(bundle, table, tmp_path: Path) -> None:
    rows, others = table(130), table(130, seed=1).assign(sample_id=table(130)["sample_id"])
    said = "130 samples are counted twice: they have the names and scores of the call before"
    for part, twice in ((rows, False), (others, False), (others, True), (rows, True)):
        monitor = Monitor(bundle, state=tmp_path / "state.json")
        monitor.update(part)
        assert any(notice.startswith(said) for notice in monitor.notices) == twice
    assert monitor.windows[-1].first + monitor.windows[-1].samples == 4 * 130


def test_a_call_without_samples_between_two_equal_ones_hides_nothing(bundle, table) -> None:
    monitor = Monitor(bundle)
    for part in (table(130), table(0), table(130)):
        monitor.update(part)
    assert any("130 samples are counted twice" in notice for notice in monitor.notices)


def test_calls_of_several_threads_take_turns(bundle, table, monkeypatch) -> None:
    monitor, rows = Monitor(bundle, window=100), table(200)
    with_rows = Monitor._with_rows

    def slowly(self, state, part):
        time.sleep(0.005)
        return with_rows(self, state, part)

    monkeypatch.setattr(Monitor, "_with_rows", slowly)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda start: monitor.update(rows.iloc[start : start + 20]), range(0, 200, 20)))
    assert sum(window.samples for window in monitor.windows) == 200


def test_an_alarm_says_what_changed_and_since_when(bundle, table) -> None:
    monitor = Monitor(bundle, window=100, alpha=0.01)
    monitor.update(table(500))
    assert monitor.changes == []
    monitor.update(table(1000, seed=1, worse=4.0))
    alarm = next(alarm for alarm in monitor.changes[0].alarms if alarm.stream == "score_wrong")
    assert "high" in alarm.says  # which upward bet wins is decided by digits that differ between processors
    assert int(alarm.since) <= 6 <= int(alarm.until) + 1
    assert int(alarm.until) - int(alarm.since) <= 2
    assert monitor.changes[0].sentence.startswith("Changed between samples ")
    assert len(monitor.changes[0].alarms) == sum(len(window.alarms) for window in monitor.windows)
    assert alarm.e_value >= 100
    assert 500 < alarm.sample <= int(alarm.raised) * 100


@pytest.fixture(scope="module")
def changed_twice(bundle, table) -> tuple[pd.DataFrame, Monitor]:
    """Samples, and a monitor that had them at once."""
    rows = pd.concat([table(500), table(1000, seed=1, worse=4.0), table(800, seed=2)], ignore_index=True)
    monitor = Monitor(bundle, window=100)
    monitor.update(rows)
    return rows, monitor


@pytest.mark.parametrize("cut", [650, 800, 1150])
def test_changes_are_the_same_wherever_calls_end(bundle, changed_twice, tmp_path: Path, cut: int) -> None:
    rows, whole = changed_twice
    path = tmp_path / "state.json"
    Monitor(bundle, window=100, state=path).update(rows.iloc[:cut])
    Monitor(bundle, window=100, state=path).update(rows.iloc[cut:])
    assert Monitor(bundle, window=100, state=path).changes == whole.changes


def test_each_bundle_draws_ranks_within_bins_of_its_own(bundle, table) -> None:
    """The same samples and calibration samples in another bundle: only ranks of values in the same bin differ."""
    found = []
    for watched in (bundle, bundle, replace(bundle, weights_sha256="0" * 64)):
        monitor = Monitor(watched, window=100)
        monitor.update(table(100).assign(watched_bundle=watched.identity))
        found.append(monitor.windows[0].log10_e_values)
    assert found[0] == found[1]
    assert all(found[0][name] != found[2][name] for name in found[0])
    assert found[0] == pytest.approx(found[2], abs=1)


def test_samples_that_another_alpha_decided_on_are_refused(bundle, watching_file) -> None:
    pixels = np.round(load_digits().images[420:430, None] * (255 / 16)).astype(np.uint8)
    strict = gradscore.Scorer.load(watching_file, trust_code=True, alpha=0.5 * bundle.alpha)
    with pytest.raises(DataError, match="'watched_bundle': wanted the bundle"):
        Monitor(bundle, window=50).update(strict(pixels, watch=True))


def test_samples_that_cannot_be_scored_count_and_say_nothing(bundle, table) -> None:
    rows, lost = table(100), table(100).assign(decision="error", reason="", score_wrong=np.nan, score_ood=np.nan)
    both = pd.concat([rows.iloc[:60], lost.iloc[:20], rows.iloc[60:80]], ignore_index=True)
    with_lost, without = Monitor(bundle, window=100), Monitor(bundle, window=80)
    with_lost.update(both)
    without.update(rows.iloc[:80])
    assert (with_lost.windows[0].samples, with_lost.windows[0].not_scored) == (100, 20)
    assert with_lost.windows[0].log10_e_values == without.windows[0].log10_e_values
    assert with_lost.windows[0].accuracy == without.windows[0].accuracy


@pytest.mark.parametrize("every", [1, 25])
def test_a_change_is_dated_by_the_samples_that_came(bundle, table, every: int) -> None:
    """As many samples that cannot be scored as others come before it, or a few."""
    usual, other = table(500), table(1000, seed=1, worse=4.0)
    lost = usual.iloc[::every].assign(decision="error", reason="", score_wrong=np.nan, score_ood=np.nan)
    monitor = Monitor(bundle, window=100)
    monitor.update(pd.concat([pd.concat([lost, usual]).sort_index(kind="stable"), other], ignore_index=True))
    change, begun = monitor.changes[0], len(lost) + len(usual) + 1
    assert change.first - 10 <= begun <= change.last + 10
    for name, sample in ((change.since, change.first), (change.until, change.last)):
        (window,) = [each for each in monitor.windows if each.name == name]
        assert window.first < sample <= window.first + window.samples
    assert all(alarm.sample <= int(alarm.raised) * 100 for alarm in change.alarms)
    assert all(alarm.sample > (int(alarm.raised) - 1) * 100 for alarm in change.alarms)


def test_a_window_in_which_nothing_can_be_scored(bundle, table) -> None:
    monitor = Monitor(bundle, window=50)
    monitor.update(table(60).assign(decision="error", score_wrong=np.nan))
    window = monitor.windows[0]
    assert (window.accuracy, window.rejected, window.ood, window.suspicious) == (None, None, None, [])


def test_a_window_of_too_few_scored_samples_is_said_to_have_no_accuracy(bundle, table) -> None:
    """Windows are never shorter than 50 samples, so what is wrong is with the samples, not with --window."""
    lost = table(11).assign(decision="error", reason="", score_wrong=np.nan, score_ood=np.nan)
    monitor = Monitor(bundle, window=60)
    monitor.update(pd.concat([table(49), lost], ignore_index=True))
    assert monitor.windows[0].accuracy is None
    assert [notice for notice in monitor.notices if "fewer than 50 samples could be scored" in notice] == [
        "a window in which fewer than 50 samples could be scored has no estimated accuracy; gradscore score says why "
        "the others could not (column error)"
    ]


def test_no_sample_is_no_window(bundle, table) -> None:
    monitor = Monitor(bundle, window=50)
    assert monitor.update(table(0)) == []
    assert monitor.windows == []


def test_a_bundle_without_shifted_copies_estimates_nothing(bundle, table) -> None:
    plain = replace(bundle, known_sets=replace(bundle.known_sets, shifted={}, ood={}))
    monitor = Monitor(plain, window=100)
    monitor.update(table(100).assign(watched_bundle=plain.identity))
    window = monitor.windows[0]
    assert (window.accuracy, window.low, window.high) == (None, None, None)
    assert monitor.notices[0].endswith("no accuracy can be estimated; gradscore bundle --monitor learns it")


def test_of_samples_that_are_no_images_nothing_is_to_be_learnt(bundle) -> None:
    """`gradscore bundle --monitor` refuses them, so nobody is sent there."""
    rows = replace(bundle.self_test, images=bundle.self_test.images[:, 0, :, 0])
    plain = replace(bundle, known_sets=replace(bundle.known_sets, shifted={}, ood={}), self_test=rows)
    (notice,) = Monitor(plain, window=100).notices
    assert notice == "samples that are no images have no estimated accuracy: changes are noticed without it"


BAD_SETTINGS = {
    "few samples": ({"window": 49}, "window: wanted 50 samples or more, got 49"),
    "a period": ({"window": "day"}, "got 'day'"),
    "alpha in words": ({"alpha": "0.1"}, "alpha: wanted a number between 0 and 1, got '0.1'"),
    "alpha": ({"alpha": 1.5}, "alpha: wanted a number between 0 and 1, got 1.5"),
}


@pytest.mark.parametrize(("settings", "says"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_settings_that_cannot_be(bundle, settings, says: str) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        Monitor(bundle, **settings)


BAD_TABLES = {
    "of another bundle": (
        lambda rows: rows.assign(watched_bundle=["f" * 64] * 70),
        r"column 'watched_bundle': wanted the bundle .{12}\.\.\., got 'f{64}' in row 0 \(.+\), such rows: 70; give",
    ),
    "no class": (
        lambda rows: rows.assign(prediction=[*rows["prediction"][:69], 99]),
        r"column 'prediction': wanted a class from 0 to 9, got 99.0 in row 69 \(.+\), such rows: 1; give",
    ),
    "text": (
        lambda rows: rows.assign(score_wrong=rows["score_wrong"].astype(str)),
        "column 'score_wrong': wanted a finite number, got '",
    ),
    "no decision": (
        lambda rows: rows.assign(decision="ACCEPT"),
        "column 'decision': wanted accept, reject or error, got 'ACCEPT' in row 0",
    ),
    "not watched": (lambda rows: rows.drop(columns="watched_confidence"), "no column 'watched_confidence'"),
    "none": (lambda rows: None, "table: wanted a data frame, .* got NoneType"),
    "records": (lambda rows: rows.to_dict("records"), "table: wanted a data frame, .* got list"),
    "a column twice": (
        lambda rows: pd.concat([rows, rows[["decision"]]], axis=1),
        "table: column 'decision' is there twice; leave one of them out",
    ),
    "no probability": (
        lambda rows: rows.assign(probability_wrong=7.0),
        r"column 'probability_wrong': wanted a number from 0 to 1, got 7.0 in row 0 \(.+\), such rows: 70",
    ),
    "not finite": (
        lambda rows: rows.assign(score_wrong=np.nan),
        r"column 'score_wrong': wanted a finite number, got nan in row 0 \(.+\), such rows: 70",
    ),
}


@pytest.fixture(scope="module")
def without_samples(bundle) -> Monitor:
    return Monitor(bundle, window=50)


@pytest.mark.parametrize(("change", "says"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_tables_of_something_else(without_samples, table, change, says: str) -> None:
    with pytest.raises(DataError, match=says):
        without_samples.update(change(table(70)))
    assert without_samples.windows == []


DAMAGES = {
    "cut off": (lambda text: text[: len(text) // 2], "damaged, .*no JSON"),
    "no number": (lambda text: text.replace(b'"alpha":0.01', b'"alpha":NaN'), "not JSON compliant"),
    "edited": (lambda text: text.replace(b'"alpha":0.01', b'"alpha":0.05'), "it was changed after it was written"),
    "older": (
        lambda text: text.replace(b'"version":15', b'"version":9'),
        "version: Input should be 15, got 9.; restore it from a copy, or remove",
    ),
    "of no version": (lambda text: text.replace(b'"version":15,', b""), "version: Field required"),
}


def without_streams(text: bytes) -> bytes:
    """A state without a part, whose hash is right."""
    file = json.loads(text)
    del file["state"]["streams"]
    content = json.dumps(file["state"], separators=(",", ":"))
    return json.dumps({**file, "sha256": hashlib.sha256(content.encode()).hexdigest()}).encode()


DAMAGES["without a part"] = (without_streams, "state.streams: Field required")


@pytest.fixture(scope="module")
def state(bundle, table, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a monitor with some samples."""
    path = tmp_path_factory.mktemp("state") / "state.json"
    Monitor(bundle, state=path).update(table(60))
    return path.read_bytes()


@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_state_is_refused(bundle, state: bytes, tmp_path: Path, damage, says: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(damage(state))
    with pytest.raises(MonitorError, match=says):
        Monitor(bundle, state=path)


def test_a_pipe_is_no_state(bundle, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MonitorError, match="pipe: wanted a file for the state, got a device or a pipe"):
        Monitor(bundle, state=tmp_path / "pipe")


OTHERS = {
    "bundle": (lambda bundle: replace(bundle, weights_sha256="0" * 64), {}, "belongs to another bundle"),
    "window": (lambda bundle: bundle, {"window": 200}, "was begun with window 1000, got window 200"),
}


@pytest.mark.parametrize(("change", "settings", "says"), OTHERS.values(), ids=OTHERS.keys())
def test_the_state_of_another_monitor_is_refused(
    bundle, state: bytes, tmp_path: Path, change, settings, says: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(state)
    with pytest.raises(MonitorError, match=says):
        Monitor(change(bundle), state=path, **settings)


def test_an_interruption_takes_nothing(bundle, table, tmp_path: Path, monkeypatch) -> None:
    path, rows = tmp_path / "state.json", table(300)
    monitor = Monitor(bundle, window=100, state=path)
    monitor.update(rows.iloc[:150])
    before, calls = path.read_bytes(), []

    def interrupted(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return after_window(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr("gradscore.monitoring.monitor.after_window", interrupted)
        with pytest.raises(KeyboardInterrupt):
            monitor.update(rows.iloc[150:])
    assert path.read_bytes() == before
    monitor.update(rows.iloc[150:])
    Monitor(bundle, window=100, state=tmp_path / "whole").update(rows)
    assert watched(path) == watched(tmp_path / "whole")


def test_a_state_that_cannot_be_written_takes_nothing(bundle, table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monitor = Monitor(bundle, window=50, state=tmp_path / "file" / "state.json")
    with pytest.raises(OutputError):
        monitor.update(table(60))
    assert monitor.windows == []


@pytest.mark.parametrize("before", [0, 60], ids=["none at first", "one to go on with"])
def test_samples_of_a_monitor_at_the_same_time_are_not_lost(bundle, table, tmp_path: Path, before: int) -> None:
    path = tmp_path / "watch/state.json"
    Monitor(bundle, state=path).update(table(before)) if before else None
    one, two = (Monitor(bundle, state=path) for _ in range(2))
    one.update(table(100))
    with pytest.raises(
        MonitorError, match="another monitor wrote this state meanwhile; none of these samples is counted"
    ):
        two.update(table(150))
    assert sum(window.samples for window in two.windows) == before
    one.update(table(10))
    again = Monitor(bundle, state=path)
    again.update(table(150))
    assert sum(window.samples for window in again.windows) == before + 260
