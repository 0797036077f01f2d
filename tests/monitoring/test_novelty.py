"""The novelty of a sample: a linear discriminant, against scikit-learn and on samples that each score misses."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from gradscore.deployment import KnownSet, KnownSets
from gradscore.monitoring.streams import SHRINKAGE, Novelty, discriminant


def samples(count: int, seed: int, *, moved: float = 0.0) -> KnownSet:
    """Two columns that go together; moved are those in which they no longer do."""
    random = np.random.default_rng(seed)
    one = random.normal(size=count)
    columns = {
        "score_wrong": one,
        "confidence": one + random.normal(0, 0.2, count) + moved,
        "class": np.zeros(count),
        "feature 0": np.full(count, 3.0),
    }
    return KnownSet(columns=columns, right=np.full(count, not moved), label=np.zeros(count, dtype=int))


KNOWN_SETS = KnownSets(
    calibration=samples(500, 0), classes=2, plain=samples(2000, 1), shifted={"a:1": samples(300, 2, moved=1.0)}
)


def test_it_sees_what_no_column_shows() -> None:
    novelty = Novelty.learnt(KNOWN_SETS)
    plain, odd = samples(1000, 3), samples(1000, 4, moved=1.0)
    truth = np.repeat([0, 1], 1000)

    def area(of) -> float:
        return roc_auc_score(truth, np.concatenate([of(plain.columns), of(odd.columns)]))

    assert area(lambda columns: columns["confidence"]) < 0.8
    assert area(novelty.of) > 0.99


def test_the_direction_is_that_of_scikit_learn() -> None:
    """Two classes of equal probability; the peer has no weights, so all are equal."""
    random = np.random.default_rng(0)
    plain, odd = random.normal(size=(400, 3)), random.normal(0.5, [1, 2, 3], size=(400, 3))
    found = discriminant(plain, odd, np.full(400, 1 / 400))
    pooled = 0.5 * (np.cov(plain.T, ddof=0) + np.cov(odd.T, ddof=0)) + SHRINKAGE * np.eye(3)
    np.testing.assert_allclose(found, np.linalg.inv(pooled) @ (odd.mean(0) - plain.mean(0)))
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(np.vstack([plain, odd]), np.repeat([0, 1], 400))
    cosine = found @ peer.coef_[0] / np.linalg.norm(found) / np.linalg.norm(peer.coef_[0])
    assert cosine > 0.999


def test_values_do_not_depend_on_what_comes_with_them() -> None:
    novelty, columns = Novelty.learnt(KNOWN_SETS), samples(100, 5).columns
    alone = {name: values[7:8] for name, values in columns.items()}
    assert novelty.of(alone)[0] == novelty.of(columns)[7]


NOTHING = {
    "no plain samples": replace(KNOWN_SETS, plain=None),
    "no shifted copies": replace(KNOWN_SETS, shifted={}),
    "nothing wrong": replace(KNOWN_SETS, shifted={"a:1": samples(300, 2)}),
}


@pytest.mark.parametrize("known_sets", NOTHING.values(), ids=NOTHING.keys())
def test_without_anything_odd_there_is_none(known_sets: KnownSets) -> None:
    assert Novelty.learnt(known_sets) is None
