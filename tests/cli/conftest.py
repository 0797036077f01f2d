"""A small configuration for tests of commands."""

from pathlib import Path

import pytest

NET = """
from torch import nn

def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
CONFIG = """
model: {source: "python:net.py:linear", checkpoint: null, num_classes: 10}
data:
  auxiliary: []
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 12}}
    test: {source: "sklearn:digits", select: {start: 20, stop: 27}}
  ood:
    - {name: other, source: "sklearn:digits", select: {start: 40, stop: 45}}
features: {penultimate: false}
run: run
"""


@pytest.fixture
def config_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A configuration with its network beside it: `CONFIG` and `NET` of the file of tests, or else those above."""
    (tmp_path / "net.py").write_text(getattr(request.module, "NET", NET))
    file = tmp_path / "config.yaml"
    file.write_text(getattr(request.module, "CONFIG", CONFIG))
    return file
