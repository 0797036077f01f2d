"""Samples that fit and lie nearer to one another than samples drawn one by one would."""

import numpy as np
import pytest
from written_runs import rows_of, written_run

from gradscore.data import CALIBRATION, FIT, TEST
from gradscore.evaluation.near_duplicates import near_copies_in_fit


def run_of(tmp_path, splits):
    """A run whose splits have these logits."""

    def rows(split):
        logits = splits[split]
        predictions = logits.argmax(axis=1)
        return rows_of(split, ["logit_0", "logit_1", "logit_2"], logits, labels=predictions, predictions=predictions)

    return written_run(tmp_path / "run", rows, classes=3, in_dist=[name.removeprefix("in_dist.") for name in splits])


def drawn(generator, count):
    return generator.normal(size=(count, 3))


@pytest.mark.parametrize("seed", range(10))
def test_samples_drawn_one_by_one_are_no_near_copies(tmp_path, seed):
    generator = np.random.default_rng(seed)
    splits = {FIT: drawn(generator, 60), CALIBRATION: drawn(generator, 200), TEST: drawn(generator, 50)}
    assert near_copies_in_fit(run_of(tmp_path, splits)) == []


@pytest.mark.parametrize("copies", [2, 4])
@pytest.mark.parametrize("other", [CALIBRATION, TEST])
def test_near_copies_are_told(tmp_path, other, copies):
    generator = np.random.default_rng(0)
    fit = np.repeat(drawn(generator, 100), copies, axis=0) + generator.normal(scale=0.01, size=(100 * copies, 3))
    others = drawn(generator, 100)
    others[0, 0] = np.nan
    (notice,) = near_copies_in_fit(run_of(tmp_path, {FIT: fit, TEST: drawn(generator, 99), other: others}))
    assert notice.level == "caution"
    share, usual = (100 * each for each in (1.0, (100 * copies - 1) / (100 * copies + 98)))
    assert f"{share:.0f} % of in_dist.fit are nearer, by their logits, to another of its samples" in str(notice)
    assert f"to any of {other}, where {usual:.0f} % would be" in str(notice)


def test_equal_logits_of_different_contents_are_near(tmp_path):
    generator = np.random.default_rng(0)
    fit = np.repeat(drawn(generator, 99), 3, axis=0)
    assert len(near_copies_in_fit(run_of(tmp_path, {FIT: fit, TEST: drawn(generator, 99)}))) == 1


def test_too_few_samples_tell_nothing(tmp_path):
    logits = np.repeat(drawn(np.random.default_rng(0), 12), 4, axis=0)
    assert near_copies_in_fit(run_of(tmp_path, {FIT: logits, TEST: logits[:9] + 5})) == []
