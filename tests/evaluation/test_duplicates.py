"""Samples that are several times in a run, byte for byte."""

import numpy as np
import pandas as pd
import pytest

from gradscore.data import BANK, CALIBRATION, FIT, TEST, SplitInfo
from gradscore.evaluation.duplicates import (
    Copies,
    Numbered,
    Overlap,
    common,
    copied_set_notices,
    duplicate_notices,
    find_copies,
    find_overlaps,
    shared_set_notices,
)

FITTED, TESTED = SplitInfo(FIT, FIT), SplitInfo(TEST, TEST)
BANKED, CALIBRATING = SplitInfo(BANK, BANK), SplitInfo(CALIBRATION, CALIBRATION)
X, Y = SplitInfo("ood.x", "ood"), SplitInfo("ood.y", "ood")

CONTENT = {
    FITTED: pd.Series(["a", "a", "b", "c"]),
    TESTED: pd.Series(["d", "a"]),
    X: pd.Series(["b", "c", "d"]),
    Y: pd.Series(["e"]),
}


def overlap(first, second, images=1):
    return Overlap(first=first, second=second, samples=images)


FOUND = [overlap(FITTED, TESTED), overlap(FITTED, X, 2), overlap(TESTED, X)]


def test_distinct_images_are_counted():
    assert find_overlaps(CONTENT) == FOUND


WORDS = {
    "one": (FOUND[0], "1 sample is both in in_dist.fit and in in_dist.test; left out where they would fit"),
    "many": (FOUND[1], "2 samples are both in in_dist.fit and in ood.x; left out where they would fit"),
    "counted as OOD": (FOUND[1], "left out where they would fit, but counted as OOD in the figures"),
    "both reported": (FOUND[2], "1 sample is both in in_dist.test and in ood.x; left out of ood.x"),
    "shifted": (
        overlap(TESTED, SplitInfo("shifted.x", "shifted")),
        "1 sample is both in in_dist.test and in shifted.x; both are reported",
    ),
    "test and bank": (
        overlap(TESTED, BANKED, 3),
        "3 samples are both in in_dist.test and in in_dist.bank; left out of the bank; if it trained the classifier",
    ),
    "bank and OOD": (overlap(BANKED, X), "1 sample is both in in_dist.bank and in ood.x; left out of the bank; if it"),
    "fit and bank": (
        overlap(FITTED, BANKED),
        "1 sample is both in in_dist.fit and in in_dist.bank; left out where their own neighbours are looked for",
    ),
    "calibration and bank": (overlap(CALIBRATING, BANKED), "in in_dist.bank; left out of the bank"),
    "bank and auxiliary": (
        overlap(BANKED, SplitInfo("ood.x", "ood", auxiliary=True)),
        "1 sample is both in in_dist.bank and in ood.x; left out where they would fit",
    ),
    "auxiliary": (
        overlap(TESTED, SplitInfo("ood.x", "ood", auxiliary=True)),
        "1 sample is both in in_dist.test and in ood.x; left out where they would fit",
    ),
}


@pytest.mark.parametrize(("found", "text"), WORDS.values(), ids=WORDS)
def test_words(found, text):
    assert text in duplicate_notices([found])[0]


def test_copies_within_what_is_reported_are_counted():
    content = {
        FITTED: pd.Series(["a", "a"]),
        TESTED: pd.Series(["d", "a", "d", "d"]),
        X: pd.Series(["b", "c"]),
        SplitInfo("ood.x", "ood", auxiliary=True): pd.Series(["b", "b"]),
        SplitInfo("shifted.x", "shifted"): pd.Series(["b", "b"]),
    }
    assert find_copies(content) == [Copies(TESTED, 2, 4), Copies(SplitInfo("shifted.x", "shifted"), 1, 2)]


def test_notices_of_copies():
    (line,) = duplicate_notices([Copies(TESTED, 2, 4)])
    assert line.startswith("duplicates: in_dist.test: 2 of 4 samples are copies of others in it; they count as if")
    (line,) = duplicate_notices([Copies(X, 1, 4)])
    assert line == "duplicates: ood.x: 1 of 4 samples is a copy of another in it; each content counts once"


def test_ood_sets_of_copies_of_in_distribution_samples_are_warned_of():
    """Half of X: b and c; of what is not reported as OOD, and of Y, none."""
    content = {
        FITTED: pd.Series(["a", "b"]),
        TESTED: pd.Series(["c"]),
        X: pd.Series(["b", "c", "d", "e"]),
        Y: pd.Series(["c", "d", "e"]),
        SplitInfo("ood.x", "ood", auxiliary=True): pd.Series(["a", "b"]),
        SplitInfo("shifted.x", "shifted"): pd.Series(["c"]),
    }
    (found,) = copied_set_notices(content)
    assert found.startswith("ood.x: 2 of 4 samples are copies of in-distribution samples")
    assert found.level == "caution"


def test_a_few_copies_of_in_distribution_samples_that_count_as_ood_are_warned_of():
    """Of X: of in_dist.fit b, twice, which counts once; of calibration c; d of in_dist.test does not count."""
    content = {
        FITTED: pd.Series(["a", "b", "d"]),
        TESTED: pd.Series(["d"]),
        CALIBRATING: pd.Series(["c"]),
        X: pd.Series(["b", "b", "c", "d", *"stuvw"]),
        Y: pd.Series(["a", *"xyz"]),
    }
    assert [(each.level, str(each)) for each in copied_set_notices(content)] == [
        (
            "caution",
            "ood.x: 4 of 9 samples are copies of in-distribution samples: only those of in_dist.test are left out, so "
            "2 count as OOD in its figures; give other samples",
        ),
        (
            "caution",
            "ood.y: 1 of 4 samples are copies of in-distribution samples: only those of in_dist.test are left out, so "
            "1 counts as OOD in its figures; give other samples",
        ),
    ]


def test_samples_in_several_ood_sets_are_warned_of():
    content = {FITTED: pd.Series(["a"]), X: pd.Series(["b", "b", "d"]), Y: pd.Series(["b", "e"])}
    (found,) = shared_set_notices(content)
    assert found.startswith(f"samples are in several OOD sets: 2 of 3 in {X.name}, 1 of 2 in {Y.name}; means over sets")
    assert found.level == "caution"
    assert shared_set_notices({**content, Y: pd.Series(["e"])}) == []


COLUMNS = {
    "some": (["a", "b", "b", "c"], ["c", "b", "d", "b"], {"b", "c"}),
    "none": (["a"], ["b", "c"], set()),
    "all": (["a", "a"], ["a"], {"a"}),
    "of nothing": ([], ["a"], set()),
    "in nothing": (["a"], [], set()),
}


@pytest.mark.parametrize(("values", "others", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_common_contents_are_the_intersection(values, others, expected):
    columns = [pd.Series(each, dtype="str") for each in (values, others)]
    assert set(common(*columns).to_pylist()) == expected


def test_numbers_tell_contents_apart():
    known = Numbered([pd.Series(["a", "b", "a"]), pd.Series(["c", "b"])])
    assert known.of(pd.Series(["c", "x", "a", "c"])).tolist() == [2, 3, 0, 2]


def test_a_mask_holds_the_numbers_of_all_columns_and_never_the_unknown():
    known = Numbered([pd.Series(["a", "b", "c"])])
    mask = known.mask([known.of(pd.Series(["b", "x"])), known.of(pd.Series(["c"]))])
    np.testing.assert_array_equal(mask, [False, True, True, False])
