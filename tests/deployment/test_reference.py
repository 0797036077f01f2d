"""What a bundle knows for a monitor: calibration samples, shifted copies, OOD samples, and its damages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from gradscore.data import IMAGE_SHIFTS
from gradscore.deployment import Reference, WatchedSet, make_bundle, read_bundle, watched, write_bundle
from gradscore.errors import BundleError
from gradscore.store import RunFolder

CALM = WatchedSet(columns={"confidence": np.array([1.0, 2.0])}, right=np.array([True, False]))


def features(run: Path) -> pd.DataFrame:
    return RunFolder(run).read("in_dist.calibration")


def test_every_bundle_has_its_labelled_calibration_samples(small_run: Path, small_bundle: Path) -> None:
    bundle, frame = read_bundle(small_bundle), features(small_run).drop_duplicates("content_hash")
    found = bundle.reference.calibration
    np.testing.assert_array_equal(found.right, frame["correct"].to_numpy(dtype=bool))
    np.testing.assert_allclose(found.columns["score_wrong"], bundle.detectors["wrong"].model.decision(frame))
    assert (bundle.reference.shifted, bundle.reference.ood) == ({}, {})


def test_the_confidence_is_the_log_odds_of_the_largest_probability(small_run: Path) -> None:
    frame = features(small_run)
    largest = softmax(frame.filter(regex=r"^logit_\d+$").to_numpy(), axis=1).max(axis=1)
    np.testing.assert_allclose(watched(frame)["confidence"], np.log(largest / (1 - largest)), rtol=1e-6)


def test_the_size_of_a_gradient_is_its_logarithm(small_run: Path) -> None:
    frame = features(small_run)
    np.testing.assert_allclose(watched(frame)["gradient 3.weight"], np.log(frame["uniform/3.weight/l2"]))


def test_shifted_copies_are_of_every_kind(small_run: Path, tmp_path: Path) -> None:
    made = make_bundle(RunFolder(small_run), alpha=0.1, with_weights=True, trust_code=True, shifted_copies=3)
    write_bundle(tmp_path / "b", made)
    found = read_bundle(tmp_path / "b").reference
    assert list(found.shifted) == sorted(f"{kind}:{strength}" for kind in IMAGE_SHIFTS for strength in (1, 3, 5))
    assert {len(each.right) for each in found.shifted.values()} == {3}
    np.testing.assert_array_equal(
        found.shifted["jpeg:3"].columns["score_ood"], made.reference.shifted["jpeg:3"].columns["score_ood"]
    )


def without(members: dict, name: str) -> dict:
    return {key: array for key, array in members.items() if key != name}


DAMAGES = {
    "no calibration": (lambda members: {}, "holds no calibration samples"),
    "no answers": (lambda members: without(members, "calibration/right"), "lacks a column of 'calibration'"),
    "not finite": (lambda members: {**members, "calibration/confidence": np.array([1.0, np.nan])}, "that cannot be"),
    "no truth value": (lambda members: {**members, "calibration/right": np.array([0.5, 1.0])}, "that cannot be"),
    "lengths": (lambda members: {**members, "calibration/confidence": np.ones(3)}, "columns of other lengths"),
    "columns": (
        lambda members: {**members, "ood:a/other": np.ones(2), "ood:a/right": np.zeros(2)},
        "has other columns in 'ood:a'",
    ),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_reference_is_refused(damage, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        Reference.of_members(damage(Reference(calibration=CALM).members()))


def test_a_reference_is_read_back_as_it_was() -> None:
    wanted = Reference(
        calibration=CALM, shifted={"jpeg:1": CALM}, ood={"noise": replace(CALM, right=np.zeros(2, bool))}
    )
    found = Reference.of_members(wanted.members())
    assert found.members().keys() == wanted.members().keys()
    np.testing.assert_array_equal(found.ood["noise"].right, [False, False])
    np.testing.assert_array_equal(found.shifted["jpeg:1"].columns["confidence"], [1.0, 2.0])
