"""Of new samples that are predicted right at most alpha is rejected: simulated, and on runs with few or no labels."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from gradscore.data import SplitInfo
from gradscore.deployment.bundle_making import calibration_samples, make_bundle, usual_rows
from gradscore.deployment.calibration import (
    calibrated,
    holding_for_both,
    joint_false_alarms,
    joint_levels,
    neighbouring_levels,
    p_values,
)
from gradscore.errors import ConfigError, EvaluationError
from gradscore.monitoring import Stream
from gradscore.store import RunFolder

DRAWS, NEW = 1000, 100


@dataclass
class Column:
    """Stands in for a meta model: its scores are a column of the table."""

    name: str

    def decision(self, frame: pd.DataFrame) -> np.ndarray:
        return frame[self.name].to_numpy()


MODELS = {name: (Column(name), "known") for name in ("wrong", "ood")}


@dataclass(frozen=True)
class World:
    """Where samples come from: right with a probability, scores of right ones shifted by `shift`, and correlated."""

    right: float
    shift: tuple[float, float]
    correlation: float

    def samples(self, n: int, generator: np.random.Generator) -> pd.DataFrame:
        one, other = generator.standard_normal((2, n))
        other = self.correlation * one + np.sqrt(1 - self.correlation**2) * other
        correct = generator.random(n) < self.right
        return pd.DataFrame(
            {"wrong": one + correct * self.shift[0], "ood": other + correct * self.shift[1], "correct": correct}
        )


def rejected_share(world: World, n: int, alpha: float, generator: np.random.Generator) -> float:
    """The share rejected of new samples that are predicted right, for one calibration; NaN without a threshold."""
    calibration = world.samples(n, generator)
    try:
        detectors = calibrated(MODELS, calibration[calibration["correct"]], alpha=alpha)
    except EvaluationError:
        return np.nan
    new = world.samples(NEW, generator)
    fires = [detector.model.decision(new) > detector.threshold.value for detector in detectors.values()]
    return float(np.logical_or(*fires)[new["correct"]].mean())


PROMISES = {
    "usual": (World(0.9, (-1.5, 0.0), 0.3), 200, 0.1),
    "scores with one order": (World(0.7, (-1.0, 1.0), 0.999), 150, 0.2),
    "opposed scores": (World(0.7, (-1.0, 1.0), -0.9), 150, 0.2),
    "so few that often there is no threshold": (World(0.8, (-1.0, 1.0), 0.0), 24, 0.1),
    "few": (World(0.95, (0.0, 0.0), 0.0), 45, 0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "n", "alpha"), PROMISES.values(), ids=PROMISES)
def test_of_samples_predicted_right_at_most_alpha_is_rejected(world: World, n: int, alpha: float) -> None:
    generator = np.random.default_rng(n)
    shares = np.array([rejected_share(world, n, alpha, generator) for _ in range(DRAWS)])
    shares = shares[np.isfinite(shares)]
    error = shares.std() / np.sqrt(len(shares))
    assert len(shares) > DRAWS / 5
    assert shares.mean() <= alpha + 4 * error
    assert shares.mean() >= alpha / 4


@pytest.mark.slow
def test_the_promise_binds_where_it_can() -> None:
    """Scores that never fire together reject as many as promised: ranks 5 and 5 of 99, so 0.05 + 0.05."""
    generator = np.random.default_rng(0)
    world = World(1.0, (0.0, 0.0), -0.9)
    shares = np.array([rejected_share(world, 99, 0.1, generator) for _ in range(DRAWS)])
    assert shares.mean() == pytest.approx(0.1, abs=4 * shares.std() / np.sqrt(DRAWS))


@pytest.mark.parametrize("right", [0, 38])
def test_without_enough_samples_predicted_right_there_is_no_threshold(right: int) -> None:
    frame = World(1.0, (0.0, 0.0), 0.0).samples(right, np.random.default_rng(0))
    with pytest.raises(EvaluationError, match=f"needs at least 39 correctly predicted .*, got {right};"):
        calibrated(MODELS, frame, alpha=0.05)


@pytest.mark.parametrize(("alpha", "advice"), [(-1.0, ""), (0.0, ""), (1.0, ""), (1.5, "; 1.5 % is 0.015")])
def test_a_rate_out_of_range_is_named_as_it_was_given(alpha: float, advice: str) -> None:
    frame = World(1.0, (0.0, 0.0), 0.0).samples(50, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=f"alpha: wanted a number between 0 and 1, got {alpha}{advice}$"):
        calibrated(MODELS, frame, alpha=alpha)


def test_both_detectors_are_calibrated_on_right_predictions(small_run) -> None:
    run = RunFolder(small_run)
    frame = run.read("in_dist.calibration")
    right = frame[frame["correct"].to_numpy(dtype=bool)]
    made = make_bundle(run, alpha=0.1, trust_code=True)
    assert 0 < len(right) < len(frame)
    assert {name: len(detector.calibration) for name, detector in made.detectors.items()} == {
        "wrong": len(right),
        "ood": len(right),
    }


def unlabelled(run: RunFolder, monkeypatch: pytest.MonkeyPatch, rows: slice) -> RunFolder:
    """The run as if these rows of its calibration samples had no label."""
    read = run.read

    def without(split: str, columns: list[str] | None = None) -> pd.DataFrame:
        frame = read(split, columns)
        if split == "in_dist.calibration":
            frame.loc[frame.index[rows], "correct"] = pd.NA
        return frame

    monkeypatch.setattr(run, "read", without)
    return run


def test_samples_without_label_are_left_out_and_counted(small_run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calibration_samples(RunFolder(small_run)).distinct
    found = calibration_samples(unlabelled(RunFolder(small_run), monkeypatch, slice(0, 30)))
    first = RunFolder(small_run).read("in_dist.calibration")["sample_id"].iloc[:30]
    kept = whole.loc[~whole["sample_id"].isin(first), "sample_id"]
    assert found.distinct["sample_id"].tolist() == kept.tolist()
    assert found.notices == [
        "30 of 120 calibration samples were left out because they have no label: the bound of the rate holds for new "
        "samples like those that have one"
    ]


def test_without_any_label_there_is_an_error(small_run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvaluationError, match=r"none of the 120 samples of in_dist\.calibration has a label"):
        calibration_samples(unlabelled(RunFolder(small_run), monkeypatch, slice(None)))


@dataclass
class Run:
    """Stands in for a run folder: a table for each split."""

    tables: dict[str, pd.DataFrame]
    path: str = "run"

    def splits(self) -> list[SplitInfo]:
        return [SplitInfo(name, name) for name in self.tables]

    def read(self, split: str, columns: list[str] | None = None) -> pd.DataFrame:
        return self.tables[split] if columns is None else self.tables[split][columns]


FITTED = pd.DataFrame({"content_hash": ["f0", "f1"], "correct": pd.array([True, True])})


def named(frame: pd.DataFrame, copies: int = 1) -> pd.DataFrame:
    """The samples with contents of their own, each given so many times."""
    contents = [f"c{place}" for place in range(len(frame))]
    whole = frame.assign(content_hash=contents, correct=frame["correct"].astype("boolean"))
    return pd.concat([whole] * copies, ignore_index=True)


SPLITS = ["in_dist.calibration", "in_dist.test"]


@pytest.mark.parametrize("split", SPLITS)
def test_copies_of_calibration_samples_do_not_raise_the_rate(split: str) -> None:
    """Of 25 samples given four times the second largest score would be the threshold: 2 of 26 per detector."""
    generator = np.random.default_rng(7)
    world = World(1.0, (0.0, 0.0), -0.9)

    def share() -> float:
        run = Run({"in_dist.fit": FITTED, split: named(world.samples(25, generator), copies=4)})
        samples = calibration_samples(run)
        detectors = calibrated(MODELS, samples.distinct, with_copies=samples.with_copies, alpha=0.1)
        new = world.samples(NEW, generator)
        fires = [detector.model.decision(new) > detector.threshold.value for detector in detectors.values()]
        return float(np.logical_or(*fires).mean())

    shares = np.array([share() for _ in range(300)])
    assert shares.mean() <= 0.1 + 4 * shares.std() / np.sqrt(len(shares))


REPEATS = {"a tenth": (0.1, False), "a fifth, of one that fits": (0.2, True), "none": (0.0, True)}


@pytest.mark.slow
@pytest.mark.parametrize(("share", "fits"), REPEATS.values(), ids=REPEATS)
def test_contents_that_come_again_in_new_samples_do_not_raise_the_rate(share: float, fits: bool) -> None:
    """Blank images, rows of categories: one content is a share of all samples, and the one with the largest score."""
    generator = np.random.default_rng(3)

    def drawn(n: int) -> pd.DataFrame:
        again = generator.random(n) < share
        names = np.where(again, "same", np.char.add("c", generator.integers(0, 1 << 60, n).astype(str)))
        scores = np.where(again, 9.0, generator.standard_normal((2, n)))
        columns = {"wrong": scores[0], "ood": scores[1], "content_hash": names}
        return pd.DataFrame({**columns, "correct": pd.array([True] * n, dtype="boolean")})

    fitted = pd.concat([FITTED, pd.DataFrame({"content_hash": ["same"], "correct": [True]})]) if fits else FITTED

    def rejected() -> float:
        samples = calibration_samples(Run({"in_dist.fit": fitted, "in_dist.calibration": drawn(300)}))
        detectors = calibrated(MODELS, samples.distinct, with_copies=samples.with_copies, alpha=0.1)
        new = drawn(1000)
        fires = [detector.model.decision(new) > detector.threshold.value for detector in detectors.values()]
        return float(np.logical_or(*fires).mean())

    shares = np.array([rejected() for _ in range(60)])
    assert shares.mean() <= 0.1 + 4 * shares.std() / np.sqrt(len(shares))


def test_copies_of_calibration_samples_are_counted() -> None:
    table = named(World(1.0, (0.0, 0.0), 0.0).samples(5, np.random.default_rng(0)), copies=4)
    found = calibration_samples(Run({"in_dist.fit": FITTED, "in_dist.test": table}))
    assert found.distinct["content_hash"].tolist() == ["c0", "c1", "c2", "c3", "c4"]
    assert len(found.with_copies) == 20
    assert found.notices[-1] == (
        "15 of 20 calibration samples are copies of others, or of samples of in_dist.fit: thresholds hold "
        "whether or not new samples repeat as often"
    )


def repeating(random: np.random.Generator, count: int) -> list[str]:
    """Contents that come again by themselves: 200, some often and many seldom."""
    often = 1 / np.arange(1, 201)
    return [f"{place:03d}" for place in random.choice(200, count, p=often / often.sum())]


KNOWN = [f"{place:03d}" for place in range(100)]
USUAL = {
    "each once": (KNOWN, ["x"], KNOWN),
    "all put in three times": (KNOWN * 3, ["x"], KNOWN),
    "copies of the fit": (KNOWN, KNOWN[:20] + ["x"] * 80, KNOWN[20:]),
    "copies of the fit, one of them twice": ([*KNOWN, "000"], KNOWN[:20] + ["x"] * 80, KNOWN[20:]),
}


@pytest.mark.parametrize(("contents", "fitted", "wanted"), USUAL.values(), ids=USUAL)
def test_a_monitor_compares_with_each_content_once(contents, fitted, wanted: list[str]) -> None:
    contents = pd.Series(contents)
    assert sorted(contents.iloc[usual_rows(contents, pd.Series(fitted))]) == wanted


def test_a_monitor_compares_with_contents_as_often_as_they_come_again() -> None:
    random = np.random.default_rng(0)
    contents, fitted = (pd.Series(repeating(random, count)) for count in (1000, 1500))
    found = contents.iloc[usual_rows(contents, fitted)].value_counts()
    assert found.sum() == contents.nunique()
    often = contents.value_counts() * (contents.nunique() / 1000)
    assert (found.reindex(often.index, fill_value=0) - often).abs().max() < 1


def alarms_of_a_monitor(draw, *, seed: int, more: float = 0.0) -> int:
    """Of 1,500 unchanged values and, `more` than 0, 1,500 that are larger."""
    random = np.random.default_rng([8, seed])
    usual, new = draw(random)
    contents = pd.Series(usual).map("{:.9f}".format)
    stream = Stream.of(usual[usual_rows(contents, pd.Series(dtype=object))])
    _, log_won = stream.after(new + more, random=random)
    return int(log_won.max() >= np.log(1 / 0.05))


def of_rows_that_repeat(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(9).normal(size=200)
    return tuple(values[np.array(repeating(random, 1500), dtype=int)] for _ in range(2))


def of_samples_put_in_five_times(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(random.normal(size=200), 5), random.normal(size=1500)


READINGS = {"rows repeat": of_rows_that_repeat, "samples put in five times": of_samples_put_in_five_times}


@pytest.mark.slow
@pytest.mark.parametrize("draw", READINGS.values(), ids=READINGS)
def test_a_monitor_raises_no_alarm_whatever_copies_mean(draw) -> None:
    assert sum(alarms_of_a_monitor(draw, seed=seed) for seed in range(60)) <= 60 * 0.05
    assert sum(alarms_of_a_monitor(draw, seed=seed, more=0.7) for seed in range(20)) == 20


LEVELS = {  # of nine calibration samples: the share rejected where each detector flags the k largest
    "one detector": ([np.arange(9)], np.arange(1, 10) / 10),
    "the same samples": ([np.arange(9), np.arange(9) ** 2], np.arange(2, 11) / 10),
    "others": ([np.arange(9), -np.arange(9)], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0]),
    "ties are among the largest only together": ([[1, 1, 2, 2, 2, 2, 2, 2, 2]], [*[0.1] * 6, 0.7, 0.8, 0.9]),
}


@pytest.mark.parametrize(("scores", "wanted"), LEVELS.values(), ids=LEVELS)
def test_levels_by_hand(scores: list[np.ndarray], wanted: np.ndarray) -> None:
    arrays = [np.asarray(each, dtype=float) for each in scores]
    assert joint_levels(arrays, arrays).tolist() == list(wanted)


COARSE = {
    "apart": (np.arange(101.0), -np.arange(101.0), 4 / 102, 6 / 102),
    "apart, equal scores": (np.arange(101.0) // 4, -(np.arange(101.0) // 4), 2 / 102, 10 / 102),
    "agreeing": (np.arange(101.0), np.arange(101.0), 5 / 102, 6 / 102),
}
"""Scores of 101 calibration samples by two detectors, and the steps around 0.05, counted by hand."""


@pytest.mark.parametrize(("wrong", "ood", "now", "more"), COARSE.values(), ids=COARSE)
def test_the_next_bound_is_the_lowest_at_which_more_is_rejected(wrong, ood, now: float, more: float) -> None:
    frame = pd.DataFrame({"wrong": wrong, "ood": ood})
    detectors = calibrated(MODELS, frame, alpha=0.05)
    assert neighbouring_levels(detectors) == pytest.approx((now, more))

    def fired(alpha: float) -> int:
        return sum(int((each.calibration > each.at(alpha).threshold.value).sum()) for each in detectors.values())

    assert fired(more - 1e-9) == fired(0.05) < fired(more + 1e-9)


JOINT = {
    "apart": (np.arange(101.0), -np.arange(101.0), 4, 2),
    "agreeing": (np.arange(101.0), np.arange(101.0), 5, 4),
}
"""Scores of 101 calibration samples by two detectors, and how many of 102 both and one reject at most."""


@pytest.mark.parametrize(("wrong", "ood", "count", "of_one"), JOINT.values(), ids=JOINT)
def test_the_rate_of_both_together_has_an_interval(wrong, ood, count: int, of_one: int) -> None:
    found = joint_false_alarms(calibrated(MODELS, pd.DataFrame({"wrong": wrong, "ood": ood}), alpha=0.05))
    assert found.alpha == pytest.approx(count / 102)
    low, high = found.realised_rate()
    assert beta.cdf(low, of_one, 102 - of_one) == pytest.approx(0.05)
    assert beta.cdf(high, count, 102 - count) == pytest.approx(0.95)


def test_the_interval_of_both_together_holds_the_rate_of_detectors_that_agree() -> None:
    generator, held = np.random.default_rng(0), []
    for _ in range(300):
        scores = generator.uniform(size=39)
        detectors = calibrated(MODELS, pd.DataFrame({"wrong": scores, "ood": scores}), alpha=0.05)
        low, high = joint_false_alarms(detectors).realised_rate()
        held.append(low <= 1 - detectors["ood"].threshold.value <= high)
    assert np.mean(held) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [-0.9, 0.3, 0.999])
def test_of_like_samples_more_are_rarely_rejected_than_the_calibration_makes_probable(correlation: float) -> None:
    generator, world = np.random.default_rng(3), World(1.0, (0.0, 0.0), correlation)
    found = []
    for _ in range(DRAWS):
        detectors = calibrated(MODELS, world.samples(200, generator), alpha=0.1)
        new = world.samples(NEW, generator)
        fires = np.logical_or(*(each.model.decision(new) > each.threshold.value for each in detectors.values()))
        found.append(joint_false_alarms(detectors).chance_of(int(fires.sum()), NEW))
    for level in (0.01, 0.1):
        assert np.mean(np.array(found) < level) <= level + 3 * np.sqrt(level * (1 - level) / DRAWS)


@pytest.mark.slow
def test_detectors_that_agree_share_what_they_reject() -> None:
    """Half of alpha for each would reject little more than half of it."""
    world, generator = World(1.0, (0.0, 0.0), 0.999), np.random.default_rng(1)
    shares = np.array([rejected_share(world, 500, 0.1, generator) for _ in range(DRAWS)])
    assert shares.mean() == pytest.approx(0.098, abs=0.004)


def test_p_values_hold_with_and_without_copies() -> None:
    """Each is at least as large as with distinct samples alone, and as with all of them."""
    generator = np.random.default_rng(5)
    distinct, with_copies = np.sort(generator.standard_normal(40)), np.sort(generator.standard_normal(130) + 0.3)
    joined = holding_for_both(distinct, with_copies)
    scores = np.concatenate([distinct, with_copies, joined, generator.standard_normal(500)])
    assert len(joined) == len(distinct)
    assert (p_values(joined, scores) >= p_values(distinct, scores) - 1e-12).all()
    flagged = p_values(joined, scores)
    # On the grid of the coarser one: of all samples, those flagged at a level are flagged by the other too.
    for level in np.arange(1, 41) / 41:
        assert (p_values(with_copies, scores)[flagged <= level + 1e-12] <= level + 1e-12).all()
    np.testing.assert_array_equal(holding_for_both(distinct, distinct), distinct)


def test_of_copies_with_and_without_a_label_the_one_with_a_label_is_kept() -> None:
    table = pd.DataFrame({"content_hash": ["a", "a"], "correct": pd.array([None, True]), "sample_id": ["0", "1"]})
    found = calibration_samples(Run({"in_dist.fit": FITTED, "in_dist.calibration": table}))
    assert found.distinct["sample_id"].tolist() == ["1"]
    assert found.with_copies["sample_id"].tolist() == ["1"]


def test_calibration_samples_that_all_fit_are_named_as_such() -> None:
    run = Run({"in_dist.fit": FITTED, "in_dist.calibration": FITTED})
    wanted = r"run: all 2 samples of in_dist\.calibration are copies of samples of in_dist\.fit, .*; give others as"
    with pytest.raises(EvaluationError, match=wanted):
        calibration_samples(run)
