"""What an evaluation advises, in sentences: from figures worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradscore.evaluation.answer import Answer, answer_of, bundle_command, samples_wanted
from gradscore.evaluation.records import Record
from gradscore.evaluation.verdicts import verdicts
from gradscore.meta import ScoreChoice

GROUPS = {"near": ["bags"], "far": ["mnist", "noise"], "all": ["bags", "mnist", "noise"]}
NEXT = "gradscore bundle runs/mine --out scorer.gradscore"
WITHOUT = "With --set features.losses=[] and another --out, a run goes without them."

SURE, LITTLE, NONE = (0.03, 0.01, 1e-4), (0.004, 0.003, 0.01), (-0.001, 0.004, 0.6)
"""Gains: the value, half the width of the interval, and the p-value."""
UNDECIDED, LOST = (0.01, 0.02, 0.3), (-0.1, 0.02, 1e-9)


def of_set(
    dataset: str, *, gain: tuple[float, float, float], by_gradients: tuple[float, float, float], caught: float,
    area: float = 0.9, half: float = 0.02, task: str = "ood", n_positive: int = 200,
    best: str = "knn",
) -> list[Record]:  # fmt: skip
    """The records of one set: the chosen score, the meta model, and the one baseline there is."""
    protocol = "leave_one_dataset_out" if task == "ood" else "in_dist_only"
    first = Record(
        task=task, dataset=dataset, protocol=protocol, score="chosen", metric="auroc", value=area, low=area - half,
        high=area + half, n=1000, n_positive=n_positive,
    )  # fmt: skip
    gains = {"chosen": gain, "meta": by_gradients}
    return [
        first,
        replace(first, metric="fpr95_id_positive", value=1 - caught),
        replace(first, score=best, value=area - gain[0]),
        replace(first, score=best, metric="fpr95_id_positive", value=1 - caught),
        replace(first, score="meta"),
        *(
            replace(
                first, score=score, metric=f"auroc_gain_over_{best}", value=value, p_value=p_value,
                low=value - width, high=value + width,
            )
            for score, (value, width, p_value) in gains.items()
        ),
    ]  # fmt: skip


def answer(records: list[Record], *, ood: str = "meta", wrong: str = "augmentations_probability", **more) -> Answer:
    choices = {"ood": ScoreChoice(score=ood), "misclassification": ScoreChoice(score=wrong)}
    found = verdicts(records, groups=GROUPS)
    return answer_of(
        found, records, groups=GROUPS, choices=choices, next_command=NEXT, **{"without_gradients": WITHOUT, **more}
    )


BAGS = of_set("bags", gain=SURE, by_gradients=SURE, caught=0.69)
NEAR = [replace(each, dataset="near (mean)") for each in BAGS]
WRONG = of_set("in_dist.test", gain=UNDECIDED, by_gradients=NONE, caught=0.416, task="misclassification")


def test_says_what_to_use_what_it_catches_and_what_comes_next() -> None:
    assert answer([*WRONG, *BAGS, *NEAR]).lines == [
        "Chosen: the meta model for OOD samples, and the averaged probability for wrong predictions.",
        "With 5 % false alarms for each question, they catch 69 % of bags (near), 42 % of wrong predictions.",
        "Against the best baseline of each set: better on bags; undecided on wrong predictions (about 9 times the "
        "samples would decide).",
        "Gradients add 0.03 AUROC on the near sets and add nothing on wrong predictions.",
        f"Next: {NEXT}",
    ]


def test_a_baseline_that_is_higher_is_named_where_more_samples_would_decide() -> None:
    """Interval of (-.08, +.02): (1.96 + 0.84) / 1.96 * 0.05 / 0.03 is 2.38, whose square is 5.7."""
    behind = of_set("in_dist.test", gain=(-0.03, 0.05, 0.24), by_gradients=NONE, caught=0.4, task="misclassification")
    shown = "about 6 times the samples would decide"
    assert f"undecided on wrong predictions (knn is 0.03 higher; {shown})." in answer(behind).sentences[2]
    several = answer([*behind, *of_set("bags", gain=UNDECIDED, by_gradients=SURE, caught=0.69)]).sentences[2]
    assert f"undecided on bags and wrong predictions (knn is 0.03 higher on wrong predictions; {shown})." in several


def test_one_score_for_both_questions_is_named_once() -> None:
    found = answer([*WRONG, *BAGS], wrong="meta").sentences
    assert found[0] == "Chosen: the meta model for OOD samples and wrong predictions."
    assert "it catches" in found[1]


def test_of_few_samples_the_number_is_said_in_place_of_a_percentage() -> None:
    few = of_set("in_dist.test", gain=UNDECIDED, by_gradients=NONE, caught=0.75, task="misclassification", n_positive=4)
    bags = of_set("bags", gain=SURE, by_gradients=SURE, caught=6 / 19, n_positive=19)
    noise = of_set("noise", gain=SURE, by_gradients=SURE, caught=0.35, n_positive=20)
    caught = "they catch 6 of 19 samples of bags (near), 35 % of noise (far), 3 of 4 wrong predictions."
    assert caught in answer([*few, *bags, *noise]).sentences[1]


def test_a_set_that_is_lost_is_named_whatever_the_others_say() -> None:
    lost = of_set("noise", gain=LOST, by_gradients=LOST, caught=0.5, area=0.8)
    lost[3] = replace(lost[3], value=1 - 0.6)
    found = answer([*BAGS, *lost]).sentences
    assert "better on bags; worse on noise (knn is 0.10 higher)" in found[2]
    advice = "In the report knn catches more of noise (60 % against 50 %): for kinds that you have none of,"
    assert f"{advice} add --score ood=knn to gradscore bundle." in found
    in_python = answer([*BAGS, *lost], deciding='detector.save(..., scores=["{}"])').sentences
    assert f'{advice} detector.save(..., scores=["ood=knn"]).' in in_python


SETS = {"noise": ("knn", 0.9), "blots": ("energy", 0.7)}
"""The best baseline of two sets of which the chosen score catches half, and what that baseline catches."""


def two_lost_sets(order: list[str], of_the_other: dict[str, float]) -> list[Record]:
    """Records of two sets that are lost to a baseline each; `of_the_other`: what it catches of the other set."""
    found = []
    for name in order:
        best, share = SETS[name]
        records = of_set(name, gain=LOST, by_gradients=LOST, caught=0.5, area=0.8, best=best)
        records[3] = replace(records[3], value=1 - share)
        other = next(each for each, _ in SETS.values() if each != best)
        behind = [replace(records[2], score=other, value=0.7), replace(records[3], score=other)]
        found += [*records, behind[0], replace(behind[1], value=1 - of_the_other[other])]
    return found


BY_KNN = "knn catches more of noise (90 % against 50 %)"
BY_ENERGY = "energy catches more of blots (70 % against 50 %)"
# What knn catches of blots and energy of noise: which one catches more in the mean, and how that is said.
ADVISED = {
    "the first": ({"knn": 0.6, "energy": 0.7}, f"{BY_KNN}: for kinds"),
    "the first, though": ({"knn": 0.4, "energy": 0.5}, f"{BY_KNN}, and fewer of blots:"),
    "the other": ({"knn": 0.4, "energy": 0.7}, f"{BY_ENERGY}: for kinds"),
    "the other, though": ({"knn": 0.1, "energy": 0.4}, f"{BY_ENERGY}, and fewer of noise"),
    "as much: by name": ({"knn": 0.3, "energy": 0.5}, f"{BY_ENERGY}: for kinds"),
    "hardly fewer": ({"knn": 0.495, "energy": 0.5}, f"{BY_KNN}: for kinds"),
}


@pytest.mark.parametrize("order", [["noise", "blots"], ["blots", "noise"]], ids=" ".join)
@pytest.mark.parametrize(("of_the_other", "advice"), ADVISED.values(), ids=ADVISED)
def test_the_baseline_that_catches_most_in_the_mean_is_advised(order, of_the_other, advice: str) -> None:
    said = [each for each in answer(two_lost_sets(order, of_the_other)).sentences if "catches more" in each]
    assert len(said) == 1
    assert said[0].startswith(f"In the report {advice}")


def test_a_baseline_that_decides_is_not_compared_with_itself() -> None:
    itself = [
        *of_set("noise", gain=(0.0, 0.0, 1.0), by_gradients=LOST, caught=0.5, area=0.8),
        replace(WRONG[0], task="ood", dataset="noise", protocol="leave_one_dataset_out", score="knn", value=0.8),
    ]
    found = answer([*WRONG, *itself], ood="knn").sentences
    assert "Against the best baseline of each set: equal on noise; undecided on" in found[2]
    assert not any("catches more" in each for each in found)


def test_what_a_choice_without_a_set_would_catch_is_said() -> None:
    noise = of_set("noise", gain=SURE, by_gradients=SURE, caught=0.97)
    apart = replace(noise[1], score="chosen_apart", value=1 - 0.07)
    found = answer([*WRONG, *noise, apart]).sentences
    assert "97 % of noise" in found[1]
    begin = "Samples of each set helped to choose the score; one chosen without them catches"
    assert found[2] == f"{begin} 7 % of noise."
    as_many = answer([*WRONG, *noise, replace(apart, value=1 - 0.97)]).sentences
    assert not any("helped to choose" in each for each in as_many)
    both = answer([*WRONG, *noise, apart, *BAGS, replace(apart, dataset="bags", value=1.0)]).sentences
    assert both[2] == f"{begin} 7 % of noise and 0 % of bags."


@pytest.mark.parametrize(("groups", "advised"), [({"all": ["bags", "noise"]}, True), (GROUPS, False)])
def test_a_baseline_is_advised_for_a_set_that_is_in_no_group(groups: dict[str, list[str]], advised: bool) -> None:
    lost = of_set("noise", gain=LOST, by_gradients=LOST, caught=0.5, area=0.8)
    lost[3] = replace(lost[3], value=1 - 0.8)
    mean = [
        replace(each, dataset="all (mean)")
        for each in of_set("bags", gain=UNDECIDED, by_gradients=UNDECIDED, caught=0.6)
    ]
    choices = {"ood": ScoreChoice(score="meta")}
    records = [*BAGS, *lost, *mean]
    found = answer_of(verdicts(records, groups=groups), records, groups=groups, choices=choices, next_command=NEXT)
    advice = "In the report knn catches more of noise (80 % against 50 %)"
    assert any(each.startswith(advice) for each in found.sentences) == advised


def test_a_baseline_that_is_hardly_better_is_not_advised() -> None:
    found = answer([*WRONG, *of_set("noise", gain=(-0.004, 0.001, 1e-9), by_gradients=NONE, caught=0.5)]).sentences
    assert "worse on noise (knn is less than 0.01 higher)" in found[2]
    assert not any("catches more" in each for each in found)


@pytest.mark.parametrize(("by_knn", "advised"), {0.5: False, 0.52: True}.items())
def test_a_baseline_that_hardly_catches_more_is_not_advised(by_knn: float, advised: bool) -> None:
    lost = of_set("noise", gain=LOST, by_gradients=LOST, caught=0.5, area=0.8)
    lost[3] = replace(lost[3], value=1 - by_knn)
    found = answer([*BAGS, *lost]).sentences
    assert any("worse on noise (knn is 0.10 higher)" in each for each in found)
    assert any("catches more" in each for each in found) == advised


ADDED = {
    "to one question": ({"ood": "meta"}, SURE, False),
    "to none, by what is reported": ({"ood": "meta"}, NONE, True),
    "to none that is used": ({"ood": "knn"}, SURE, True),
    "perhaps": ({"ood": "meta"}, UNDECIDED, False),
    "a little, for sure": ({"ood": "meta"}, LITTLE, False),
}


@pytest.mark.parametrize(("choice", "by_gradients", "spared"), ADDED.values(), ids=ADDED)
def test_gradients_that_add_nothing_can_be_spared(choice: dict[str, str], by_gradients, spared: bool) -> None:
    records = [*WRONG, *of_set("bags", gain=SURE, by_gradients=by_gradients, caught=0.7)]
    said = " ".join(answer(records, **choice).sentences)
    assert (WITHOUT in said) == spared


@pytest.mark.parametrize("over_regression", [LITTLE, UNDECIDED], ids=["shown", "possible"])
def test_gradients_by_which_a_regression_gains_are_not_said_to_add_nothing(over_regression) -> None:
    """The best of all baselines is as good, but which one it is nobody knew before."""
    bags = of_set("bags", gain=NONE, by_gradients=NONE, caught=0.7)
    value, half, p_value = over_regression
    gain = replace(
        bags[-1], metric="auroc_gain_over_score_lr", value=value, low=value - half, high=value + half, p_value=p_value
    )
    said = " ".join(answer([*bags, replace(bags[2], score="score_lr"), gain]).sentences)
    assert "not shown to add anything on bags" in said
    assert WITHOUT not in said


def test_a_run_without_gradients_says_nothing_of_them() -> None:
    assert "radients" not in " ".join(answer([*WRONG, *BAGS], without_gradients=None).sentences)


def useless(dataset: str, *, by_best: float) -> list[Record]:
    """A set that the chosen score does not find, and the AUROC of the best baseline on it."""
    gain = (0.3 - by_best, 0.02, 1e-9 if by_best > 0.35 else 0.3)
    return of_set(dataset, gain=gain, by_gradients=NONE, caught=0.02, area=0.3)


@pytest.mark.parametrize("others", [[], BAGS], ids=["alone", "with others"])
@pytest.mark.parametrize(
    ("by_best", "expected"),
    {
        0.7: "The chosen score does not find mnist (an AUROC of 0.30; knn has 0.70).",
        0.31: "No score tells mnist from the rest.",
    }.items(),
)
def test_a_set_that_is_not_found_is_named(others: list[Record], by_best: float, expected: str) -> None:
    """In a group of sets it was open, and where a baseline has more but catches no more it was in no sentence."""
    records = [*others, *useless("mnist", by_best=by_best)]
    mean = [replace(each, dataset="all (mean)") for each in others or records]
    found = answer([*records, *mean])
    assert found.no_verdict is None
    assert expected in found.sentences
    assert not any("mnist" in each for each in found.sentences if each.startswith(("Against", "Chosen")))


@pytest.mark.parametrize(("by_known", "says"), [(0.8, "80 % of mnist"), (0.1, "10 % of mnist"), (None, None)])
def test_what_a_bundle_catches_of_a_kind_that_it_was_fitted_on_is_said(by_known, says) -> None:
    lost = useless("mnist", by_best=0.7)
    known = of_set("mnist", gain=SURE, by_gradients=SURE, caught=by_known or 0.0)
    found = answer([*BAGS, *lost, *(replace(each, protocol="known") for each in known if says)])
    expected = [f"A bundle is fitted on samples of such kinds too: of others it catches {says}."] if says else []
    assert [each for each in found.sentences if "bundle" in each] == expected
    assert "The chosen score does not find mnist (an AUROC of 0.30; knn has 0.70)." in found.sentences


def test_a_baseline_that_is_shown_to_be_better_is_a_verdict_where_the_score_tells_nothing() -> None:
    unsure = of_set("in_dist.test", gain=LOST, by_gradients=LOST, caught=0.09, area=0.54, half=0.1,
                    task="misclassification")  # fmt: skip
    unsure[2], unsure[3] = replace(unsure[2], value=0.64), replace(unsure[3], value=1 - 0.38)
    found = answer(unsure)
    assert (found.no_verdict, found.uses) == (None, [])
    assert "In the report knn catches more of wrong predictions (38 % against 9 %)" in found.sentences[1]


def test_a_baseline_that_is_better_and_catches_no_more_is_still_said() -> None:
    unsure = of_set("in_dist.test", gain=LOST, by_gradients=LOST, caught=0.09, area=0.54, half=0.1,
                    task="misclassification")  # fmt: skip
    found = answer([unsure[0], unsure[1], replace(unsure[2], value=0.64), *unsure[3:]])
    assert (
        found.sentences[0] == "Against the best baseline of each set: worse on wrong predictions (knn is 0.10 higher)."
    )


def test_a_mean_that_nothing_finds_is_said_where_no_set_alone_shows_it() -> None:
    options = {"gain": (0.0, 0.1, 1.0), "by_gradients": UNDECIDED, "caught": 0.1, "area": 0.5}
    sets = [each for name in ("mnist", "noise") for each in of_set(name, half=0.11, **options)]
    mean = of_set("far (mean)", half=0.08, **options)
    assert answer([*sets, *mean]).sentences[-1] == "No score tells the far sets in the mean from the rest."


@pytest.mark.parametrize(("each", "tells"), {3: False, 4: True}.items())
def test_a_perfect_order_of_very_few_is_no_verdict(each: int, tells: bool) -> None:
    """Three and three are in it by chance once in 20 times, four and four once in 70."""
    few = of_set("bags", gain=UNDECIDED, by_gradients=UNDECIDED, caught=1.0, area=0.9, n_positive=each)
    found = verdicts([replace(record, n=2 * each) for record in few])
    assert [one.tells for one in found] == [tells]


@pytest.mark.parametrize(("samples", "outcome"), {10: "undecided", 60: "equal"}.items())
def test_two_perfect_orders_of_few_samples_are_not_said_to_be_equal(samples: int, outcome: str) -> None:
    perfect = of_set("bags", gain=(0.0, 0.05, 1.0), by_gradients=NONE, caught=1.0, area=1.0, n_positive=samples)
    assert [one.outcome for one in verdicts(perfect)] == [outcome]
    same = of_set("bags", gain=(0.0, 0.0, 1.0), by_gradients=NONE, caught=1.0, area=1.0, n_positive=samples)
    assert [one.outcome for one in verdicts(same)] == ["equal"]


def test_gradients_that_add_to_one_set_what_they_take_from_another_are_said_of_each() -> None:
    sets = [
        *of_set("mnist", gain=SURE, by_gradients=(0.14, 0.02, 1e-9), caught=0.7),
        *of_set("noise", gain=SURE, by_gradients=LOST, caught=0.7),
    ]
    mean = [replace(each, dataset="far (mean)") for each in of_set("x", gain=SURE, by_gradients=UNDECIDED, caught=0.7)]
    said = answer([*sets, *mean]).sentences
    expected = "Gradients add 0.14 AUROC on mnist and are not shown to add anything on the far sets in the mean."
    assert expected in said


def test_doubts_leave_no_verdict() -> None:
    found = answer([*WRONG, *BAGS], doubts="the classes are in another order")
    assert found.sentences == ["No verdict: the classes are in another order."]
    assert (found.uses, found.next_command) == ((), None)


# AUROC, its interval, wrong ones among 1,000: how many times as many samples bring the end of the interval to 0.5
# (or to 0.6, below which a score is of no use), as its width goes with one over the root of the number.
WANTED = {
    "twice as wide as it may be": (0.7, 0.3, 0.9, 40, 4.0),
    "half as wide": (0.7, 0.6, 0.8, 40, 1.0),
    "of no use, not yet shown": (0.5, 0.3, 0.7, 40, 4.0),
    "few of a kind, however sure": (0.9, 0.8, 0.99, 5, 4.0),
    "no interval: 97 of the rarer kind": (None, None, None, 0, (0.98 / 0.1) ** 2 / 3),
}


@pytest.mark.parametrize(("value", "low", "high", "positive", "times"), WANTED.values(), ids=WANTED)
def test_how_many_samples_would_do(value, low, high, positive: int, times: float) -> None:
    area = replace(WRONG[0], value=value, low=low, high=high, n_positive=positive)
    assert samples_wanted(area) == pytest.approx(times)


def test_too_few_samples_are_no_verdict_and_say_how_many_would_do() -> None:
    unsure = of_set("in_dist.test", gain=UNDECIDED, by_gradients=UNDECIDED, caught=0.1, area=0.7, half=0.4,
                    task="misclassification", n_positive=20)  # fmt: skip
    found = answer(unsure)
    assert found.no_verdict is not None
    assert "20 wrong predictions among 1000 samples are too few; give about 4,000 labelled samples" in found.no_verdict
    assert found.next_command is None


WANTED_OF_BOTH = {  # OOD samples of 1,000, with an interval four times as wide as would tell: 16 times the rarer kind
    "few OOD samples": (10, 1000, "about 160 of bags."),
    "few of both": (10, 40, "about 160 of bags and about 480 in-distribution ones."),
    "as many of both": (20, 40, "about 320 of bags and about 320 in-distribution ones."),
    "few in-distribution samples": (990, 1000, "about 160 in-distribution ones."),
}


@pytest.mark.parametrize(("positive", "n", "wanted"), WANTED_OF_BOTH.values(), ids=WANTED_OF_BOTH)
def test_of_the_kind_that_is_rarer_more_are_wanted(positive: int, n: int, wanted: str) -> None:
    unsure = of_set("bags", gain=UNDECIDED, by_gradients=UNDECIDED, caught=0.1, area=0.6, half=0.4)
    found = answer([replace(each, n=n, n_positive=positive) for each in unsure])
    assert found.no_verdict is not None
    assert found.no_verdict.endswith(f"too few; give {wanted[:-1]}")


def test_as_many_as_there_are_are_wanted_where_no_more_would_be() -> None:
    """An interval that ends at chance, exactly: the next samples decide."""
    unsure = of_set("bags", gain=UNDECIDED, by_gradients=UNDECIDED, caught=0.1, area=0.75, half=0.25)
    assert str(answer(unsure).no_verdict).endswith(
        "200 OOD samples among 1000 samples are too few; give about 200 of bags"
    )


def test_samples_without_labels_are_why_there_is_no_verdict() -> None:
    unlabelled = [replace(each, value=None, low=None, high=None, n=0, n_positive=0) for each in WRONG]
    assert str(answer(unlabelled).no_verdict).startswith("the samples to report on have no labels")


def test_one_question_that_is_undecided_leaves_the_other() -> None:
    unsure = [replace(each, low=0.4) if each.metric == "auroc" and each.score == "chosen" else each for each in WRONG]
    found = answer([*unsure, *BAGS])
    assert (found.no_verdict, [each.task for each in found.uses]) == (None, ["ood"])
    assert found.sentences[-1].startswith(
        "No verdict on wrong predictions: 200 wrong predictions among 1000 samples are too"
    )


def test_the_next_command_can_be_pasted() -> None:
    assert bundle_command(Path("my runs/run"), has_code=True) == (
        "gradscore bundle 'my runs/run' --out 'my runs/scorer.gradscore' --trust-code"
    )
    assert bundle_command(Path.cwd() / "runs/a", has_code=False) == "gradscore bundle runs/a --out runs/a.gradscore"
    assert "/elsewhere/a" in bundle_command(Path("/elsewhere/a"), has_code=False)


def test_of_one_sample_no_fewer_are_wanted_than_of_six() -> None:
    """Three wrong ones cannot be expected among one or two samples."""
    wanted = [samples_wanted(replace(WRONG[0], n=n, n_positive=0, value=None)) * n for n in (1, 2, 6, 100)]
    assert wanted == pytest.approx([192.08, 192.08, 192.08, 3201.33], abs=0.01)
