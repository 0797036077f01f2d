"""A monitor whose state, page and figures are in object storage."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from storage_server import Bucket
from typer.testing import CliRunner, Result

from gradscore_cli.main import app

pytestmark = pytest.mark.slow

DIGITS = np.round(load_digits().images[420:540] * (255 / 16)).astype(np.uint8)


def monitor(bundle: Path, samples: Path, out: object) -> Result:
    return CliRunner().invoke(
        app, ["monitor", str(bundle), str(samples), "--window", "60", "--out", str(out), "--trust-code"]
    )


def test_a_monitor_goes_on_from_the_bucket_with_an_empty_cache(
    small_bundle: Path, bucket: Bucket, tmp_path: Path
) -> None:
    halves = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for path, images in zip(halves, (DIGITS[:70], DIGITS[70:]), strict=True):
        np.savez(path, images=images)
    for path in halves:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        results = [monitor(small_bundle, path, out) for out in (bucket.address("watch"), tmp_path / "watch")]
        assert [each.exit_code for each in results] == [0, 0], results[0].output
    assert bucket.get("watch/windows.jsonl") == (tmp_path / "watch" / "windows.jsonl").read_bytes()
