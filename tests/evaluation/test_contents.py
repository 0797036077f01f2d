import numpy as np
import pandas as pd
import pytest

from gradscore.evaluation.contents import Numbered, common, count_common

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
    assert common(*columns) == expected
    assert count_common(*columns) == len(expected)


def test_filtered_and_joined_columns_count_as_well():
    joined = pd.concat([pd.Series(["a", "b"]), pd.Series(["c"])])
    assert common(joined[joined != "a"], pd.Series(["a", "c", "x"])) == {"c"}


def test_numbers_tell_contents_apart():
    known = Numbered([pd.Series(["a", "b", "a"]), pd.Series(["c", "b"])])
    assert len(known) == 3
    assert known.of(pd.Series(["c", "x", "a", "c"])).tolist() == [2, 3, 0, 2]


def test_a_mask_holds_the_numbers_of_all_columns_and_never_the_unknown():
    known = Numbered([pd.Series(["a", "b", "c"])])
    mask = known.mask([known.of(pd.Series(["b", "x"])), known.of(pd.Series(["c"]))])
    np.testing.assert_array_equal(mask, [False, True, True, False])
