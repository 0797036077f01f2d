"""How far an extraction is, and how fast its samples come."""

from types import SimpleNamespace

import pytest

from gradscore.pipeline import loop
from gradscore.pipeline.loop import Pace

SECONDS = {"of one batch": ([3.0], None), "the first does not count": ([30.0, 31.0, 32.0], 4.0)}


@pytest.mark.parametrize(("ends", "expected"), SECONDS.values(), ids=SECONDS)
def test_rate(ends, expected, monkeypatch):
    clock = iter(ends)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    pace = Pace()
    for _ in ends:
        pace.add(4)
    assert pace.rate == expected
