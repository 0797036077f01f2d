"""Neighbours in a bank against brute force in NumPy, float64."""

import numpy as np
import pytest
from score_names import score_names

from gradscore.baselines import BASELINES, Bank, InDistribution, NetworkOutputs, neighbours
from gradscore.baselines.formulas import unit_length
from gradscore.baselines.neighbours import FARTHEST, NEAREST, NEAREST_OF_CLASS
from gradscore.errors import EvaluationError

GENERATOR = np.random.default_rng(0)
M, D, K = 160, 5, 3
FEATURES = GENERATOR.normal(size=(M, D))
CLASSES = np.arange(M) % K
CONTENT = np.array([f"{place:04x}" for place in range(M)])
BANK = Bank.of(FEATURES, CLASSES, CONTENT)
NEW = GENERATOR.normal(size=(17, D))
PREDICTIONS = np.arange(17) % K
NOT_THERE = np.full(17, "not there")


def unit(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def brute(new, features):
    """Distances (N, M) between features of unit length, ascending."""
    return np.sort(np.linalg.norm(unit(new)[:, None] - unit(features)[None], axis=2), axis=1)


def test_equal_brute_force():
    found = BANK.neighbours(NEW, PREDICTIONS, NOT_THERE)
    np.testing.assert_allclose(found.distances, brute(NEW, FEATURES)[:, :NEAREST], rtol=1e-5, atol=1e-6)
    of_class = [brute(NEW[[row]], FEATURES[PREDICTIONS[row] == CLASSES])[0, :NEAREST_OF_CLASS] for row in range(17)]
    np.testing.assert_allclose(found.of_class, of_class, rtol=1e-5, atol=1e-6)


def test_of_a_large_bank_the_very_samples_are_found():
    """Many more than neighbours, whose nearest are looked for among the groups that hold them: as by a sort of all."""
    features, classes = GENERATOR.normal(size=(3001, D)), np.arange(3001) % K
    found = Bank.of(features, classes, None).neighbours(NEW, PREDICTIONS, None)
    squared = np.square(unit(NEW)[:, None] - unit(features)).sum(axis=2)
    np.testing.assert_array_equal(found.places, np.argsort(squared, axis=1)[:, :NEAREST])
    of_class = [np.sort(squared[row, classes == PREDICTIONS[row]])[:NEAREST_OF_CLASS] for row in range(17)]
    np.testing.assert_allclose(np.square(found.of_class), of_class, rtol=1e-3, atol=1e-6)


def test_no_sample_is_its_own_neighbour():
    """Those of the bank itself: its distances are those to the 159 others."""
    found = BANK.neighbours(FEATURES, CLASSES, CONTENT)
    np.testing.assert_allclose(found.distances, brute(FEATURES, FEATURES)[:, 1 : NEAREST + 1], rtol=1e-4, atol=1e-5)
    assert (found.places != np.arange(M)[:, None]).all()


def test_all_copies_of_a_content_are_left_out():
    """Three samples of the bank have the content of the first query, one of them with other features."""
    content = CONTENT.copy()
    content[[3, 7, 11]] = "copy"
    bank = Bank.of(FEATURES, CLASSES, content)
    asked = np.r_[["copy"], NOT_THERE[1:]]
    found = bank.neighbours(np.vstack([FEATURES[3], NEW[1:]]), PREDICTIONS, asked)
    without = np.delete(FEATURES, [3, 7, 11], axis=0)
    np.testing.assert_allclose(found.distances[0], brute(FEATURES[[3]], without)[0, :NEAREST], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.distances[1:], brute(NEW[1:], FEATURES)[:, :NEAREST], rtol=1e-5, atol=1e-6)


def test_without_content_a_sample_of_the_bank_is_its_own_neighbour():
    unknown = Bank.of(FEATURES, CLASSES, None).neighbours(FEATURES, CLASSES, CONTENT)
    np.testing.assert_allclose(unknown.distances[:, 0], 0.0, atol=1e-6)


def test_samples_of_other_content_at_the_same_place_are_neighbours():
    bank = Bank.of(FEATURES[[0, 0, 1]], CLASSES[:3], CONTENT[:3])
    found = bank.neighbours(FEATURES[[0]], CLASSES[[0]], CONTENT[[0]])
    np.testing.assert_allclose(found.distances[0, 0], 0.0, atol=1e-6)
    assert found.places[0, 0] == 1


def test_of_fewer_samples_than_neighbours_all_are_found():
    found = Bank.of(FEATURES[:7], CLASSES[:7], CONTENT[:7]).neighbours(NEW, PREDICTIONS, NOT_THERE)
    np.testing.assert_allclose(found.distances, brute(NEW, FEATURES[:7]), rtol=1e-5, atol=1e-6)


def test_the_farthest_stands_where_a_class_has_fewer_samples_than_neighbours():
    found = Bank.of(FEATURES[:7], CLASSES[:7], CONTENT[:7]).neighbours(NEW[[0]], np.array([1]), None)
    wanted = brute(NEW[[0]], FEATURES[[1, 4]])[0]
    np.testing.assert_allclose(found.of_class[0], [wanted[0], *[wanted[1]] * (NEAREST_OF_CLASS - 1)], rtol=1e-5)


def test_a_class_that_is_not_in_the_bank_is_as_far_as_can_be():
    found = BANK.neighbours(NEW[:2], np.array([0, K]), None)
    assert (found.of_class[0] < FARTHEST).all()
    assert (found.of_class[1] == FARTHEST).all()


def test_the_only_sample_of_a_class_has_no_neighbour_of_its_class():
    found = Bank.of(FEATURES[:3], CLASSES[:3], CONTENT[:3]).neighbours(FEATURES[:1], CLASSES[:1], CONTENT[:1])
    assert (found.of_class == FARTHEST).all()


def test_a_bank_of_nothing_but_copies_has_no_neighbour():
    content = np.full(3, "copy")
    found = Bank.of(FEATURES[:3], CLASSES[:3], content).neighbours(NEW[:1], PREDICTIONS[:1], content[:1])
    assert (found.distances == FARTHEST).all()


BANKS = {"large": slice(None), "few": slice(12), "as many as neighbours": slice(NEAREST)}


@pytest.mark.parametrize("part", BANKS.values(), ids=BANKS)
def test_a_sample_has_the_same_neighbours_in_any_company(part):
    """Beside samples of the bank, of which copies are left out, as alone: to the bit."""
    bank = Bank.of(FEATURES[part], CLASSES[part], CONTENT[part])
    asked = np.vstack([NEW, FEATURES[:5]])
    classes, content = np.r_[PREDICTIONS, CLASSES[:5]], np.r_[NOT_THERE, CONTENT[:5]]
    together = bank.neighbours(asked, classes, content)
    alone = [bank.neighbours(asked[[row]], classes[[row]], content[[row]]) for row in range(len(asked))]
    np.testing.assert_array_equal(together.distances, np.concatenate([each.distances for each in alone]))
    np.testing.assert_array_equal(together.of_class, np.concatenate([each.of_class for each in alone]))


def test_blocks_move_no_bit(monkeypatch):
    bank = Bank.of(FEATURES, CLASSES, CONTENT, LOGITS)
    asked = np.vstack([NEW, FEATURES[:5]]), np.r_[PREDICTIONS, CLASSES[:5]], np.r_[NOT_THERE, CONTENT[:5]]
    whole = bank.neighbours(*asked)
    monkeypatch.setattr(neighbours, "_TOGETHER", 3)
    np.testing.assert_equal(vars(bank.neighbours(*asked)), vars(whole))


@pytest.mark.parametrize("offset", [10.0, 1000.0])
def test_neighbours_among_features_far_from_the_origin(offset):
    """Of unit length they are closer than products in float32 tell apart; ground truth: all distances in float64."""
    generator = np.random.default_rng(5)
    bank, asked = (generator.normal(size=(count, D)) + offset for count in (3000, 100))
    known, new = (unit_length(each).astype(np.float64) for each in (bank, asked))
    wanted = np.sort(np.linalg.norm(new[:, None] - known, axis=2), axis=1)[:, :NEAREST]
    classes = np.zeros(3000, dtype=np.int64)
    found = Bank.of(bank, classes, None).neighbours(asked, classes[:100], None)
    np.testing.assert_allclose(found.distances, wanted, rtol=1e-9)
    np.testing.assert_allclose(found.of_class[:, 0], wanted[:, 0], rtol=1e-9)


def test_features_of_zeros_are_one_from_all():
    np.testing.assert_allclose(BANK.neighbours(np.zeros((1, D)), np.array([0]), None).distances, 1.0, rtol=1e-6)


def test_a_bank_of_one_sample_is_refused():
    with pytest.raises(EvaluationError, match="at least 2 in-distribution samples"):
        Bank.of(FEATURES[:1], CLASSES[:1], None)


LOGITS = GENERATOR.normal(4.0, 3.0, (M, K))
GUIDED = Bank.of(FEATURES, CLASSES, CONTENT, LOGITS)


def products(new, features, logits):
    """Cosine times log sum exp of the logits (N, M), descending."""
    return -np.sort(-unit(new) @ (unit(features) * np.log(np.exp(logits).sum(1, keepdims=True))).T, axis=1)


def test_guidance_is_the_mean_of_the_ten_largest_products():
    """As in the authors' code: `knn_score` of ood_detectors/assets.py, with features of unit length."""
    found = GUIDED.neighbours(NEW, PREDICTIONS, NOT_THERE)
    np.testing.assert_allclose(found.guidance, products(NEW, FEATURES, LOGITS)[:, :10].mean(1), rtol=1e-6)


def test_energies_above_zero_turn_the_guidance():
    """Of logits far below zero: the farthest have the largest product."""
    found = Bank.of(FEATURES, CLASSES, None, LOGITS - 20).neighbours(NEW, PREDICTIONS, None)
    np.testing.assert_allclose(found.guidance, products(NEW, FEATURES, LOGITS - 20)[:, :10].mean(1), rtol=1e-6)


def test_no_sample_guides_itself():
    found = GUIDED.neighbours(FEATURES[[3]], CLASSES[[3]], CONTENT[[3]])
    wanted = products(FEATURES[[3]], np.delete(FEATURES, 3, axis=0), np.delete(LOGITS, 3, axis=0))
    np.testing.assert_allclose(found.guidance, wanted[:, :10].mean(1), rtol=1e-6)


def test_a_bank_of_nothing_but_copies_does_not_guide():
    content = np.full(3, "copy")
    bank = Bank.of(FEATURES[:3], CLASSES[:3], content, LOGITS[:3])
    assert bank.neighbours(NEW[:1], PREDICTIONS[:1], content[:1]).guidance == [0.0]


def test_nnguide_is_minus_guidance_times_log_sum_exp():
    found, logits = GUIDED.neighbours(NEW, PREDICTIONS, None), GENERATOR.normal(3.0, 2.0, (17, K))
    samples = NetworkOutputs(logits=logits, penultimate=NEW, neighbours=found)
    wanted = -products(NEW, FEATURES, LOGITS)[:, :10].mean(1) * np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(BASELINES["nnguide"].of(samples, {}), wanted, rtol=1e-6)


PLACES = {
    "knn": lambda found: found.distances[:, 49],
    "knn_10": lambda found: found.distances[:, 9],
    "knn_1": lambda found: found.distances[:, 0],
    "class_knn": lambda found: found.of_class[:, 9],
    "class_knn_1": lambda found: found.of_class[:, 0],
}


def test_all_are_compared():
    assert [*PLACES, "nnguide"] == score_names("neighbours")


@pytest.mark.parametrize("name", PLACES)
def test_scores_are_the_distances_they_name(name):
    found = BANK.neighbours(NEW, PREDICTIONS, None)
    samples = NetworkOutputs(logits=np.zeros((17, K)), penultimate=NEW, neighbours=found)
    learned = BASELINES[name].fit(InDistribution(outputs=samples, classes=PREDICTIONS))
    np.testing.assert_array_equal(BASELINES[name].of(samples, learned), PLACES[name](found))
