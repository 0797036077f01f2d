"""One change is one alarm: which alarms belong together, and the sentence."""

from itertools import permutations

import numpy as np
import pytest

from gradscore.monitoring.changes import (
    CLASSES,
    Alarm,
    Change,
    Window,
    changes_of,
    come_in_runs,
    describe_chance,
    effective_classes,
    runs_by_chance,
)
from gradscore.monitoring.streams import Stream, after_window

WORDS = {
    2.0: "1 in 100 by chance",
    2.55: "1 in 300 by chance",
    5.9: "1 in 10^5 by chance",
    9.0: "certain",
    60.0: "certain",
}


@pytest.mark.parametrize(("power", "words"), WORDS.items())
def test_e_values_in_words(power: float, words: str) -> None:
    assert describe_chance(power) == words


def test_runs_by_chance_are_those_of_all_orders() -> None:
    orders = np.array([*permutations([0, 0, 0, 1, 1, 2, 2])])
    runs = 1 + (np.diff(orders, axis=1) != 0).sum(axis=1)
    assert runs_by_chance(np.array([3.0, 2.0, 2.0])) == pytest.approx((runs.mean(), runs.var()))


def test_classes_count_by_their_shares() -> None:
    assert effective_classes(np.array([])) == 0
    assert effective_classes(np.zeros(9)) == 1
    assert effective_classes(np.arange(40.0) % 4) == pytest.approx(4)
    assert effective_classes(np.array([0.0, 0, 0, 1])) == pytest.approx(1 / (0.75**2 + 0.25**2))


def test_what_comes_in_runs() -> None:
    random = np.random.default_rng(0)
    drawn = random.integers(10, size=(200, 300)).astype(float)
    assert not any(map(come_in_runs, drawn))
    assert not come_in_runs(np.zeros(300))
    assert not come_in_runs(np.zeros(0))
    assert all(come_in_runs(np.repeat(each[:150], 2)) for each in drawn)  # every sample twice
    assert all(come_in_runs(np.sort(each)) for each in drawn)


def window(number: int, alarms: list[Alarm] = (), *, accuracy: float | None = 0.9, ood: float = 0.04) -> Window:
    return Window(
        name=str(number),
        first=1000 * (number - 1),
        samples=1000,
        not_scored=0,
        complete=True,
        accuracy=accuracy,
        low=None,
        high=None,
        mean_confidence=0.9,
        ood=ood,
        rejected=0.1,
        in_runs=False,
        few_classes=False,
        log10_e_values=dict.fromkeys(("novelty", "score_ood", "score_wrong", CLASSES), 2.5),
        alarms=list(alarms),
    )


def alarm(stream: str, first: int, last: int, sample: int, *, e_value: float = 500.0) -> Alarm:
    since, until, raised = (str(1 + (each - 1) // 1000) for each in (first, last, sample))
    return Alarm(
        stream=stream,
        says="is higher",
        first=first,
        last=last,
        since=since,
        until=until,
        raised=raised,
        sample=sample,
        e_value=e_value,
    )


SAME = {
    "a change that is over": ([0.93, 0.811, 0.93], "estimated accuracy 0.81 instead of 0.93"),
    "no change of the accuracy": ([0.93, 0.932, 0.928], "estimated accuracy 0.93, as before"),
    "none since the calibration": ([0.95], "estimated accuracy 0.95, as on the calibration samples"),
}


@pytest.mark.parametrize(("accuracies", "said"), SAME.values(), ids=SAME)
def test_an_accuracy_is_not_given_instead_of_itself(accuracies: list[float], said: str) -> None:
    raised = min(2, len(accuracies))
    alarms = {raised: [alarm(CLASSES, 1000 * raised - 900, 1000 * raised - 500, 1000 * raised - 100)]}
    windows = [window(place, alarms.get(place, []), accuracy=each) for place, each in enumerate(accuracies, 1)]
    (change,) = changes_of(windows, usual=0.95)
    assert change.sentence.endswith(said)


def test_alarms_of_one_change_are_one_sentence() -> None:
    """The figures are of the first window that the change fills, and the e-value the largest so far."""
    windows = [
        window(1),
        window(2, ood=0.02),
        window(3, [alarm("score_ood", 1990, 2130, 2300), alarm("novelty", 1980, 2040, 2100, e_value=5e5)], ood=0.15),
        window(4, [alarm("score_wrong", 2200, 2500, 3100)], accuracy=0.75, ood=0.19),
    ]
    (change,) = changes_of(windows, usual=0.95)
    assert [each.stream for each in change.alarms] == ["novelty", "score_ood", "score_wrong"]
    assert change.sentence == (
        "Changed between samples 1,980 and 2,040 (window 2 to 3), 1 in 10^5 by chance: 19 % look out of distribution "
        "instead of 4 %; estimated accuracy 0.75 instead of 0.90"
    )


def test_what_began_later_is_another_change() -> None:
    windows = [
        window(1, [alarm("novelty", 300, 320, 400)], ood=0.2),
        window(2, [alarm("score_ood", 350, 500, 1900)], ood=0.2),
        window(3, [alarm(CLASSES, 2500, 2600, 2700)], accuracy=None, ood=0.2),
    ]
    first, second = changes_of(windows, usual=0.95)
    assert [each.stream for each in first.alarms] == ["novelty", "score_ood"]
    assert first.sentence.endswith(
        "20 % look out of distribution; estimated accuracy 0.90 instead of 0.95 on the calibration samples"
    )
    assert second.sentence.endswith("(window 3), 1 in 500 by chance: the frequencies of the predicted classes changed")


def test_where_no_share_moves_the_stream_is_named() -> None:
    (change,) = changes_of([window(1), window(2, [alarm("score_wrong", 1100, 1200, 1300)])], usual=0.9)
    assert "500 by chance: score_wrong is higher; estimated" in change.sentence


def watched(drifts: dict[int, np.ndarray], *, seed: int) -> list[Change]:
    """What is noticed in 7,000 samples of three normal streams, whose means are others from some samples on."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(7000, 3)) + sum((np.arange(7000) >= at)[:, None] * by for at, by in drifts.items())
    names = ("novelty", "score_ood", "score_wrong")
    streams, windows = {name: Stream.of(random.normal(size=2000)) for name in names}, []
    for number, part in enumerate(np.split(values, 7), 1):
        columns = dict(zip(names, part.T, strict=True))
        streams, alarms, _ = after_window(streams, columns, before=windows, name=str(number), alpha=0.01, seed=seed)
        windows.append(window(number, alarms))
    return changes_of(windows, usual=0.9)


A, B = np.array([0.5, 0.8, 0.2]), np.array([0.5, -1.2, 0.3])
SECOND = {"further": B, "back to where it was": -A}


@pytest.mark.slow
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_a_second_change_of_the_same_streams_is_a_second_alarm(second: np.ndarray) -> None:
    found = [watched({1000: A, 3000: second}, seed=seed) for seed in range(20)]
    assert [len(changes) for changes in found].count(2) >= 19
    begun = np.array([[(each.first, each.last) for each in changes[:2]] for changes in found])
    held = (begun[:, :, 0] <= [1001, 3001]) & (begun[:, :, 1] >= [1001, 3001])
    assert held.mean() >= 0.8
    assert {each.stream for changes in found for each in changes[1].alarms} >= {"novelty", "score_ood"}


@pytest.mark.slow
def test_one_change_stays_one_change_however_long_it_lasts() -> None:
    found = [watched({1000: A}, seed=seed) for seed in range(40)]
    assert [len(changes) for changes in found].count(1) >= 39
    assert np.mean([len(changes[0].alarms) for changes in found]) > 2  # the weakest stream is noticed late, and counted


def test_a_second_change_is_compared_with_what_came_after_the_first() -> None:
    windows = [
        window(1, ood=0.02),
        window(2, [alarm("novelty", 1020, 1100, 1300)], ood=0.15, accuracy=0.7),
        window(3, ood=0.2, accuracy=0.6),
        window(4, [alarm("novelty", 3050, 3100, 3400)], ood=0.4, accuracy=0.5),
        window(5, ood=0.5, accuracy=0.4),
    ]
    _, second = changes_of(windows, usual=0.9)
    assert "50 % look out of distribution instead of 20 %; estimated accuracy 0.40 instead of 0.60" in second.sentence


def test_a_late_alarm_of_the_first_change_is_evidence_of_that_one() -> None:
    windows = [
        window(1, [alarm("novelty", 300, 320, 400)]),
        window(2, [alarm("novelty", 1500, 1600, 1700)]),
        window(3, [alarm("score_ood", 250, 500, 2400)]),
    ]
    first, second = changes_of(windows, usual=0.9)
    assert [each.stream for each in first.alarms] == ["novelty", "score_ood"]
    assert [each.stream for each in second.alarms] == ["novelty"]


def test_what_is_dated_too_early_is_evidence_of_the_change_noticed_with_it() -> None:
    """An earlier change is over: it neither takes that alarm nor makes it a change of its own."""
    windows = [
        window(1, [alarm(CLASSES, 1, 90, 300)], ood=0.06),
        *(window(number, ood=0.02) for number in (2, 3, 4)),
        window(5, [alarm("score_ood", 4060, 4240, 4360), alarm("novelty", 2530, 3260, 4090, e_value=100.0)], ood=0.73),
        window(6, ood=0.93, accuracy=None),
    ]
    classes, change = changes_of(windows, usual=0.9)
    assert [each.stream for each in classes.alarms] == [CLASSES]
    assert [each.stream for each in change.alarms] == ["score_ood", "novelty"]
    assert "93 % look out of distribution instead of 2 %" in change.sentence


def test_a_change_is_compared_with_the_one_before_it_in_time() -> None:
    """Be it noticed later than one that came after it."""
    windows = [
        window(1, ood=0.02),
        window(2, ood=0.02),
        window(3, ood=0.4, accuracy=0.7),
        window(4, ood=0.4, accuracy=0.7),
        window(5, [alarm("novelty", 4050, 4100, 4300)], ood=0.9, accuracy=0.5),
        window(6, [alarm("novelty", 2050, 2100, 5300)], ood=0.9, accuracy=0.5),
    ]
    first, second = changes_of(windows, usual=0.9)
    assert "40 % look out of distribution instead of 2 %" in first.sentence
    assert "90 % look out of distribution instead of 40 %" in second.sentence
