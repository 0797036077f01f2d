import numpy as np
import pytest

from gradscore.evaluation.bootstrap import RANKING, SELECTIVE, Counts, calibration_bounds, draw_counts, ranking_bounds
from gradscore.evaluation.calibration import brier, expected_calibration_error
from gradscore.evaluation.metrics import METRICS
from gradscore.evaluation.selective import augrc, aurc, eaurc

ONE_BY_ONE = {**METRICS, "aurc": aurc, "eaurc": eaurc, "augrc": augrc}
COUNTED = {**RANKING, **SELECTIVE}


def sample(*, levels, seed=0, n=300):
    generator = np.random.default_rng(seed)
    truth = generator.random(n) < 0.25
    return np.round(generator.normal(size=n) + truth, levels), truth


def values_of_resamples(figure, scores, truth, counts):
    """The figure of each resample written out, sample by sample."""
    repeats = counts.astype(int)
    return [figure(np.repeat(scores, each), np.repeat(truth, each)) for each in repeats]


@pytest.mark.parametrize("levels", [9, 1, 0], ids=["no ties", "some ties", "many ties"])
@pytest.mark.parametrize("name", COUNTED)
def test_bounds_equal_those_of_resamples_written_out(name, levels):
    scores, truth = sample(levels=levels)
    counts = draw_counts(truth, seed=1, resamples=60)
    values = values_of_resamples(ONE_BY_ONE[name], scores, truth, counts)
    bounds = ranking_bounds(scores, truth, counts, metrics={name: COUNTED[name]})
    assert bounds[name] == pytest.approx(np.quantile(values, [0.025, 0.975]), rel=1e-10)


@pytest.mark.parametrize(("name", "figure"), {"brier": brier, "ece": expected_calibration_error}.items())
def test_bounds_of_calibration_equal_those_of_resamples_written_out(name, figure):
    generator = np.random.default_rng(2)
    p = generator.random(200)
    truth = generator.random(200) < p
    counts = draw_counts(truth, seed=3, resamples=60)
    values = values_of_resamples(figure, p, truth, counts)
    assert calibration_bounds(p, truth, counts)[name] == pytest.approx(np.quantile(values, [0.025, 0.975]), rel=1e-10)


def test_every_resample_has_as_many_positives_and_negatives():
    _, truth = sample(levels=9)
    counts = draw_counts(truth, seed=0, resamples=20)
    assert set(counts[:, truth].sum(axis=1)) == {truth.sum()}
    assert set(counts[:, ~truth].sum(axis=1)) == {(~truth).sum()}


def test_the_seed_decides_the_draws():
    _, truth = sample(levels=9)
    assert (draw_counts(truth, seed=0) == draw_counts(truth, seed=0)).all()
    assert (draw_counts(truth, seed=0) != draw_counts(truth, seed=1)).any()


def test_intervals_cover_about_as_often_as_they_say():
    # The average precision of 100,000 samples stands for the truth.
    truth_value = METRICS["aupr_out"](*sample(levels=9, seed=99, n=100_000))
    cases = [sample(levels=9, seed=seed) for seed in range(150)]
    metric = {"aupr_out": RANKING["aupr_out"]}
    bounds = [
        ranking_bounds(*case, draw_counts(case[1], seed=0, resamples=200), metrics=metric)["aupr_out"] for case in cases
    ]
    assert np.mean([low <= truth_value <= high for low, high in bounds]) > 0.85


def test_counts_add_up():
    counts = Counts(np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 3.0, 1.0]]))
    assert counts.positives_to.tolist() == [[1, 1, 3]]
    assert counts.positives_from.tolist() == [[3, 2, 2]]
    assert counts.to.tolist() == [[1, 4, 7]]
