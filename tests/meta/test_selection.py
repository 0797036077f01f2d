"""How penalties are chosen: what is held out, and what is chosen by it."""

from dataclasses import replace

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table
from sklearn.metrics import log_loss, roc_auc_score

from gradscore.config import MetaConfig
from gradscore.meta import (
    Penalty,
    TrainingSet,
    choose_penalty,
    fit_logistic,
    mean_area,
    penalties,
    set_areas,
    training_set,
)

CONFIG = MetaConfig(cv_folds=3, Cs=[0.0001, 0.01, 1.0], boosts=[1.0, 10.0])
TRUTH = np.arange(240) >= 120
OOD_SETS = ("ood.a", "ood.b", "ood.c")
SETS = np.where(TRUTH, np.array(OOD_SETS)[np.arange(240) % 3], "in_dist.fit")
INPUTS = make_inputs(make_table(seed=0, positive=np.zeros(120)))
OF_GRADIENT = np.array([group == "gradients" for group in INPUTS.groups])
AXES = np.eye(OF_GRADIENT.sum())


def rows_of(*, seed=1, sets=SETS, **options):
    return make_rows(INPUTS, make_table(seed=seed, positive=TRUTH, **options), TRUTH, sets)


def folds_of(rows, config=CONFIG):
    """What judges, and the names of positive sets that fit and that are held out, of each fold."""
    judged_by, folds = training_set.held_out_folds(rows, config)
    return judged_by, [
        (set(rows.sets[fit][rows.target[fit]]), set(rows.sets[out][rows.target[out]])) for fit, out in folds
    ]


def test_folds_leave_whole_sets_out():
    judged_by, folds = folds_of(rows_of())
    assert judged_by == "sets"
    assert [fit & out for fit, out in folds] == [set()] * 3
    assert set().union(*(out for _, out in folds)) == set(OOD_SETS)


def test_every_in_dist_sample_is_held_out_once():
    _, folds = training_set.held_out_folds(rows_of(), CONFIG)
    held_out = np.sort(np.concatenate([out for _, out in folds]))
    np.testing.assert_array_equal(held_out, np.arange(240))


def test_samples_are_held_out_where_sets_are_of_kinds_that_are_expected():
    judged_by, folds = training_set.held_out_folds(rows_of(), CONFIG, new_sets=False)
    assert judged_by == "samples"
    for fit, out in folds:
        assert set(rows_of().sets[fit]) == set(rows_of().sets[out]) == {"in_dist.fit", *OOD_SETS}
    axes = AXES[:, :0].T
    choices = [choose_penalty(INPUTS, rows_of(), CONFIG, axes=axes, new_sets=each) for each in (True, False)]
    assert [each.judged_by for each in choices] == ["sets", "samples"]


FEWER = {
    "two OOD sets": np.where(SETS == "ood.c", "ood.a", SETS),
    "wrong predictions": np.full(240, "in_dist.fit"),
}


@pytest.mark.parametrize("sets", FEWER.values(), ids=FEWER)
def test_otherwise_samples_are_held_out(sets):
    judged_by, folds = training_set.held_out_folds(rows_of(sets=sets), CONFIG)
    assert judged_by == "samples"
    shares = [rows_of(sets=sets).target[out].mean() for _, out in folds]
    np.testing.assert_allclose(shares, 0.5, atol=0.02)


JUDGED_BY = {"sets": SETS, "samples": np.full(240, "in_dist.fit")}


@pytest.mark.parametrize(("judged_by", "sets"), JUDGED_BY.items(), ids=JUDGED_BY)
def test_copies_are_held_out_together(judged_by, sets):
    """Of every four samples of a kind, the second is a copy of the first, wherever they are in the table."""
    places = np.random.default_rng(0).permutation(240)
    content = np.where(places % 4 == 1, places - 1, places)
    truth, sets = TRUTH[places], sets[places]
    rows = replace(make_rows(INPUTS, make_table(seed=1, positive=truth), truth, sets), content=content)
    found, folds = training_set.held_out_folds(rows, CONFIG)
    assert found == judged_by
    # Whole OOD sets are held out: copies in two of them stay in theirs.
    kept = ~truth if judged_by == "sets" else np.full(240, fill_value=True)
    both = [np.intersect1d(content[fit[kept[fit]]], content[out[kept[out]]]) for fit, out in folds]
    assert [each.tolist() for each in both] == [[]] * 3
    held_out = np.concatenate([out for _, out in folds])
    assert sorted(held_out) == list(range(240))


def test_copies_of_one_sample_cannot_be_held_out():
    rows = replace(rows_of(sets=np.full(240, "in_dist.fit")), content=np.where(TRUTH, 0, np.arange(240) + 1))
    assert training_set.held_out_folds(rows, CONFIG) is None


def misleading():
    """Each OOD set is marked by an input of its own in which another set goes the other way.

    Random folds see every set, so that the weakest penalty fits all marks; for a set that is left out, the marks of the
    others point the wrong way, and only what they have in common, held by a strong penalty on little, is of use.
    """
    generator = np.random.default_rng(6)
    scaled = generator.normal(size=(240, len(INPUTS.names)))
    scaled[:, ~OF_GRADIENT] = 0.0
    places = np.flatnonzero(OF_GRADIENT)
    scaled[TRUTH, places[0]] += 1.0
    for number, name in enumerate(OOD_SETS):
        scaled[name == SETS, places[1 + number]] += 4.0
        scaled[name == SETS, places[1 + (number + 1) % 3]] -= 4.0
    return TrainingSet(scaled=scaled, target=TRUTH, sets=SETS)


def test_sets_that_are_left_out_judge_otherwise_than_samples():
    rows = misleading()
    by_sets = choose_penalty(INPUTS, rows, CONFIG, axes=AXES)
    one_set = replace(rows, sets=np.where(TRUTH, "ood.a", rows.sets))
    by_samples = choose_penalty(INPUTS, one_set, CONFIG, axes=AXES)
    assert (by_sets.judged_by, by_samples.judged_by) == ("sets", "samples")
    assert by_sets.penalties[0].C < by_samples.penalties[0].C


def test_scores_alone_are_chosen_when_gradients_are_noise():
    """Scores that tell the classes apart somewhat, and gradients that say nothing but could be fitted."""
    rows = rows_of(in_gradients=0.0, in_features=0.2)
    loud = np.random.default_rng(2).normal(size=(240, OF_GRADIENT.sum())) * 3
    scaled = rows.scaled.copy()
    scaled[:, OF_GRADIENT] = loud
    weak = CONFIG.model_copy(update={"Cs": [1.0], "boosts": [0.1]})
    found = choose_penalty(INPUTS, replace(rows, scaled=scaled), weak, axes=AXES)
    assert not found.penalties[0].gradients


def test_gradients_are_kept_when_they_alone_tell():
    found = choose_penalty(INPUTS, rows_of(in_features=0.0), CONFIG, axes=AXES)
    assert found.penalties[0].gradients


MSP = INPUTS.names.index("baseline/msp")


def starting(*, others, truth=TRUTH, seed=4):
    """Wrong predictions that the largest probability tells somewhat, and all other inputs by so many deviations."""
    scaled = np.random.default_rng(seed).normal(size=(len(truth), len(INPUTS.names))) + others * truth[:, None]
    scaled *= 3
    scaled[:, MSP] = np.random.default_rng(seed + 1).normal(size=len(truth)) + 1.5 * truth
    return TrainingSet(scaled=scaled, target=truth, sets=np.full(len(truth), "in_dist.fit"))


def test_a_start_that_nothing_corrects_stays_alone():
    rows = starting(others=0.0)
    weak = CONFIG.model_copy(update={"Cs": [1.0], "boosts": [10.0]})
    found = choose_penalty(INPUTS, rows, weak, axes=AXES, from_start=True)
    assert found.penalties == (Penalty(C=1.0, boost=0.0, gradients=False, start="baseline/msp"),)
    coefficients = fit_logistic(INPUTS, rows, *found.penalties, axes=AXES).arrays["coefficients"]
    assert np.flatnonzero(coefficients).tolist() == [MSP]


def test_a_start_is_corrected_by_what_tells_more():
    found = choose_penalty(INPUTS, starting(others=0.5), CONFIG, axes=AXES, from_start=True)
    assert all(penalty.start == "baseline/msp" and penalty.boost for penalty in found.penalties)


def test_probabilities_of_new_samples_are_no_surer_than_they_may_be():
    """A fit that hardly holds back is surer of the samples that it saw than it may be of others."""
    rows = starting(others=0.15)
    found = choose_penalty(
        INPUTS, rows, CONFIG.model_copy(update={"Cs": [100.0], "boosts": [30.0]}), axes=AXES, from_start=True
    )
    model = fit_logistic(INPUTS, rows, *found.penalties, axes=AXES)
    held_back = fit_logistic(INPUTS, rows, *found.penalties, axes=AXES, slope=found.slope)
    assert found.slope < 0.95
    truth = np.arange(20_000) >= 10_000
    new = starting(others=0.15, truth=truth, seed=6).scaled
    np.testing.assert_array_equal(held_back.of_scaled(new), model.of_scaled(new))
    sure, held = (each.probability(model.of_scaled(new), at_prevalence=True) for each in (model, held_back))
    assert log_loss(truth, held) < log_loss(truth, sure)
    for least in (0.5, 0.8, 0.9, 0.95):
        gaps = [each[each > least].mean() - truth[each > least].mean() for each in (held, sure)]
        assert 0 < gaps[0] < gaps[1]


def delong_error(one, other):
    """DeLong's standard error of the difference of two AUROCs, from all pairs."""
    pairs = [np.sign(odds[TRUTH][:, None] - odds[~TRUTH][None]) / 2 + 0.5 for odds in (one, other)]
    gaps = pairs[0] - pairs[1]
    return np.sqrt(sum(gaps.mean(axis=axis).var(ddof=1) / gaps.shape[1 - axis] for axis in (0, 1)))


@pytest.mark.parametrize("share", [0.98, 1.02], ids=["within one standard error", "beyond it"])
def test_what_ranks_best_corrects_a_start_and_so_does_what_is_stronger_and_as_good(monkeypatch, share):
    """Held-out samples of three folds, and log-odds that are known: the best log loss is not the best order."""
    rows = starting(others=0.0)
    judge = penalties._Judge(*[np.zeros((240, 0))] * 3, rows, training_set.held_out_folds(rows, CONFIG))
    noise = np.random.default_rng(6).normal(size=(4, 240))
    order = noise + np.array([[0.5], [1.7], [2.0], [1.9]]) * TRUTH
    alone, stronger, best, weaker = (Penalty(C=0.01, boost=boost) for boost in (0.0, 3.0, 10.0, 30.0))
    judge.tried.update({alone: -0.1, stronger: -0.2, best: -0.9, weaker: -0.2})
    judge._odds.update({each: [odds] * 3 for each, odds in zip((alone, stronger, best, weaker), order, strict=True)})
    areas = [roc_auc_score(TRUTH, odds) for odds in order]
    assert areas[2] == max(areas)
    monkeypatch.setattr(penalties, "ERRORS", (areas[2] - areas[1]) / delong_error(order[2], order[1]) / share)
    assert judge.best_rankings(alone) == ((stronger, best) if share < 1 else (best,))


@pytest.mark.parametrize(("few", "corrected"), [(9, False), (10, True)])
def test_a_few_wrong_predictions_correct_no_start(few, corrected):
    rows = starting(others=3.0)
    kept = np.flatnonzero(~TRUTH).tolist() + np.flatnonzero(TRUTH)[:few].tolist()
    rows = replace(rows, scaled=rows.scaled[kept], target=TRUTH[kept], sets=rows.sets[kept])
    found = choose_penalty(INPUTS, rows, CONFIG, axes=AXES, from_start=True).penalties
    assert any(penalty.boost for penalty in found) is corrected


def test_with_nothing_to_hold_out_a_start_stays_alone():
    rows = replace(starting(others=0.5), target=np.arange(240) == 0)
    assert [each.boost for each in choose_penalty(INPUTS, rows, CONFIG, axes=AXES, from_start=True).penalties] == [0.0]


def test_scores_that_do_not_count_change_nothing():
    rows = rows_of()
    scaled = rows.scaled.copy()
    scaled[:, INPUTS.names.index("baseline/knn")] = 0.0
    names, none = ["baseline/msp", "baseline/energy"], np.zeros((0, OF_GRADIENT.sum()))
    one, other = (
        choose_penalty(INPUTS, each, CONFIG, axes=none, names=names) for each in (rows, replace(rows, scaled=scaled))
    )
    assert one == other
    assert not one.penalties[0].gradients


def test_with_nothing_to_hold_out_the_middle_is_taken():
    rows = rows_of()
    target = np.arange(240) == 0
    found = choose_penalty(INPUTS, replace(rows, target=target), CONFIG, axes=AXES)
    assert found.penalties == (Penalty(C=0.01, boost=1.0),)
    assert (found.score, found.judged_by, found.tried) == (None, None, {})


def test_mean_area_counts_pairs_set_by_set():
    """Ordinary 0 and 2; set a at 1 and 3 (3 of 4 pairs in order), set b at 2 (one pair, and half of a tie)."""
    area = mean_area(
        np.array([0.0, 2.0, 1.0, 3.0, 2.0]),
        np.array([False, False, True, True, True]),
        np.array(["in", "in", "a", "a", "b"]),
    )
    assert area == pytest.approx((0.75 + 0.75) / 2)


def test_scores_alone_are_tried_up_to_their_own_best():
    """The series of scores alone begins below what gradients reached, and rises above it at a boost of 30."""
    tried = {
        **{Penalty(C=0.01, boost=boost): value for boost, value in {3.0: -0.32, 10.0: -0.31, 30.0: -0.308}.items()},
        **{
            Penalty(C=0.01, boost=boost, gradients=False): value
            for boost, value in {3.0: -0.333, 10.0: -0.313, 30.0: -0.306, 100.0: -0.309}.items()
        },
    }
    judge = penalties._Judge(*[np.zeros((4, 0))] * 3, rows_of(), ("samples", []))
    judge._folds = [None]  # there is something to hold out; what it would give is known already
    judge.tried.update(tried)
    alone = [penalty for penalty in tried if not penalty.gradients]
    assert judge.search(alone, Penalty(C=0.01, boost=30.0)) == Penalty(C=0.01, boost=30.0, gradients=False)


def test_areas_of_sets_are_those_of_scikit_learn_ties_included():
    scores = np.round(np.random.default_rng(7).normal(size=240) + TRUTH, 1)  # many ties
    found = set_areas(scores, TRUTH, SETS)
    expected = {}
    for name in OOD_SETS:
        rows = ~TRUTH | (name == SETS)
        expected[name] = roc_auc_score(TRUTH[rows], scores[rows])
    assert found == pytest.approx(expected, abs=1e-12)
    assert mean_area(scores, TRUTH, SETS) == pytest.approx(np.mean(list(expected.values())), abs=1e-12)
