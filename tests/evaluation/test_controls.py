import pytest

from gradscore.evaluation.controls import Control, in_words, permuted_labels
from gradscore.evaluation.delong import Interval


def control(*, value, low, high):
    return Control(model="ood/known/all", dataset="a", area=Interval(value=value, low=low, high=high))


def test_permuted_labels_are_not_found(report_run):
    controls = permuted_labels(report_run)
    assert [f"{each.model} {each.dataset}" for each in controls] == [
        "misclassification/in_dist_only/all in_dist.test",
        "ood/known/all rotated",
        "ood/known/all files",
        "ood/leave_one_out/rotated rotated",
        "ood/leave_one_out/files files",
    ]
    assert all(each.passed for each in controls)


def test_the_seed_decides(report_run):
    assert permuted_labels(report_run) == permuted_labels(report_run)


class LeavesLabelsAsTheyAre:
    def __init__(self, seed):
        self.seed = seed

    def permutation(self, labels):
        return labels


def test_labels_that_get_through_are_found(report_run, monkeypatch):
    monkeypatch.setattr("gradscore.evaluation.controls.np.random.default_rng", LeavesLabelsAsTheyAre)
    assert not all(each.passed for each in permuted_labels(report_run))


def test_all_is_well_in_words():
    (line,) = in_words([control(value=0.48, low=0.4, high=0.56), control(value=0.51, low=0.45, high=0.57)])
    assert "nothing is found in 2 controls; the AUROC farthest from 0.5 is 0.480" in line


@pytest.mark.parametrize(("low", "high"), [(0.6, 0.8), (0.2, 0.4)], ids=["above", "below"])
def test_a_failed_control_in_words(low, high):
    (line,) = in_words([control(value=(low + high) / 2, low=low, high=high), control(value=0.5, low=0.4, high=0.6)])
    assert "ood/known/all finds permuted labels of a" in line
    assert "not to be trusted" in line
