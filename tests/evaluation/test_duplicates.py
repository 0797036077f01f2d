import pandas as pd
import pytest

from gradscore.errors import EvaluationError
from gradscore.evaluation.duplicates import Overlap, find_overlaps, in_words, refuse

CONTENT = {
    "in_dist.fit": pd.Series(["a", "a", "b", "c"]),
    "in_dist.test": pd.Series(["d", "a"]),
    "ood.x": pd.Series(["b", "c", "d"]),
    "ood.y": pd.Series(["e"]),
}


def overlap(first, second, images=1):
    return Overlap(first=first, second=second, images=images)


FOUND = [
    overlap("in_dist.fit", "in_dist.test"),
    overlap("in_dist.fit", "ood.x", 2),
    overlap("in_dist.test", "ood.x"),
]


def test_distinct_images_are_counted():
    assert find_overlaps(CONTENT) == FOUND


def test_no_overlap_no_word():
    assert in_words(find_overlaps({"a": pd.Series(["x", "x"]), "b": pd.Series(["y"])})) == []


WORDS = {
    "one": (FOUND[0], "1 image is both in in_dist.fit and in in_dist.test; left out where they would fit"),
    "many": (FOUND[1], "2 images are both in in_dist.fit and in ood.x; left out where they would fit"),
    "both reported": (FOUND[2], "1 image is both in in_dist.test and in ood.x; both are reported"),
}


@pytest.mark.parametrize(("found", "text"), WORDS.values(), ids=WORDS)
def test_in_words(found, text):
    assert text in in_words([found])[0]


def test_refusal_names_all():
    with pytest.raises(
        EvaluationError, match=r"run: wanted no image in two splits .*in_dist.test; 2 images are .*remove"
    ):
        refuse(FOUND, where="run")


def test_nothing_to_refuse():
    refuse([], where="run")
