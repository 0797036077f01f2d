"""`gradscore monitor`: files, exit codes, going on, and what it refuses."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from commands import cli
from PIL import Image
from sklearn.datasets import load_digits

from gradscore.deployment import Scorer
from gradscore.monitoring import Monitor, write_monitor
from gradscore.system import writing

DIGITS = np.round(load_digits().images[420:] * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as they are, and noise."""
    folder = tmp_path_factory.mktemp("watched")
    np.savez(folder / "digits.npz", images=DIGITS[:120])
    np.savez(folder / "more.npz", images=DIGITS[120:240])
    noise = np.random.default_rng(0).integers(0, 256, (600, 8, 8), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    (folder / "images").mkdir()
    for place in range(60):
        Image.fromarray(DIGITS[place]).save(folder / "images" / f"{place:02}.png")
    return folder


def monitor(bundle: Path, *arguments: object) -> Result:
    return cli("monitor", bundle, *arguments, "--trust-code")


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]


def test_the_command_says_what_the_library_says(small_bundle, samples, tmp_path: Path) -> None:
    result = monitor(small_bundle, samples / "digits.npz", "--window", 60, "--out", tmp_path / "m", "--json")
    watching = Monitor.load(small_bundle, window=60)
    watching.update(Scorer.load(small_bundle, trust_code=True)(DIGITS[:120, None], watch=True))
    found = lines(tmp_path / "m")
    assert result.exit_code == 0
    assert [window["rejected"] for window in found] == [window.rejected for window in watching.windows]
    assert found[0]["log10_e_values"] == pytest.approx(watching.windows[0].log10_e_values, rel=1e-6, abs=1e-6)
    printed = json.loads(result.stdout)
    assert [{**each, "changes": []} for each in printed["windows"]] == found
    assert printed["report"].endswith(".html")
    assert (tmp_path / "m/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--fail-on-alarm",), 1)], ids=["told", "failing"])
def test_an_alarm(small_bundle, samples, tmp_path: Path, option: tuple[str, ...], code: int) -> None:
    result = monitor(small_bundle, samples / "noise.npz", "--window", 200, "--out", tmp_path, *option)
    assert result.exit_code == code
    (sentence,) = [each for line in lines(tmp_path) for each in line["changes"]]
    told = " ".join(result.stdout.split())
    assert told.count("alarm: ") == 1
    assert told.startswith(f"alarm: {sentence}; evidence: ")
    assert f"{100 * lines(tmp_path)[0]['rejected']:.1f} %" in told
    assert "an alarm stands until you start with a new folder (--out)" in told
    assert sentence in (tmp_path / "metrics.prom").read_text()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """60 images of which none can be decoded."""
    (tmp_path / "damaged").mkdir()
    for place in range(60):
        (tmp_path / f"damaged/{place:02}.png").write_bytes(b"broken")
    return tmp_path / "damaged"


def test_a_window_in_which_nothing_can_be_scored(small_bundle, damaged, samples, tmp_path: Path) -> None:
    given = [damaged, samples / "digits.npz"]
    result = monitor(small_bundle, *given, "--window", 60, "--out", tmp_path / "m")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^ *1 +60 +60 +- +- +- +-", result.stdout, re.MULTILINE)
    assert "not scored: 60; the first: " in result.stderr
    assert "60</td></tr>" in (tmp_path / "m/monitor.html").read_text()
    assert [(each["samples"], each["not_scored"]) for each in lines(tmp_path / "m")] == [(60, 60), (60, 0), (60, 0)]
    again = monitor(small_bundle, samples / "more.npz", "--window", 60, "--out", tmp_path / "m")
    assert "not scored:" not in again.stderr


def test_the_page_of_windows_in_which_nothing_could_be_scored(small_bundle, damaged, tmp_path: Path) -> None:
    watching = Monitor.load(small_bundle, window=60)
    watching.update(Scorer.load(small_bundle, trust_code=True)(sorted(damaged.glob("*")), watch=True))
    write_monitor(watching, tmp_path, name="damaged")
    page = (tmp_path / "monitor.html").read_text()
    assert "60</td></tr>" in page
    assert re.findall(r'<figure[^>]* id="([^"]*)"', page) == ["drift"]


@pytest.mark.parametrize("before", [[], ["more.npz"]], ids=["first", "later"])
def test_a_call_in_which_nothing_can_be_scored_counts_nothing(
    small_bundle, damaged, samples, tmp_path: Path, before: list[str]
) -> None:
    for name in before:
        assert monitor(small_bundle, samples / name, "--window", 50, "--out", tmp_path / "m").exit_code == 0
    known = {path: path.read_bytes() for path in (tmp_path / "m").glob("*")}
    result = monitor(small_bundle, damaged, "--window", 50, "--out", tmp_path / "m")
    assert result.exit_code == 2, result.stderr
    said = " ".join(result.stderr.split())
    assert "error: not scored: 60; the first: " in said
    assert said.endswith("These samples are not counted")
    assert {path: path.read_bytes() for path in (tmp_path / "m").glob("*")} == known


def test_files_that_cannot_be_written_are_found_before_anything_is_counted(small_bundle, samples, tmp_path) -> None:
    (tmp_path / "monitor.html").mkdir()
    result = monitor(small_bundle, samples / "digits.npz", "--window", 60, "--out", tmp_path)
    assert (result.exit_code, "wanted a file to write to, got a folder" in result.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["monitor.html"]


def test_a_full_disk_after_the_samples_were_counted(small_bundle, samples, tmp_path, monkeypatch) -> None:
    def full(path: Path, _text: str) -> None:
        with writing(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("gradscore.monitoring.monitor_files.write_text", full)
        result = monitor(small_bundle, samples / "digits.npz", "--window", 60, "--out", tmp_path)
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert "cannot be written: No space left on device. These samples are counted in" in said
    assert ("do not give them again" in said, "same command" in said) == (True, False)
    monitor(small_bundle, samples / "more.npz", "--window", 60, "--out", tmp_path)
    assert "gradscore_monitor_samples_total 240.0" in (tmp_path / "metrics.prom").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("option", [(), ("--json",)], ids=["lines", "json"])
def test_no_room_for_what_is_printed(small_bundle, samples, tmp_path, option: tuple[str, ...]) -> None:
    given = [small_bundle, samples / "digits.npz", "--window", "60", "--out", tmp_path / "m", "--trust-code", *option]
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "gradscore", "monitor", *map(str, given)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = " ".join(result.stderr.split())
    assert result.returncode == 2
    assert "cannot be printed: No space left on device. These samples are counted in" in said
    assert "do not give them again" in said
    assert "gradscore_monitor_samples_total 120.0" in (tmp_path / "m/metrics.prom").read_text()


def test_an_interrupt_after_the_samples_were_counted(small_bundle, samples, tmp_path, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradscore.monitoring.write_monitor", interrupted)
    result = monitor(small_bundle, samples / "digits.npz", "--window", 60, "--out", tmp_path)
    assert result.exit_code == 130
    said = " ".join(result.stderr.split())
    assert f"interrupted; these samples are counted in {tmp_path / 'state.json'}: do not give them again" in said


def test_no_sample_at_all(small_bundle, tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", images=DIGITS[:0])
    result = monitor(small_bundle, tmp_path / "empty.npz", "--out", tmp_path / "m")
    assert result.exit_code == 2
    assert not (tmp_path / "m").exists()


def test_what_cannot_be_estimated_is_said(small_bundle, samples, tmp_path: Path) -> None:
    result = monitor(small_bundle, samples / "noise.npz", "--window", 200, "--out", tmp_path)
    assert all(window["ood"] > 0.5 and window["accuracy"] is None for window in lines(tmp_path))
    said = " ".join(result.output.split())
    assert "the bundle was made without --monitor" in said
    assert "no accuracy is given for a window" not in said  # one reason is enough
