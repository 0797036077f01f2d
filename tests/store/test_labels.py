"""Accuracies at chance, against what guesses do, and labels in another order than the network's classes."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import cli
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest, fisher_exact
from written_runs import rows_of, written_run

from gradscore.check import Policy, make_expected, write_expected
from gradscore.store import RunFolder, ShardRows, label_warnings, renaming_advice
from gradscore.store.labels import accuracy_in_another_order, agreement_of, is_at_chance


def network(generator: np.random.Generator, labels: np.ndarray, *, classes: int, accuracy: float) -> np.ndarray:
    """Predictions that are right so often, and else any other class."""
    other = (labels + generator.integers(1, classes, size=len(labels))) % classes
    return np.where(generator.random(len(labels)) < accuracy, labels, other)


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "count"), [(2, 50), (2, 1000), (10, 50), (10, 500)])
def test_guesses_are_at_chance(classes: int, count: int) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(count) % classes
    found = [is_at_chance(labels, generator.integers(0, classes, count), classes=classes) for _ in range(400)]
    assert np.mean(found) > 0.95


# Accuracies that guesses reach less than once in five hundred times.
BETTER = [(2, 50, 37), (2, 1000, 560), (10, 500, 75)]


@pytest.mark.parametrize(("classes", "count", "right"), BETTER)
def test_what_guesses_do_not_reach_is_none(classes: int, count: int, right: int) -> None:
    assert binomtest(right, count, 1 / classes, alternative="greater").pvalue < 1 / 500
    labels = np.arange(count) % classes
    # Right ones in every class, and the wrong ones spread over all others.
    others = (labels + 1 + np.arange(count) // classes % (classes - 1)) % classes
    predictions = np.where(np.arange(count) % count < right, labels, others)
    predictions, labels = (values[np.random.default_rng(0).permutation(count)] for values in (predictions, labels))
    assert (predictions == labels).sum() == right
    assert not is_at_chance(labels, predictions, classes=classes)


def test_chance_is_what_predictions_as_often_of_each_class_would_reach() -> None:
    """Two classes, 15 and 85 %, agree in three of four samples by chance; of two, Fisher's exact test tells."""
    generator = np.random.default_rng(1)
    for _ in range(20):
        labels = (generator.random(800) < 0.15).astype(int)
        predictions = generator.permutation(labels)
        table = [[int(((labels == i) & (predictions == j)).sum()) for j in (0, 1)] for i in (0, 1)]
        p = fisher_exact(table, alternative="greater").pvalue
        if p > 0.05 or p < 0.01:
            assert is_at_chance(labels, predictions, classes=2) == (p > 0.05)


@pytest.mark.parametrize(
    ("count", "rare", "found", "alarms"), [(2000, 20, 8, 40), (1000, 10, 10, 80), (5000, 50, 7, 0)]
)
def test_a_network_that_finds_a_rare_class_is_not_at_chance(count: int, rare: int, found: int, alarms: int) -> None:
    labels, predictions = np.arange(count) < rare, np.zeros(count, dtype=int)
    predictions[:found] = 1
    predictions[rare : rare + alarms] = 1
    assert not is_at_chance(labels.astype(int), predictions, classes=2)


@pytest.mark.slow
def test_chance_is_told_as_often_as_meant_and_weak_networks_are_not_called_so() -> None:
    generator, rates = np.random.default_rng(6), []
    for classes, count, accuracy, shares in (
        (10, 60, 0.4, [0.1] * 10),
        (2, 60, 0.65, [0.5, 0.5]),
        (3, 300, 0.6, [0.9, 0.05, 0.05]),
    ):
        found, permuted = [], []
        for _ in range(100):
            labels = generator.choice(classes, size=count, p=shares)
            predictions = network(generator, labels, classes=classes, accuracy=accuracy)
            found.append(is_at_chance(labels, predictions, classes=classes))
            permuted.append(is_at_chance(generator.permutation(labels), predictions, classes=classes))
        assert np.mean(permuted) >= 0.92
        rates.append(np.mean(found))
    assert rates[0] <= 0.02
    assert rates[1] <= 0.5  # the binomial test of it has 0.45
    assert rates[2] <= 0.05


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        (np.arange(200) % 10 // 9, np.zeros(200, int)),  # answers one class only
        (np.zeros(200, int), np.arange(200) % 10 // 9),  # data of one class
        ((np.arange(200) < 3).astype(int), (np.arange(200) == 7).astype(int)),  # none of three, one false alarm
    ],
)
def test_what_cannot_be_tested_is_compared_with_guesses_among_all_classes(
    labels: np.ndarray, predictions: np.ndarray
) -> None:
    assert not is_at_chance(labels, predictions, classes=2)
    assert is_at_chance(labels, 1 - predictions, classes=2)


def test_permuted_labels_are_told_although_one_class_kept_its_place() -> None:
    """One of ten classes kept its place and has a few more samples: right in 15 %, which guesses seldom are."""
    labels = np.concatenate([np.arange(500) % 10, np.zeros(30, np.int64)])
    predictions = np.array([0, 2, 3, 4, 5, 6, 7, 8, 9, 1])[labels]
    assert binomtest(80, 530, 0.1, alternative="greater").pvalue < 1 / 1000
    assert (labels == predictions).sum() == 80
    assert not is_at_chance(labels, predictions, classes=10)
    assert accuracy_in_another_order(labels, predictions, classes=10) == 1.0


@pytest.mark.parametrize(
    ("classes", "count", "accuracy"), [(2, 100, 0.95), (3, 60, 0.7), (100, 400, 0.7), (100, 2000, 0.95)]
)
def test_permuted_labels_are_told(classes: int, count: int, accuracy: float) -> None:
    generator = np.random.default_rng(2)
    truth = np.arange(count) % classes
    predictions = network(generator, truth, classes=classes, accuracy=accuracy)
    found = accuracy_in_another_order((truth + 1) % classes, predictions, classes=classes)
    assert found == pytest.approx((truth == predictions).mean(), abs=0.2)


def test_two_of_ten_classes_that_are_exchanged_are_told_where_the_same_samples_are_compared() -> None:
    generator = np.random.default_rng(5)
    truth = np.arange(600) % 10
    predictions = network(generator, truth, classes=10, accuracy=0.95)
    labels = np.array([1, 0, *range(2, 10)])[truth]
    assert accuracy_in_another_order(labels, predictions, classes=10) is None  # not twice as good
    found = accuracy_in_another_order(labels, predictions, classes=10, significantly=True)
    assert found == (truth == predictions).mean()


@pytest.mark.parametrize(("each", "is_seen"), [(8, True), (7, True), (5, False)])
def test_small_classes_that_are_exchanged_are_told_from_fourteen_samples_on(each: int, is_seen: bool) -> None:
    truth = np.repeat(np.arange(10), each)
    labels = np.array([1, 0, *range(2, 10)])[truth]
    found = accuracy_in_another_order(labels, truth, classes=10, significantly=True)
    assert found == (1.0 if is_seen else None)


def biased(generator: np.random.Generator, labels: np.ndarray, recalls: list[float]) -> np.ndarray:
    """Predictions that are right so often in each class, and else the first class."""
    return np.where(generator.random(len(labels)) < np.array(recalls)[labels], labels, 0)


def balanced(generator: np.random.Generator, classes: int, count: int, accuracy: float) -> tuple:
    labels = np.arange(count) % classes
    return labels, network(generator, labels, classes=classes, accuracy=accuracy)


def rare(generator: np.random.Generator, shares: list[float], recalls: list[float], count: int) -> tuple:
    labels = generator.choice(len(shares), size=count, p=shares)
    return labels, biased(generator, labels, recalls)


HEALTHY = {
    "two samples a class": (100, lambda generator: balanced(generator, 100, 200, 0.6)),
    "a thousand classes": (1000, lambda generator: balanced(generator, 1000, 1000, 0.3)),
    "weak": (10, lambda generator: balanced(generator, 10, 2000, 0.2)),
    "rare classes of three": (3, lambda generator: rare(generator, [0.6, 0.25, 0.15], [0.9, 0.4, 0.3], 300)),
    "one class for everything": (
        10,
        lambda generator: rare(generator, [0.61, *[0.39 / 9] * 9], [1.0, *[0.0] * 9], 400),
    ),
}


@pytest.mark.parametrize("significantly", [False, True])
@pytest.mark.parametrize(("classes", "draw"), HEALTHY.values(), ids=HEALTHY)
def test_no_other_order_is_seen_where_there_is_none(
    classes: int, draw: Callable[..., tuple], significantly: bool
) -> None:
    generator = np.random.default_rng(3)
    drawn = [draw(generator) for _ in range(20)]
    found = [accuracy_in_another_order(*pair, classes=classes, significantly=significantly) for pair in drawn]
    assert found == [None] * 20


ONE_CLASS = {
    "of a weak network": ([18, 38, 4], None),
    "the network never finds": ([0, 55, 5], 55 / 60),
}


@pytest.mark.parametrize(("counts", "expected"), ONE_CLASS.values(), ids=ONE_CLASS)
def test_data_of_one_class_are_in_another_order_if_it_is_never_predicted(counts: list, expected: float | None) -> None:
    """Most of its errors are in one class, whose own samples nobody sees."""
    labels, predictions = np.zeros(60, dtype=int), np.repeat([0, 7, 3], counts)
    assert accuracy_in_another_order(labels, predictions, classes=10) == expected


def test_two_of_ten_classes_of_a_weak_network_are_in_no_other_order() -> None:
    labels = np.arange(120) % 2
    predictions = np.where(np.random.default_rng(0).random(120) < 0.3, labels, labels + 6)
    assert accuracy_in_another_order(labels, predictions, classes=10) is None
    assert accuracy_in_another_order(labels, predictions, classes=10, significantly=True) is None
    assert accuracy_in_another_order(labels, labels + 6, classes=10) == 1.0


@pytest.mark.parametrize("shares", [[1.0, 0.0], [0.93, 0.07]])
def test_a_rare_class_answered_for_everything_is_no_other_order(shares: list) -> None:
    """Renamed it would be right as often as the common class, which tells nothing of the order."""
    generator = np.random.default_rng(0)
    labels = (generator.random(800) < 0.15).astype(int)
    predictions = 1 - generator.permutation((np.arange(800) >= 800 * shares[0]).astype(int))
    assert accuracy_in_another_order(labels, predictions, classes=2) is None
    assert is_at_chance(labels, predictions, classes=2)


def test_guesses_are_right_in_no_order() -> None:
    generator = np.random.default_rng(4)
    for classes, count in ((2, 50), (10, 50), (10, 1000), (100, 300)):
        labels = np.arange(count) % classes
        drawn = [generator.integers(0, classes, count) for _ in range(50)]
        found = [accuracy_in_another_order(labels, each, classes=classes) for each in drawn]
        assert sum(each is not None for each in found) <= 1


CLASSES = 5


def write_run(
    folder: Path,
    right: dict[str, float],
    *,
    confidence: float = 0.9,
    size: int = 200,
    notices: Sequence[str] = (),
    spread: bool = False,
    constant: bool = False,
) -> RunFolder:
    """A run whose network is right on a share of the samples of each split, with one mean confidence.

    Where it is wrong the label is the class after the predicted one, or any other if they are spread; a constant one
    predicts class 2.
    """
    # Softmax of one logit z among zeros: e^z / (e^z + 4).
    logit = np.log((CLASSES - 1) * confidence / (1 - confidence))

    def rows(split: str) -> ShardRows:
        generator = np.random.default_rng(list(split.encode()))
        predictions = np.arange(size) % CLASSES
        wrong = np.arange(size) >= round(right.get(split, 1.0) * size)
        away = 1 + np.arange(size) // CLASSES % (CLASSES - 1) if spread else 1
        labels = np.where(wrong, (predictions + away) % CLASSES, predictions)
        predictions = np.full(size, 2) if constant else predictions
        gradients = generator.lognormal(size=(size, 1))
        return rows_of(
            split,
            [*(f"logit_{place}" for place in range(CLASSES)), "uniform/fc.weight/l1"],
            np.concatenate([np.eye(CLASSES)[predictions] * logit, gradients], axis=1),
            labels=np.full(size, -1) if split.startswith("ood") else labels,
            predictions=predictions,
        )

    return written_run(
        folder,
        rows,
        classes=CLASSES,
        ood=[{"name": "far"}],
        notices=notices,
        meta={"cv_folds": 2, "Cs": [0.01]},
        evaluate={"near_duplicates": "ignore", "protocols": ["in_dist_only"]},
    )


DOUBTED = {
    "one split": (
        {"in_dist.fit": 0.2, "in_dist.test": 1.0},
        0.9,
        "accuracy is 0.20 on in_dist.fit and 1.00 on in_dist",
    ),
    "most in another order": (
        {"in_dist.fit": 0.21, "in_dist.test": 0.22},
        0.4,
        "accuracy is 0.21 on in_dist.fit and 0.22 on in_dist.test, and would be 0.79 and 0.78 with the classes",
    ),
    "sure and wrong": (
        {"in_dist.fit": 0.5, "in_dist.test": 0.5},
        0.9,
        "0.50 on in_dist.fit and 0.50 on in_dist.test, and the network's mean confidence there is 0.90 and 0.90",
    ),
}


@pytest.mark.parametrize(("right", "confidence", "expected"), DOUBTED.values(), ids=DOUBTED)
def test_doubtful_labels_are_warned_of(tmp_path: Path, right: dict, confidence: float, expected: str) -> None:
    (line,) = label_warnings(write_run(tmp_path / "run", right, confidence=confidence))
    assert expected in line
    assert line.endswith("run gradscore doctor CONFIG") or "set label_map" in line


def test_guesses_are_called_so_and_no_other_order_is_blamed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"in_dist.fit": 0.21, "in_dist.test": 0.22}, confidence=0.4, spread=True)
    (line,) = label_warnings(run)
    assert line.startswith("accuracy is 0.21 on in_dist.fit and 0.22 on in_dist.test, which is chance: weights,")
    assert "or it tells these classes no better than so many samples can show" in line
    assert "another order" not in line


def test_a_network_that_predicts_one_class_is_called_so(tmp_path: Path) -> None:
    (line,) = label_warnings(write_run(tmp_path / "run", {}, size=20, constant=True))
    assert line.startswith(
        "accuracy is 0.20 on in_dist.fit and 0.20 on in_dist.test, as the network predicts class 2 for every sample: "
    )
    assert label_warnings(write_run(tmp_path / "few", {}, size=19, constant=True)) == []


def test_splits_of_which_different_things_are_to_be_said_have_a_sentence_each(tmp_path: Path) -> None:
    (line,) = label_warnings(write_run(tmp_path / "run", {"in_dist.fit": 0.21, "in_dist.test": 0.5}))
    assert "; accuracy is 0.21 on in_dist.fit, and would be 0.79 with the classes in another order; accuracy" in line
    assert "; accuracy is 0.50 on in_dist.test, and the network's mean confidence there is 0.90: " in line


DOUBTS = {
    "twice as often": (0.3, [1, 2, 3, 4, 5, 0], "order", True),
    "two classes exchanged": (1.0, [1, 0, 2, 3, 4, 5], "order", False),
    "chance": (1 / 6, [0, 1, 2, 3, 4, 5], "chance", True),
    "too sure": (0.5, [0, 1, 2, 3, 4, 5], "confidence", False),
}


@pytest.mark.parametrize(("accuracy", "order", "cause", "is_severe"), DOUBTS.values(), ids=DOUBTS)
def test_a_doubt_is_worded_for_all_who_have_it(accuracy: float, order: list, cause: str, is_severe: bool) -> None:
    """`doctor` takes severe ones for problems and others for warnings."""
    truth = np.arange(600) % 6
    predictions = network(np.random.default_rng(0), truth, classes=6, accuracy=accuracy)
    doubt = agreement_of(np.array(order)[truth], predictions, classes=6).doubt(0.95)
    assert doubt is not None
    assert (doubt.cause, doubt.is_severe) == (cause, is_severe)
    said = {
        "order": f", and would be {(truth == predictions).mean():.3f} with the classes in another order",
        "chance": ", which is chance",
        "confidence": ", and the network's mean confidence there is 0.950",
    }
    assert doubt.after(doubt.number, digits=3) == said[cause]


REPAIRED = {
    "both alike": (
        {"in_dist.fit": 0.0, "in_dist.test": 0.0},
        r"set label_map to \{0: 4, 1: 0, 2: 1, 3: 2, 4: 3\} in data\.in_dist\.fit, data\.in_dist\.test and every other "
        "set with these labels, in place of any there is",
    ),
    "one alone": (
        {"in_dist.fit": 1.0, "in_dist.test": 0.0},
        r"set label_map to \{0: 4, 1: 0, 2: 1, 3: 2, 4: 3\} in data\.in_dist\.test; figures",
    ),
}


@pytest.mark.parametrize(("right", "expected"), REPAIRED.values(), ids=REPAIRED)
def test_the_map_that_repairs_it_is_named(tmp_path: Path, right: dict, expected: str) -> None:
    """A label is the class after the predicted one."""
    (line,) = label_warnings(write_run(tmp_path / "run", right))
    assert re.search(expected, line), line


def test_a_network_that_is_too_sure_of_classes_in_order_is_called_so(tmp_path: Path) -> None:
    (line,) = label_warnings(write_run(tmp_path / "run", {"in_dist.fit": 0.55, "in_dist.test": 0.55}))
    assert "on in_dist.fit and 0.55 on in_dist.test, and the network's mean confidence there is 0.90 and 0.90" in line
    assert (
        "far surer than it is right: it is overfitted, or the data or their preprocessing are not those of its training"
        in line
    )
    assert "another order" not in line


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "count", "accuracy"), [(1000, 256, 0.4), (1000, 256, 0.9), (100, 60, 0.3)])
def test_no_renaming_is_advised_that_held_out_samples_do_not_support(classes: int, count: int, accuracy: float) -> None:
    """Of many classes with few samples some renaming gets nearly all of them right."""
    generator = np.random.default_rng(0)
    for _ in range(10):
        labels = generator.integers(0, classes, count)
        predictions = np.where(generator.random(count) < accuracy, labels, generator.integers(0, classes, count))
        for least in (0.8, 0.0):
            assert renaming_advice(labels, predictions, classes=classes, least=least) == ""


def test_a_class_with_too_few_samples_is_named_as_one_to_check() -> None:
    labels = np.concatenate([np.arange(60) % 3, [3]])
    advice = renaming_advice(labels, np.array([1, 2, 0, 4])[labels], classes=5)
    assert "{0: 1, 1: 2, 2: 0, 3: 3, 4: 4} (no input, or too few, had label 3, 4, so check" in advice


def test_an_empty_map_is_advised_in_full() -> None:
    labels = np.arange(60) % 3
    advice = renaming_advice(labels, (labels + 1) % 3, classes=3, label_map={})
    assert "set label_map to {0: 1, 1: 2, 2: 0}" in advice


def test_labels_that_stay_have_entries_too() -> None:
    labels = np.arange(60) % 3
    named = renaming_advice(
        labels, np.array([1, 0, 2])[labels], classes=3, label_map={"cat": 0, "dog": 1, "yak": 2}, are_names=True
    )
    assert "set data.class_names to [dog, cat, yak], or set label_map to {cat: 1, dog: 0, yak: 2}" in named
    assert "{0: 1, 1: 0, 2: 2}" in renaming_advice(labels, np.array([1, 0, 2])[labels], classes=3)


def test_an_order_alone_is_advised_where_numbers_are_names() -> None:
    labels = np.arange(60) % 3
    names = {"0": 0, "10": 1, "1": 2}
    advice = renaming_advice(labels, np.array([0, 2, 1])[labels], classes=3, label_map=names, are_names=True)
    assert advice == "the classes are named otherwise: set data.class_names to ['0', '1', '10']"


def test_names_of_an_advised_order_are_read_as_they_are() -> None:
    labels = np.arange(80) % 4
    names = ["zebra, plains", "1e5", "no", "a: b]"]
    advice = renaming_advice(
        labels,
        np.array([1, 0, 3, 2])[labels],
        classes=4,
        label_map=dict(zip(names, range(4), strict=True)),
        are_names=True,
    )
    order, pairs = re.fullmatch(r".*data\.class_names to (\[.*\]), or set label_map to (\{.*\})", advice).groups()
    assert yaml.safe_load(order) == ["1e5", "zebra, plains", "a: b]", "no"]
    assert yaml.safe_load(pairs) == {"zebra, plains": 1, "1e5": 0, "no": 3, "a: b]": 2}


def test_a_gap_alone_has_several_causes(tmp_path: Path) -> None:
    (line,) = label_warnings(write_run(tmp_path / "run", {"in_dist.fit": 0.95, "in_dist.test": 0.75}))
    assert "the network was trained on in_dist.fit, or in_dist.test is made of other samples" in line


def test_a_network_that_may_have_random_weights_is_called_so(tmp_path: Path) -> None:
    notice = (
        "model.checkpoint is null: the weights come from the model's own code"
        " (random with seed 0, unless it loads some)"
    )
    run = write_run(tmp_path / "run", {"in_dist.fit": 0.21, "in_dist.test": 0.22}, notices=[notice])
    (line,) = label_warnings(run)
    assert ": figures mean nothing if the network was not trained (model.checkpoint is null); else " in line


# With 200 samples each, 0.80 and 0.95 have z = 4.54 (p = 6e-6), 0.80 and 0.97 have z = 5.33 (p = 1e-7).
TRUSTED = {
    "right": ({"in_dist.fit": 1.0, "in_dist.test": 0.95}, 0.9, 200),
    "a gap that chance explains": ({"in_dist.fit": 0.80, "in_dist.test": 0.95}, 0.9, 200),
    "a small gap of many": ({"in_dist.fit": 0.9, "in_dist.test": 0.995}, 0.9, 2000),
    "a weak network that knows it": ({"in_dist.fit": 0.5, "in_dist.test": 0.5}, 0.6, 200),
    "too few to tell": ({"in_dist.fit": 0.2, "in_dist.test": 0.4}, 0.9, 20),
}


@pytest.mark.parametrize(("right", "confidence", "size"), TRUSTED.values(), ids=TRUSTED)
def test_others_are_not(tmp_path: Path, right: dict, confidence: float, size: int) -> None:
    assert label_warnings(write_run(tmp_path / "run", right, confidence=confidence, size=size)) == []


def test_a_gap_beyond_chance_is_warned_of(tmp_path: Path) -> None:
    assert label_warnings(write_run(tmp_path / "run", {"in_dist.fit": 0.80, "in_dist.test": 0.97}))


def test_commands_say_it_before_anything_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"in_dist.fit": 0.2, "in_dist.test": 0.9})
    for command, code, level in (("fit-meta", 0, "warning"), ("evaluate", 3, "No verdict")):
        result = cli(command, tmp_path / "run")
        assert result.exit_code == code, result.output
        assert result.stdout.startswith(f"{level}: accuracy is 0.20 on in_dist.fit and 0.90 on in_dist.test")
    page = (tmp_path / "run" / "evaluation" / "report.html").read_text()
    first, _, rest = page.partition('id="answer"')
    assert "<li>accuracy is 0.20 on in_dist.fit" in first.partition('id="warnings"')[2]
    assert rest.partition("<p>")[2].startswith("No verdict: accuracy is 0.20 on in_dist.fit")
    assert 'id="sets"' not in page


def test_without_a_verdict_a_program_gets_none_either(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"in_dist.fit": 0.21, "in_dist.test": 0.22}, spread=True)
    cli("fit-meta", tmp_path / "run")
    found = json.loads(cli("evaluate", tmp_path / "run", "--json").stdout)
    assert found["verdicts"] == []
    assert found["no_verdict"].startswith("accuracy is 0.21 on in_dist.fit and 0.22 on in_dist.test, which is chance")


def test_a_run_in_another_order_of_classes_says_the_map_first_and_ends_with_3(doubted: Path) -> None:
    result = cli("evaluate", doubted)
    first = result.stdout.splitlines()[0]
    assert result.exit_code == 3, result.output
    assert first.startswith("No verdict: accuracy is 0.06 on in_dist.fit")
    assert "say with data.class_names, or label_map in every labelled set of data, which is which" in first


def test_a_command_that_makes_such_a_run_stops_after_its_first_split(small_run: Path, tmp_path: Path) -> None:
    shutil.copytree(small_run.parent, tmp_path / "all", ignore=shutil.ignore_patterns("run*"))
    other_order(tmp_path / "all")
    config = yaml.safe_load((small_run / "config.yaml").read_text())
    config["model"]["checkpoint"] = str(tmp_path / "all" / "net.safetensors")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["run", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run"), "--trust-code"]
    result = cli(*command)
    assert result.exit_code == 3, result.output
    assert RunFolder(tmp_path / "run").sizes.keys() == {"in_dist.fit"}
    (advised,) = re.findall(r"--set (\S+)$", result.stderr.strip())
    assert cli(*command, "--set", advised).exit_code == 3  # there is still no verdict
    assert {"in_dist.fit", "in_dist.test"} < RunFolder(tmp_path / "run").sizes.keys()


def other_order(folder: Path) -> None:
    """Makes the network call all classes but the last one by the name of the next of them."""
    weights = load_file(folder / "net.safetensors")
    order = [8, *range(8), 9]
    moved = {name: weights[name][order] for name in ("3.weight", "3.bias")}
    save_file(weights | moved, folder / "net.safetensors")


@pytest.fixture(scope="module")
def doubted(make_run) -> Path:
    """An evaluated run whose labels are in another order than the classes of its network."""
    return make_run(damage=other_order)


COMMANDS = {
    "check": ["check", "RUN", "--expected", "known.json"],
    "bundle": ["bundle", "RUN", "--alpha", "0.5", "--trust-code"],
    "compare": ["compare", "RUN", "OTHER"],
    "compare with": ["compare", "OTHER", "RUN"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_that_build_on_a_run_say_it_too(
    doubted: Path, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_expected(Path("known.json"), make_expected(RunFolder(doubted), Policy()))
    places = {"RUN": str(doubted), "OTHER": str(small_run)}
    result = cli(*(places.get(word, word) for word in command), "-q")
    assert result.exit_code in (0, 3), result.output
    (warned,) = label_warnings(RunFolder(doubted))
    assert "figures that depend on labels mean nothing" in warned
    assert [line for line in result.stderr.splitlines() if "running" not in line] == [
        f"warning: {f'{doubted}: ' if 'compare' in command else ''}{warned}"
    ]


def test_nothing_is_said_of_a_run_that_nobody_doubts(small_run: Path, tmp_path: Path) -> None:
    result = cli("check", small_run, "--expected", tmp_path / "new.json", "--update")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_program_that_compares_gets_it_as_well(doubted: Path, small_run: Path) -> None:
    result = cli("compare", small_run, doubted, "--json")
    assert json.loads(result.stdout)["warnings"] == [f"{doubted}: {label_warnings(RunFolder(doubted))[0]}"]
