import pandas as pd
import pytest

from gradscore.data import BANK, CALIBRATION, FIT, TEST
from gradscore.data.splits import SplitInfo
from gradscore.errors import EvaluationError
from gradscore.evaluation.duplicates import (
    Copies,
    Overlap,
    copies_in_words,
    find_copies,
    find_overlaps,
    in_words,
    refuse,
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
    return Overlap(first=first, second=second, images=images)


FOUND = [overlap(FITTED, TESTED), overlap(FITTED, X, 2), overlap(TESTED, X)]


def test_distinct_images_are_counted():
    assert find_overlaps(CONTENT) == FOUND


def test_no_overlap_no_word():
    assert in_words(find_overlaps({X: pd.Series(["x", "x"]), Y: pd.Series(["y"])})) == []


WORDS = {
    "one": (FOUND[0], "1 sample is both in in_dist.fit and in in_dist.test; left out where they would fit"),
    "many": (FOUND[1], "2 samples are both in in_dist.fit and in ood.x; left out where they would fit"),
    "both reported": (FOUND[2], "1 sample is both in in_dist.test and in ood.x; both are reported"),
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
def test_in_words(found, text):
    assert text in in_words([found])[0]


def test_refusal_names_all():
    with pytest.raises(
        EvaluationError, match=r"run: wanted no sample in two splits .*in_dist.test; 2 samples are .*remove"
    ):
        refuse(FOUND, where="run")


def test_nothing_to_refuse():
    refuse([], where="run")


def test_copies_within_what_is_reported_are_counted():
    content = {
        FITTED: pd.Series(["a", "a"]),
        TESTED: pd.Series(["d", "a", "d", "d"]),
        X: pd.Series(["b", "c"]),
        SplitInfo("ood.x", "ood", auxiliary=True): pd.Series(["b", "b"]),
        SplitInfo("shifted.x", "shifted"): pd.Series(["b", "b"]),
    }
    assert find_copies(content) == [Copies(TESTED, 2, 4), Copies(SplitInfo("shifted.x", "shifted"), 1, 2)]


def test_copies_in_words():
    (line,) = copies_in_words([Copies(TESTED, 2, 4)])
    assert line.startswith("duplicates: in_dist.test: 2 of 4 samples are copies of others in it; they count as if")
