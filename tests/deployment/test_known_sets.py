"""What a bundle knows for a monitor: calibration samples, shifted copies, OOD samples, and its damages."""

from dataclasses import replace
from hashlib import shake_256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from gradscore.data import SHIFTS
from gradscore.deployment import KnownSet, KnownSets, make_bundle, read_bundle, watched, write_bundle
from gradscore.errors import BundleError
from gradscore.store import RunFolder

CALM = KnownSet(
    columns={"confidence": np.array([1.0, 2.0]), "class": np.array([0.0, 2.0])},
    right=np.array([True, False]),
    label=np.array([0, 1]),
)

SIGNS = 2.0 * np.unpackbits(np.frombuffer(shake_256(b"monitor").digest(4000), np.uint8))[::64] - 1


def features(run: Path, split: str = "in_dist.calibration") -> pd.DataFrame:
    return RunFolder(run).read(split)


def test_every_bundle_has_its_labelled_calibration_samples(small_run: Path, small_bundle: Path) -> None:
    bundle, frame = read_bundle(small_bundle), features(small_run).drop_duplicates("content_hash")
    found, scores = bundle.known_sets.calibration, bundle.detectors["wrong"].model.decision(frame)
    np.testing.assert_array_equal(found.right, frame["correct"].to_numpy(dtype=bool)[np.argsort(scores)])
    np.testing.assert_allclose(found.columns["score_wrong"], np.sort(scores))
    np.testing.assert_array_equal(found.columns["class"], frame["prediction"].to_numpy()[np.argsort(scores)])
    assert set(found.label) == {-1}, "labels are for what is learnt of shifted copies alone"
    assert bundle.known_sets.classes == 10
    assert (bundle.known_sets.shifted, bundle.known_sets.ood) == ({}, {})


def test_the_confidence_is_the_log_odds_of_the_largest_probability(small_run: Path) -> None:
    frame = features(small_run)
    largest = softmax(frame.filter(regex=r"^logit_\d+$").to_numpy(), axis=1).max(axis=1)
    np.testing.assert_allclose(watched(frame)["confidence"], np.log(largest / (1 - largest)), rtol=1e-6)


def test_the_size_of_a_gradient_is_its_logarithm(small_run: Path) -> None:
    frame = features(small_run)
    np.testing.assert_allclose(watched(frame)["gradient 3.weight"], np.log(frame["uniform/3.weight/l2"]))


def test_penultimate_features_are_projected_and_keep_their_lengths() -> None:
    random = np.random.default_rng(0)
    many, few = random.normal(size=(200, 500)), random.normal(size=(200, 20))
    logits = {f"logit_{place}": random.normal(size=200) for place in range(3)}

    def noted(values: np.ndarray) -> np.ndarray:
        named = {f"penultimate_{place}": each for place, each in enumerate(values.T)}
        return watched(pd.DataFrame(logits | named)).filter(regex="^feature ").to_numpy()

    np.testing.assert_array_equal(noted(few), few.astype(np.float32))
    assert noted(many).shape == (200, 64)
    lengths = np.linalg.norm(noted(many), axis=1) / np.linalg.norm(many, axis=1)
    assert lengths.mean() == pytest.approx(1, abs=0.03)  # Johnson and Lindenstrauss: 1, within an eighth each
    assert noted(many)[0, 0] == pytest.approx(many[0] @ SIGNS / 8, rel=1e-6)


def test_shifted_copies_are_of_every_kind(small_run: Path, tmp_path: Path) -> None:
    told = []
    made = make_bundle(
        RunFolder(small_run),
        alpha=0.1,
        with_weights=True,
        trust_code=True,
        shifted_copies=3,
        progress=lambda *each: told.append(each),
    )
    assert told[0] == ("rotation", 3, 153)
    assert told[-1] == ("shadow", 153, 153)
    write_bundle(tmp_path / "b", made)
    found = read_bundle(tmp_path / "b").known_sets
    assert list(found.shifted) == sorted(f"{kind}:{severity}" for kind in SHIFTS for severity in (1, 3, 5))
    assert {len(each.right) for each in found.shifted.values()} == {3}
    frame = features(small_run).drop_duplicates("content_hash")
    order = np.argsort(made.detectors["wrong"].model.decision(frame))
    np.testing.assert_array_equal(found.calibration.label, frame["label"].to_numpy()[order])
    assert set(found.plain.label) == {-1}
    np.testing.assert_array_equal(found.plain.right, features(small_run, "in_dist.fit")["correct"].to_numpy(bool))
    np.testing.assert_array_equal(
        found.shifted["jpeg:3"].columns["score_ood"], made.known_sets.shifted["jpeg:3"].columns["score_ood"]
    )


def test_a_reference_is_read_back_as_it_was() -> None:
    wanted = KnownSets(
        calibration=CALM,
        classes=3,
        plain=CALM,
        shifted={"jpeg:1": CALM},
        ood={"noise": replace(CALM, right=np.zeros(2, bool))},
    )
    found = KnownSets.of_members(wanted.members())
    assert found.members().keys() == wanted.members().keys()
    np.testing.assert_array_equal(found.ood["noise"].right, [False, False])
    np.testing.assert_array_equal(found.shifted["jpeg:1"].columns["confidence"], [1.0, 2.0])


IMPOSSIBLE = {
    "a column is gone": {"calibration/label": None},
    "columns of other lengths": {"calibration/confidence": np.ones(3)},
    "not finite": {"calibration/confidence": np.array([1.0, np.nan])},
    "half right": {"calibration/right": np.array([0.5, 1.0])},
    "a class too many": {"calibration/class": np.array([0.0, 3.0])},
    "a label too many": {"calibration/label": np.array([0.0, 3.0])},
    "other columns": {f"ood:a/{name}": np.zeros(2) for name in ("confidence", "class", "right", "label", "more")},
    "no number of classes": {"classes": np.ones(0)},
}


@pytest.mark.parametrize("change", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_reference_that_cannot_be_is_refused(change: dict[str, np.ndarray | None]) -> None:
    members = KnownSets(calibration=CALM, classes=3).members() | change
    with pytest.raises(BundleError, match="the monitor's reference set"):
        KnownSets.of_members({name: array for name, array in members.items() if array is not None})
