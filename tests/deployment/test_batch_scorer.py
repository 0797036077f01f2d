"""Batches as dicts of arrays get what the scorer gives for the same samples."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from gradscore.deployment import BatchScorer, Scorer
from gradscore.errors import DataError

DIGITS = np.round(load_digits().images[420:440] * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def function(small_bundle: Path) -> BatchScorer:
    return BatchScorer(small_bundle, keep=["id"], trust_code=True)


@pytest.fixture(scope="module")
def wanted(small_bundle: Path) -> pd.DataFrame:
    """By the scorer itself, from pixels (N, C, H, W)."""
    return Scorer.load(small_bundle, trust_code=True)(DIGITS[:, None])


def one_by_one(images: np.ndarray) -> np.ndarray:
    found = np.empty(len(images), dtype=object)
    found[:] = list(images)
    return found


FORMS = {
    "grey": DIGITS,
    "one array each": one_by_one(DIGITS[..., None]),
}


@pytest.mark.parametrize("images", FORMS.values(), ids=FORMS)
def test_a_batch_gets_what_the_scorer_gives(function, wanted, images: np.ndarray) -> None:
    found = function({"image": images, "id": np.arange(20), "other": np.zeros(20)})
    assert list(found) == ["id", *wanted.columns[1:]]
    assert found["id"].tolist() == list(range(20))
    assert {name: found[name].tolist() for name in wanted.columns[1:]} == {
        name: wanted[name].tolist() for name in wanted.columns[1:]
    }


def test_preprocessed_samples(small_bundle, wanted) -> None:
    function = BatchScorer(small_bundle, inputs="x", raw=False, trust_code=True)
    found = function({"x": (DIGITS[:, None].astype(np.float32) / 255 - 0.5) / 0.5})
    assert found["score_ood"].tolist() == wanted["score_ood"].tolist()


def kinds(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    return {name: array.dtype.kind for name, array in arrays.items() if name != "id"}


def test_types_do_not_depend_on_what_is_in_a_batch(function) -> None:
    images = one_by_one(DIGITS[:3, ..., None])
    images[1] = np.zeros((9, 9, 1), np.uint8)
    some = function({"image": images, "id": np.arange(3)})
    none = function({"image": DIGITS[:0, ..., None], "id": np.arange(0)})
    assert kinds(some) == kinds(none)
    assert (set(map(len, some.values())), set(map(len, none.values()))) == ({3}, {0})
    assert some["prediction"].dtype == np.int64
    assert (some["prediction"] == -1).tolist() == [False, True, False]
    assert np.isnan(some["score_ood"]).tolist() == [False, True, False]
    assert some["decision"][1] == "error"
    assert "(1, 9, 9) after preprocessing" in some["error"][1]


def test_a_pickled_one_reads_its_bundle_again(function) -> None:
    batch = {"image": DIGITS[..., None], "id": np.arange(20)}
    content = pickle.dumps(function)
    found = pickle.loads(content)(batch)
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in function(batch).items()
    }
    assert len(content) < 1000


def test_a_batch_that_lacks_its_array_is_refused(function) -> None:
    with pytest.raises(DataError, match=r"no array 'image'; .* img, id"):
        function({"img": DIGITS, "id": DIGITS})


def test_what_is_kept_has_a_name_of_its_own(small_bundle) -> None:
    with pytest.raises(DataError, match="results have a column 'prediction' of their own"):
        BatchScorer(small_bundle, keep=["prediction"], trust_code=True)
