"""One score of several by how rare each is, against counts, numbers worked by hand, and what regressions miss."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table

from gradscore.config import MetaConfig
from gradscore.evaluation.metrics import auroc
from gradscore.meta import Penalty, TrainingSet, add_alarms, alarm_weights, choose_penalty, fit_logistic, fit_one_class
from gradscore.meta.alarms import DISTANCES, LeftOutSets, alarms_in, weights_of
from gradscore.meta.rarity import Rarity

TRUTH = np.arange(240) >= 120
SETS = np.where(TRUTH, np.array(["ood.a", "ood.b", "ood.c"])[np.arange(240) % 3], "in_dist.fit")
INPUTS = make_inputs(make_table(seed=0, positive=np.zeros(120)))
ROWS = make_rows(INPUTS, make_table(seed=1, positive=TRUTH), TRUTH, SETS)
PLAIN = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0))
EQUAL = dict.fromkeys(["own", *DISTANCES], 1.0)
WITH = add_alarms(PLAIN, ROWS, EQUAL)

IN_DIST = np.random.default_rng(0).normal(size=(2000, 2))


def fitted(weights=(1.0, 1.0)):
    return Rarity.fit(IN_DIST[:, 0], IN_DIST, np.array([1]), np.array(weights))


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 2.0])
def test_what_is_raised_is_minus_the_logarithm_of_the_share_that_reaches_it(value):
    share = (IN_DIST[:, 0] >= value).mean()
    raised = fitted().raised(np.array([value]), np.array([[0.0, -9.0]]))[0, 0]
    assert raised == pytest.approx(-np.log(share), abs=0.05)


def test_a_value_that_a_fifth_have_is_as_rare_as_a_fifth():
    own = np.minimum(np.arange(1000.0), 800.0)  # the largest value, 800, two hundred times
    tied = Rarity.fit(own, IN_DIST[:1000], np.array([1]), np.ones(2))
    at_top, below = tied.raised(np.array([800.0, 500.0]), np.zeros((2, 2)))[:, 0]
    assert at_top == pytest.approx(-np.log(0.2), abs=0.15)
    assert below == pytest.approx(-np.log(0.5), abs=0.05)


def test_beyond_all_samples_the_tail_is_exponential():
    """Its scale is by how much the highest tenth exceed the quantile at 0.9, in the mean."""
    limit = np.quantile(IN_DIST[:, 0], 0.9)
    scale = (IN_DIST[IN_DIST[:, 0] > limit, 0] - limit).mean()
    near, far = (fitted().raised(np.array([value]), np.zeros((1, 2)))[0, 0] for value in (10.0, 12.0))
    assert far - near == pytest.approx(2.0 / scale, rel=1e-9)
    last = np.quantile(IN_DIST[:, 0], 1 - 1 / 2001)
    assert near == pytest.approx(np.log(2001) + (10.0 - last) / scale, rel=1e-9)


def test_the_sum_is_that_of_weights_over_tail_probabilities():
    """By hand: shares of 1/10 and 1/100 with weights of 1 and 1/4 give log(10 + 25)."""
    own, other = (np.quantile(IN_DIST[:, place], 1 - share) for place, share in ((0, 0.1), (1, 0.01)))
    found = fitted((1.0, 0.25)).sum(np.array([own]), np.array([[0.0, other]]))
    assert found[0] == pytest.approx(np.log(35), abs=0.02)


def test_tail_probabilities_may_count_by_their_root():
    """By hand: roots of shares of 1/4 and 1/100 with weights of 1 and 1/2 give log(2 + 5); far out tails halve."""
    own, other = (np.quantile(IN_DIST[:, place], 1 - share) for place, share in ((0, 0.25), (1, 0.01)))
    rooted = Rarity.fit(IN_DIST[:, 0], IN_DIST, np.array([1]), np.array([1.0, 0.5]), power=0.5)
    assert rooted.sum(np.array([own]), np.array([[0.0, other]]))[0] == pytest.approx(np.log(7), abs=0.02)
    far, plain = (each.raised(np.array([9.0]), np.zeros((1, 2)))[0, 0] for each in (rooted, fitted()))
    assert far == pytest.approx(plain / 2)


def test_what_is_usual_is_taken_off_inputs():
    usual = np.full((len(IN_DIST), 1), 3.0)
    moved = Rarity.fit(IN_DIST[:, 0], IN_DIST + 3, np.array([1]), np.ones(2), usual=usual)
    many = np.random.default_rng(1).normal(size=(50, 2))
    np.testing.assert_allclose(moved.sum(many[:, 0], many + 1, np.ones((50, 1))), fitted().sum(many[:, 0], many))


def test_a_linear_function_of_the_inputs_raises_alarms_as_well():
    """By hand: shares of 1/10, 1/100 and, by the difference of the inputs, 1/20 give log(10 + 100 + 0.5 x 20)."""
    difference = IN_DIST @ np.array([1.0, -1.0])
    made = Rarity.fit(IN_DIST[:, 0], IN_DIST, np.array([1]), np.array([1.0, 1.0, 0.5]), linear=np.array([[1.0, -1.0]]))
    own, other = (np.quantile(IN_DIST[:, place], 1 - share) for place, share in ((0, 0.1), (1, 0.01)))
    sample = np.array([[np.quantile(difference, 0.95) + other, other]])
    assert made.sum(np.array([own]), sample)[0] == pytest.approx(np.log(120), abs=0.02)
    stored = Rarity.of_arrays(made.arrays())
    np.testing.assert_array_equal(stored.sum(np.array([own]), sample), made.sum(np.array([own]), sample))


def test_more_is_more_alarming_everywhere():
    values = np.linspace(-6, 30, 5001)
    raised = fitted().raised(values, np.zeros((len(values), 2)))[:, 0]
    assert (np.diff(raised) > 0).all()


def test_stored_arrays_give_the_same():
    stored = Rarity.of_arrays({"coefficients": np.zeros(1), **fitted().arrays()})
    many = IN_DIST[:50] * 4
    np.testing.assert_array_equal(stored.sum(many[:, 0], many), fitted().sum(many[:, 0], many))
    assert Rarity.of_arrays({"coefficients": np.zeros(1)}) is None


def test_weights_are_cubes_of_how_much_less_a_score_errs():
    assert weights_of({"own": 0.05, "knn": 0.1, "vim": 0.05}) == pytest.approx({"own": 1, "knn": 0.125, "vim": 1})


def test_scores_that_never_err_count_the_same():
    assert weights_of({"own": 0.0, "knn": 0.0}) == {"own": 1.0, "knn": 1.0}


def test_alarms_are_raised_by_distances_over_augmentations_where_there_are_some():
    frame = make_table(seed=0, positive=np.zeros(90), augmentation=True)
    found = alarms_in(make_inputs(frame, augmentation=True))
    names = make_inputs(frame, augmentation=True).names
    assert {names[place] for place in found.values()} == {f"baseline/{each}@augmentations" for each in DISTANCES}


def test_without_penultimate_features_nothing_raises_alarms():
    inputs = make_inputs(make_table(seed=0, positive=np.zeros(240), look=False))
    rows = make_rows(inputs, make_table(seed=1, positive=TRUTH, look=False), TRUTH, SETS)
    plain = fit_logistic(inputs, rows, Penalty(C=0.01, boost=3.0))
    assert add_alarms(plain, rows, EQUAL) is plain


def test_what_is_far_in_another_way_is_found():
    """Told that positives have small gradients, a regression calls a sample far from all classes in-distribution."""
    scaled = np.zeros((240, len(INPUTS.names)))
    generator = np.random.default_rng(2)
    scaled[:] = generator.normal(size=scaled.shape)
    scaled[TRUTH, INPUTS.names.index("u/head/l1")] -= 4.0
    rows = TrainingSet(scaled=scaled, target=TRUTH, sets=SETS)
    plain = fit_logistic(INPUTS, rows, Penalty(C=0.01, boost=3.0))
    new = generator.normal(size=(400, len(INPUTS.names)))
    strange = np.arange(400) >= 200
    new[strange, INPUTS.names.index("u/head/l1")] += 4.0
    new[strange, INPUTS.names.index("baseline/mahalanobis")] += 8.0
    combined = add_alarms(plain, rows, EQUAL)
    assert auroc(plain.of_scaled(new), strange) < 0.2
    assert auroc(combined.of_scaled(new), strange) > 0.99


def test_alarms_stay_where_they_find_no_set_that_was_fitted_on():
    """Of sets amid in-distribution samples a regression learns nothing; what is far from all of them is found."""
    generator = np.random.default_rng(2)
    truth, sets = np.tile(TRUTH, 10), np.tile(SETS, 10)
    scaled = generator.normal(size=(2400, len(INPUTS.names))) * np.where(truth, 0.3, 1.0)[:, None]
    rows = TrainingSet(scaled=scaled, target=truth, sets=sets)
    plain = fit_logistic(INPUTS, rows, Penalty(C=0.01, boost=3.0))
    combined = add_alarms(plain, rows, EQUAL)
    assert auroc(combined.of_scaled(scaled), truth) < 0.5
    new = generator.normal(size=(400, len(INPUTS.names)))
    strange = np.arange(400) >= 200
    new[strange] -= 50 * plain.arrays["coefficients"] / np.linalg.norm(plain.arrays["coefficients"])
    new[strange, INPUTS.names.index("baseline/mahalanobis")] += 80.0
    found = combined.of_scaled(new)
    assert auroc(found, strange) > 0.99
    likely = combined.probability(found, at_prevalence=False)
    assert likely[strange].mean() > 0.9
    assert likely[~strange].mean() == pytest.approx(0.5, abs=0.1)


def test_expected_kinds_are_found_beside_many_others():
    """One expected set is as far off as no other, in an input that says the contrary of the others."""
    generator = np.random.default_rng(5)
    place = INPUTS.names.index("u/head/l1")
    names = np.repeat(["in_dist.fit", *(f"ood.{number}" for number in range(10))], 100)
    scaled = generator.normal(size=(1100, len(INPUTS.names)))
    scaled[names != "in_dist.fit", place] += 3.0
    scaled[names == "ood.0", place] -= 6.0
    rows = TrainingSet(scaled=scaled, target=names != "in_dist.fit", sets=names)
    penalty = Penalty(C=0.01, boost=3.0)
    of_expected = fit_logistic(INPUTS, rows.of(["ood.0"]), penalty)
    without, beside = (
        add_alarms(fit_logistic(INPUTS, rows, penalty), rows, EQUAL, each) for each in (None, of_expected)
    )
    shown = np.isin(names, ["in_dist.fit", "ood.0"])
    before, after = (auroc(each.of_scaled(scaled[shown]), rows.target[shown]) for each in (without, beside))
    assert before < 0.7
    assert after > 0.9
    others = names != "ood.0"
    assert auroc(beside.of_scaled(scaled[others]), rows.target[others]) > 0.93
    assert beside.notes["expected"] == of_expected.notes["penalties"]


def test_an_expected_kind_of_which_nothing_was_learnt_raises_no_alarm():
    nothing = replace(PLAIN, arrays={**PLAIN.arrays, "coefficients": np.zeros(len(INPUTS.names))})
    np.testing.assert_array_equal(
        add_alarms(PLAIN, ROWS, EQUAL, nothing).of_scaled(ROWS.scaled), WITH.of_scaled(ROWS.scaled)
    )


def test_probabilities_are_those_of_log_odds_for_two_balanced_classes():
    """Of the samples it was fitted on, each class counting the same, half are positive in the mean."""
    means = [
        WITH.probability(WITH.of_scaled(ROWS.scaled[each]), at_prevalence=False).mean() for each in (TRUTH, ~TRUTH)
    ]
    assert np.mean(means) == pytest.approx(0.5, abs=0.02)
    assert WITH.kind == "logistic"


CONFIG = MetaConfig(cv_folds=3, Cs=[0.01], boosts=[3.0])


def left_out_of(scaled):
    """What a regression says of three sets, each left out of a fit."""
    rows = replace(ROWS, scaled=scaled)
    axes = np.eye(int(INPUTS.of_gradients.sum()))
    return choose_penalty(INPUTS, rows, CONFIG, axes=axes).left_out


def test_alarms_count_by_how_well_they_find_the_sets():
    """Distances that tell nothing of the sets err many times as often as a regression that finds nearly all."""
    scaled = ROWS.scaled.copy()
    scaled[:, list(alarms_in(INPUTS).values())] = np.random.default_rng(4).normal(size=(240, len(DISTANCES)))
    left_out = left_out_of(scaled)
    assert left_out.areas({}, {"own": 1.0}).mean() > 0.9
    found = alarm_weights(INPUTS, left_out)
    assert found["own"] == 1.0
    assert max(found[name] for name in DISTANCES) < 0.02
    assert alarm_weights(INPUTS, None) == EQUAL


def test_areas_of_left_out_sets_are_those_of_the_log_odds_without_alarms():
    left_out = left_out_of(ROWS.scaled)
    expected = []
    for (_, held_out), odds in zip(left_out.folds, left_out.odds, strict=True):
        in_dist = [place for place in held_out if not TRUTH[place]]
        for name in sorted({SETS[place] for place in held_out if TRUTH[place]}):
            found = [place for place in held_out if SETS[place] == name]
            expected.append(auroc(odds[[*in_dist, *found]], np.arange(len(in_dist) + len(found)) >= len(in_dist)))
    np.testing.assert_allclose(left_out.areas({}, {"own": 1.0}), expected, atol=1e-12)


@dataclass(frozen=True, kw_only=True)
class Known(LeftOutSets):
    """Left-out sets whose AUROC is given for each share of the alarms."""

    by_share: Mapping[float, list[float]]

    def areas(self, places, weights):
        return np.array(self.by_share.get(weights["fdbd"] if places else 0.0, [0.5, 0.5, 0.5]))


SHARES = {
    "as their errors say, where nothing is better": ({1.0: [0.9] * 3}, 1.0),
    "less, where every set gains the same": ({1.0: [0.9] * 3, 0.25: [0.91] * 3}, 0.25),
    # The best is .91, its differences from the first -.03, .03 and .03: in the mean .01, with a standard error of .02.
    "as their errors say, within a standard error": ({1.0: [0.9] * 3, 0.25: [0.87, 0.93, 0.93]}, 1.0),
    # An eighth is behind the best by .01, with a standard error of .01: as good.
    "the largest that is as good": (
        {1.0: [0.7] * 3, 0.125: [0.92, 0.92, 0.9], 0.03125: [0.92, 0.92, 0.93]},
        0.125,
    ),
}


@pytest.mark.parametrize(("by_share", "expected"), SHARES.values(), ids=SHARES)
def test_alarms_count_the_largest_share_that_is_as_good_as_the_best(by_share, expected):
    """By hand. Each distance errs as often as the score itself, so that a weight is the share."""
    made = left_out_of(ROWS.scaled)
    place = alarms_in(INPUTS)["fdbd"]
    scaled = made.rows.scaled.copy()
    for other in alarms_in(INPUTS).values():
        scaled[:, other] = scaled[:, place]
    rows = replace(made.rows, scaled=scaled)
    error = 1 - np.mean(
        [auroc(scaled[keep, place], TRUTH[keep]) for keep in (~TRUTH | (f"ood.{x}" == SETS) for x in "abc")]
    )
    known = Known(rows=rows, folds=made.folds, odds=made.odds, by_share=by_share | {0.0: [1 - error] * 3})
    assert alarm_weights(INPUTS, known) == pytest.approx({"own": 1.0, **dict.fromkeys(DISTANCES, expected)})


def test_of_one_class_it_is_no_log_odds():
    model = fit_one_class(INPUTS, ROWS.scaled[~TRUTH])
    assert auroc(model.of_scaled(ROWS.scaled), TRUTH) > 0.9
    assert np.isnan(model.probability(np.zeros(2), at_prevalence=False)).all()
