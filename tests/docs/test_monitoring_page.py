"""The Python of docs/monitoring.md, run on digits."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from manual_pages import code_of
from sklearn.datasets import load_digits

import gradscore

IMAGES = list(np.round(load_digits().images[:1000] * (255 / 16)).astype(np.uint8))


def test_a_service_watches_what_it_scores(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window that is full is printed, and the state is kept where the page says."""
    shutil.copy(small_bundle, tmp_path / "scorer.gradscore")
    shutil.copy(small_bundle.parent / "net.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(code_of("monitoring.md"), {"gradscore": gradscore, "images": IMAGES})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "1 None None None"  # of a bundle made without --monitor no accuracy is estimated
    assert json.loads((tmp_path / "watch/state.json").read_text())
