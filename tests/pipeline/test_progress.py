"""The bar of work: what it says of a split, and how fast."""

import pytest
from rich.console import Console
from rich.progress import Progress

from gradscore.pipeline import progress, progress_bar


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Progress:
    """The bar of Rich that is shown."""
    bar = Progress(console=Console(quiet=True))
    monkeypatch.setattr(progress, "Rich", lambda *_, **__: bar)
    return bar


def test_rate_counts_only_what_is_computed_now(shown: Progress) -> None:
    with progress_bar(Console(quiet=True)) as tell:
        tell("in_dist.fit", 1000, 2000)
        assert (shown.tasks[0].completed, shown.tasks[0].speed) == (1000, None)
        tell("in_dist.fit", 1001, 2000)
    assert (shown.tasks[0].completed, shown.tasks[0].total) == (1001, 2000)


def test_no_sign_that_a_terminal_obeys(shown: Progress) -> None:
    with progress_bar(Console(quiet=True)) as tell:
        tell("a\x1b[2Jb", 1, 0)
    assert (shown.tasks[0].description, shown.tasks[0].total) == (r"a\x1b[2Jb", None)
