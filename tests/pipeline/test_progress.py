"""How far an extraction is, and how fast its samples come."""

from types import SimpleNamespace

import pytest

from gradscore.pipeline import loop
from gradscore.pipeline.loop import Counter

BATCHES = {
    "of one batch": ([("fit", 3.0)], (4, 3.0)),
    "of several": ([("fit", 30.0), ("fit", 31.0), ("fit", 32.0)], (12, 32.0)),
    "what others take does not count": ([("fit", 30.0), ("ood", 40.0), ("fit", 42.0)], (8, 32.0)),
}


@pytest.mark.parametrize(("ends", "expected"), BATCHES.values(), ids=BATCHES)
def test_pace(ends, expected, monkeypatch):
    clock = iter([0.0, *(end for _, end in ends)])
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    counter = Counter()
    for split, _ in ends:
        counter.add(split, 4)
    pace = counter.paces["fit"]
    assert (pace.samples, pace.seconds) == expected


def test_what_was_there_before_is_told_and_has_no_pace():
    told = []
    counter = Counter(10, lambda *each: told.append(each))
    counter.skip("fit", 6)
    counter.add("fit", 6)
    assert told == [("fit", 6, 10), ("fit", 12, 12)]
    assert counter.paces["fit"].samples == 6
