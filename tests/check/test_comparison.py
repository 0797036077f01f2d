"""A run against expected figures: itself, harmless changes and damage, and what machines read of it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from written_runs import rows_of, written_run

from gradscore.check.comparison import ROUNDING, CheckReport, CheckTest, check_run, to_junit
from gradscore.check.expected import (
    ExpectedFigures,
    Policy,
    SplitScores,
    expected_of,
    make_expected,
    read_expected,
    write_expected,
)
from gradscore.errors import ExpectedFiguresError, StoreError
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.evaluation.score_tables import read_scores
from gradscore.store import RunFolder, ShardRows
from gradscore.system import FloatArray
from gradscore_cli.check import cells_of

LOOSE = Policy(accuracy=0.1, auroc=0.2, false_alarm=0.1, detection=0.4)


@pytest.fixture(scope="module")
def expected(small_run: Path) -> ExpectedFigures:
    return make_expected(RunFolder(small_run), LOOSE)


def statuses(report: CheckReport) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in report.tests}


def test_a_run_passes_against_itself(small_run, expected) -> None:
    report = check_run(RunFolder(small_run), expected)
    assert {outcome.status for outcome in report.tests} == {"pass"}
    assert set(statuses(report)) == {
        "accuracy of the classifier",
        "AUROC for wrong predictions",
        "false alarms for wrong predictions",
        "detection of wrong predictions",
        "AUROC for ood.noise",
        "false alarms for OOD samples",
        "detection of ood.noise",
        "features of samples that were kept",
    }
    assert (report.exit_code, report.notices) == (0, [])


def test_copies_that_are_not_compared_are_counted(tmp_path) -> None:
    """Three of the test samples are copies there, two are OOD samples as well, and four are in the fit."""
    copies = {"in_dist.test": [*range(57), 0, 0, 1], "ood.a": [*range(58), 100, 101], "in_dist.fit": range(60)}
    names = {
        "in_dist.test": dict(zip((20, 21, 30, 31, 32, 33), ("x", "y", "f0", "f1", "f2", "f3"), strict=True)),
        "ood.a": {100: "x", 101: "y"},
        "in_dist.fit": {place: f"f{place}" for place in range(4)},
    }

    def rows(split: str) -> ShardRows:
        generator = np.random.default_rng([*split.encode()])
        wrong = np.arange(60) % 5 == 0
        contents = [names[split].get(place, f"{split}-{place}") for place in copies[split]]
        values = generator.normal(0.0, 1.0, (60, 2)) + np.array([3.0, 0.0]) * (split != "ood.a")
        labels = np.full(60, -1) if split == "ood.a" else wrong.astype(np.int64)
        predictions = np.zeros(60, dtype=np.int64)
        columns = ["logit_0", "logit_1"]
        return rows_of(
            split, columns, values, labels=labels, predictions=predictions, content_hashes=[*map(hashed, contents)]
        )

    run = written_run(
        tmp_path / "run",
        rows,
        ood=[{"name": "a"}],
        meta={"cv_folds": 2, "Cs": [0.01]},
        evaluate={"near_duplicates": "ignore"},
    )
    fit_run(run)
    evaluate_run(run)
    report = check_run(run, make_expected(run, LOOSE, sources="left out"), sources="left out")
    assert [line for line in report.notices if "duplicates" in line] == [
        "duplicates: in_dist.test: 3 of 60 samples are copies of others in it, and each is compared once",
        "duplicates: 4 samples are both in in_dist.fit and in in_dist.test; left out where they would fit",
        "duplicates: 2 samples are both in in_dist.test and in ood.a; left out of ood.a",
    ]
    assert [
        line for line in report.notices if line.startswith("of in_dist.test 12 are predicted wrong: with fewer than")
    ]


def test_samples_that_lost_their_labels_are_said_to_have(tmp_path) -> None:
    def run(name: str, lost: int) -> RunFolder:
        def rows(split: str) -> ShardRows:
            generator = np.random.default_rng([*split.encode()])
            values = generator.normal(0.0, 1.0, (60, 2)) + np.array([3.0, 0.0])
            labels = np.where(np.arange(60) < lost * (split == "in_dist.test"), -1, np.arange(60) % 5 == 0)
            hashes = [hashed(f"{split}-{place}") for place in range(60)]
            predictions = np.zeros(60, dtype=np.int64)
            return rows_of(
                split, ["logit_0", "logit_1"], values, labels=labels, predictions=predictions, content_hashes=hashes
            )

        made = written_run(tmp_path / name, rows, meta={"cv_folds": 2, "Cs": [0.01]})
        fit_run(made)
        evaluate_run(made)
        return made

    expected = make_expected(run("before", 0), LOOSE, sources="left out")
    with pytest.raises(ExpectedFiguresError, match=r"in_dist.test: 7 of the 60 samples .* have no label any more"):
        check_run(run("now", 7), expected, sources="left out")


def test_an_ood_set_on_which_nothing_is_compared_is_named(tmp_path) -> None:
    def rows(split: str) -> ShardRows:
        size = 1 if split == "ood.rare" else 60
        values = np.random.default_rng([*split.encode()]).normal(0.0, 1.0, (size, 2)) + np.array([3.0, 0.0])
        hashes = [hashed(f"{split}-{place}") for place in range(size)]
        labels, predictions = np.int64(np.arange(size) % 5 == 0), np.zeros(size, dtype=np.int64)
        return rows_of(
            split, ["logit_0", "logit_1"], values, labels=labels, predictions=predictions, content_hashes=hashes
        )

    run = written_run(tmp_path / "run", rows, ood=[{"name": "rare"}], meta={"cv_folds": 2, "Cs": [0.01]})
    fit_run(run)
    evaluate_run(run)
    expected = make_expected(run, LOOSE, sources="left out")
    said = "nothing is compared on ood.rare: the evaluation has no OOD scores there, and says why"
    assert said in expected.notices
    assert said in check_run(run, expected, sources="left out").notices


def hashed(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def test_a_bound_that_is_rounded_to_nothing_has_no_minus(small_run, expected) -> None:
    first = check_run(RunFolder(small_run), expected).tests[0]
    assert cells_of(replace(first, low=-1e-6, high=-0.0))[2] == "+0.0000 to +0.0000"


def test_figures_are_compared_by_the_score_they_are_of(small_run, expected) -> None:
    run, by = RunFolder(small_run), {"wrong": "energy", "ood": "entropy"}
    before = expected_of(run, run.read("in_dist.test"), policy=LOOSE, protocol=expected.protocol, scored_by=by)
    scores = read_scores(run)
    energy = scores[scores["task"] == "misclassification"].set_index("content_hash")["energy"]
    kept = before.splits["in_dist.test"].frame()["wrong"]
    assert np.allclose(kept, energy[[name for name in energy.index if name[:12] in kept.index]].sort_index())
    report = check_run(run, before)
    assert report.status == "pass"
    assert [line for line in report.notices if "--update" in line] == [
        f"{words}: the expected figures are of score '{by[target]}', which is compared, and the run now chooses "
        f"'{expected.scored_by[target]}'; where that is meant, --update makes figures of it"
        for target, words in (("wrong", "wrong predictions"), ("ood", "OOD samples"))
    ]
    assert report.current == expected


def without_labels_from(place: int, expected: ExpectedFigures) -> ExpectedFigures:
    """The expected figures with a test split whose samples from `place` on have no label."""
    test = expected.splits["in_dist.test"]
    hidden = test.model_copy(update={"correct": test.correct[:place] + "-" * (len(test.correct) - place)})
    return expected.model_copy(update={"splits": {**expected.splits, "in_dist.test": hidden}})


@pytest.mark.parametrize("place", [0, 30])
def test_a_sample_without_a_label_is_neither_right_nor_wrong(small_run, expected, place) -> None:
    known = [mark == "1" for mark in expected.splits["in_dist.test"].correct[:place]]
    report = check_run(RunFolder(small_run), without_labels_from(place, expected))
    [outcome] = [outcome for outcome in report.tests if outcome.metric == "accuracy"]
    assert outcome.n == place
    assert outcome.before == outcome.now == (np.mean(known) if known else None)


def test_the_expected_holds_what_the_evaluation_found(small_run, expected) -> None:
    table = read_scores(RunFolder(small_run))
    wrong = table[table["task"] == "misclassification"].set_index("content_hash")[expected.scored_by["wrong"]]
    frame = expected.splits["in_dist.test"].frame()
    assert len(frame) == wrong.index.nunique()
    by_hash = {name[:12]: value for name, value in wrong.items()}
    assert frame["wrong"].tolist() == pytest.approx([by_hash[name] for name in frame.index], rel=1e-6)
    ordinary = frame.loc[frame["correct"] == 1, "wrong"]
    assert (ordinary > expected.thresholds["wrong"]).mean() <= 0.05


def other_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "net.safetensors")
        change(weights)
        save_file(weights, folder / "net.safetensors")

    return damage


DAMAGES = {
    "weights perturbed": (
        {"damage": other_weights(lambda weights: weights.update({"0.weight": weights["0.weight"].flip(0, 3) * 3}))},
        "accuracy of the classifier",
    ),
    "classes permuted": (
        {"damage": other_weights(lambda weights: weights.update({"3.weight": weights["3.weight"].roll(1, 0)}))},
        "accuracy of the classifier",
    ),
    "a layer re-initialised": ({"steps": 0}, "accuracy of the classifier"),
}


@pytest.mark.parametrize(("options", "outcome"), DAMAGES.values(), ids=DAMAGES)
def test_damage_fails(make_run, expected, options: dict, outcome: str) -> None:
    report = check_run(RunFolder(make_run(**options)), expected)
    assert statuses(report)[outcome] == "fail"
    assert statuses(report)["features of samples that were kept"] == "info"
    assert report.exit_code == 1
    assert "weights_sha256 changed" in " ".join(report.notices)


def test_features_of_the_same_weights_must_not_move(small_run, expected) -> None:
    column = "uniform/3.weight/l2"
    moved = {**expected.probe.columns, column: [1.01 * value for value in expected.probe.columns[column]]}
    report = check_run(
        RunFolder(small_run),
        expected.model_copy(update={"probe": expected.probe.model_copy(update={"columns": moved})}),
    )
    outcome = report.tests[-1]
    assert (outcome.status, outcome.n) == ("fail", 8)
    assert "most of all the l2 of layer 3.weight, loss uniform (0.0099)" in outcome.message


def test_other_features_alone_are_not_worse(small_run, expected) -> None:
    renamed = {f"x{name}" if "/" in name else name: values for name, values in expected.probe.columns.items()}
    held = expected.model_copy(update={"probe": expected.probe.model_copy(update={"columns": renamed})})
    report = check_run(RunFolder(small_run), held)
    assert report.exit_code == 1
    assert report.verdict == "other features than expected: 1 of 8 tests fail"
    (problem,) = report.problems
    assert problem.endswith("; where other features are meant, add --update")


def test_another_batch_size_passes(make_run, expected) -> None:
    report = check_run(RunFolder(make_run(batch_size=75)), expected)
    assert report.status == "pass"


def of_another_model(expected: ExpectedFigures) -> ExpectedFigures:
    """The expected figures as of other weights, whose scores say the same."""
    return expected.model_copy(update={"model": {**expected.model, "weights_sha256": "0"}})


STRICT = Policy(accuracy=0.0, auroc=0.0, false_alarm=0.0, detection=0.0)


def test_a_margin_of_nothing_is_undecided(small_run, expected) -> None:
    report = check_run(RunFolder(small_run), of_another_model(expected), policy=STRICT)
    assert (report.status, report.exit_code) == ("undecided", 3)
    messages = " ".join(outcome.message for outcome in report.tests)
    assert "leave undecided whether" in messages
    assert "; the change for the better is from -" in messages


def test_what_did_not_change_passes_without_a_margin(small_run, expected) -> None:
    report = check_run(RunFolder(small_run), expected, policy=STRICT)
    assert report.exit_code == 0
    decided = [outcome for outcome in report.tests if outcome.metric != "feature"]
    assert {(outcome.method, outcome.low, outcome.high) for outcome in decided} == {("same model", 0.0, 0.0)}


def with_scores(expected: ExpectedFigures, change: Callable[[FloatArray], FloatArray]) -> ExpectedFigures:
    """The same model on another processor: its scores differ in their last digits."""
    splits = {
        name: split.model_copy(
            update={"scores": {target: change(np.array(each)).tolist() for target, each in split.scores.items()}}
        )
        for name, split in expected.splits.items()
    }
    return expected.model_copy(update={"splits": splits})


def test_rounding_is_no_change_of_a_model(small_run, expected) -> None:
    """A sample that set a threshold would lie on its other side, and few errors could not show that nothing fell."""
    rng = np.random.default_rng(0)
    moved = with_scores(expected, lambda each: each + 1e-5 * each.std() * rng.standard_normal(len(each)))
    report = check_run(RunFolder(small_run), moved, policy=STRICT)
    assert report.exit_code == 0
    decided = [outcome for outcome in report.tests if outcome.metric != "feature"]
    assert {(outcome.method, outcome.low, outcome.high) for outcome in decided} == {("same model", 0.0, 0.0)}


def test_scores_of_another_model_are_compared_however_near_they_are(small_run, expected) -> None:
    report = check_run(RunFolder(small_run), of_another_model(with_scores(expected, lambda each: each + 1e-6)))
    assert "same model" not in {outcome.method for outcome in report.tests}


def test_one_other_score_is_no_longer_the_same(small_run, expected) -> None:
    test = expected.splits["in_dist.test"]
    beyond = 1.5 * ROUNDING * np.std(test.scores["wrong"])
    scores = {**test.scores, "wrong": [test.scores["wrong"][0] + beyond, *test.scores["wrong"][1:]]}
    splits = {**expected.splits, "in_dist.test": test.model_copy(update={"scores": scores})}
    report = check_run(RunFolder(small_run), expected.model_copy(update={"splits": splits}))
    methods = {outcome.name: outcome.method for outcome in report.tests}
    assert methods["detection of wrong predictions"] == "paired rates"
    assert methods["detection of ood.noise"] == methods["accuracy of the classifier"] == "same model"


def outcome_of(report: CheckReport, name: str) -> CheckTest:
    return next(outcome for outcome in report.tests if outcome.name == name)


def test_detection_is_that_of_the_errors_of_each_model(small_run, expected) -> None:
    """The errors that are new are not detected: the errors that both models make say nothing of that."""
    test = expected.splits["in_dist.test"]
    now = test.frame()
    limit = float(now.loc[now["correct"] == 0, "wrong"].median())
    detected = now["wrong"] > limit
    was_wrong = (now["correct"] == 0) & detected
    before = test.model_copy(update={"correct": "".join("0" if wrong else "1" for wrong in was_wrong)})
    planted = of_another_model(expected).model_copy(
        update={"splits": {**expected.splits, "in_dist.test": before}, "thresholds": {"wrong": limit}}
    )
    report = check_run(RunFolder(small_run), planted, policy=Policy())
    outcome = outcome_of(report, "detection of wrong predictions")
    errors = now["correct"] == 0
    assert (outcome.before, outcome.now) == (1.0, pytest.approx(detected[errors].mean()))
    assert (outcome.n, outcome.method) == (errors.sum(), "rates of samples partly the same")
    assert (outcome.status, report.exit_code) == ("fail", 1)


def kept(expected: ExpectedFigures, split: str, part: slice) -> ExpectedFigures:
    """The expected figures with a part of the samples of a split."""
    parts = {
        name: {key: values[part] for key, values in old.items()} if name == "scores" else old[part]
        for name, old in expected.splits[split].model_dump().items()
    }
    return expected.model_copy(update={"splits": {**expected.splits, split: SplitScores.model_validate(parts)}})


def renamed(expected: ExpectedFigures, split: str) -> ExpectedFigures:
    """The expected figures with another name of the last sample of a split."""
    samples = expected.splits[split]
    names = [*samples.content_hash[:-1], f"new {samples.content_hash[-1]}"]
    other = samples.model_copy(update={"content_hash": names})
    return expected.model_copy(update={"splits": {**expected.splits, split: other}})


def with_split(expected: ExpectedFigures) -> ExpectedFigures:
    return expected.model_copy(update={"splits": {**expected.splits, "ood.gone": expected.splits["ood.noise"]}})


def without_wrong(expected: ExpectedFigures) -> ExpectedFigures:
    """As of a network so right on the data to fit on that nothing is fitted for wrong predictions."""
    return expected.model_copy(
        update={
            "splits": {
                name: each.model_copy(update={"scores": {"ood": each.scores["ood"]}})
                for name, each in expected.splits.items()
            }
        }
    )


LACKING = {
    "a test sample": (lambda found: renamed(found, "in_dist.test"), r"in_dist.test: 1 of the \d+ samples"),
    "an OOD sample": (lambda found: renamed(found, "ood.noise"), r"ood.noise: 1 of the \d+ samples"),
    "an OOD set": (with_split, r"ood.gone: (\d+) of the \1 samples"),
}


@pytest.mark.parametrize(("change", "message"), LACKING.values(), ids=LACKING)
def test_expected_samples_that_are_not_in_the_run_are_refused(small_run, expected, change, message: str) -> None:
    with pytest.raises(ExpectedFiguresError, match=f"{message} of the expected figures are not in the run"):
        check_run(RunFolder(small_run), change(expected))


def test_a_detector_that_is_gone_is_refused(small_run, expected, monkeypatch) -> None:
    def made(*given: object, **options: object) -> ExpectedFigures:
        return without_wrong(expected_of(*given, **options))

    monkeypatch.setattr("gradscore.check.comparison.expected_of", made)
    with pytest.raises(ExpectedFiguresError, match=r"in_dist\.test: the scores for wrong predictions of the expected"):
        check_run(RunFolder(small_run), expected)


def test_samples_that_are_new_are_left_out(small_run, expected) -> None:
    """Those that are expected are in the run, however many others have smaller hashes."""
    fewer = kept(kept(expected, "in_dist.test", slice(20, None)), "ood.noise", slice(1, None, 2))
    report = check_run(RunFolder(small_run), fewer)
    assert report.exit_code == 0
    assert {test.n for test in report.tests if test.name == "accuracy of the classifier"} == {
        len(expected.splits["in_dist.test"].correct) - 20
    }
    assert report.current == expected


def test_where_nothing_is_compared_nothing_passes(small_run, expected) -> None:
    report = check_run(RunFolder(small_run), expected)
    nothing = replace(report, tests=[outcome for outcome in report.tests if outcome.status == "info"])
    assert (nothing.status, nothing.exit_code) == ("undecided", 3)


def test_other_labels_are_no_sign_of_the_same(small_run, expected) -> None:
    test = expected.splits["in_dist.test"]
    turned = test.model_copy(update={"correct": test.correct[::-1]})
    assert turned.correct != test.correct
    report = check_run(
        RunFolder(small_run), expected.model_copy(update={"splits": {**expected.splits, "in_dist.test": turned}})
    )
    assert outcome_of(report, "accuracy of the classifier").method == "paired rates"


def test_reads_back_and_is_small_and_readable(expected, tmp_path: Path) -> None:
    write_expected(tmp_path / "expected.json", expected)
    assert read_expected(tmp_path / "expected.json") == expected
    lines = (tmp_path / "expected.json").read_text().splitlines()
    assert len(lines) < 110
    assert sum(map(len, lines)) < 30_000


BAD_FILES = {
    "missing": (None, "there are no expected figures; make them with gradscore check CONFIG --expected"),
    "no JSON": ("{", "no JSON: "),
    "a list": ("[]", "Input should be an object"),
    "half a pair of surrogates": ('{"a": "\\ud800"}', "no JSON: "),
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "another version": (
        '{"format": "gradscore expected figures", "version": 2}',
        "version: Input should be 8, got 2.; restore it from version control, or make it anew with --update",
    ),
    "of no format": ('{"version": 8}', "format: Field required"),
    "incomplete": ('{"format": "gradscore expected figures", "version": 8}', "policy: Field required"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_files_that_are_no_expected_figures(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "expected.json"
    _ = text is not None and path.write_text(text)
    with pytest.raises(ExpectedFiguresError, match=message):
        read_expected(path)


CHANGED: dict[str, tuple[Callable[[dict], object], str]] = {
    "one score less": (lambda found: found["scored_by"].pop("ood"), "scored_by: wanted a name for each of the scores"),
    "no splits": (lambda found: found.update(splits={}), r"splits: no in_dist\.test"),
    "no thresholds": (
        lambda found: found.update(thresholds={}),
        "thresholds: none for 'wrong', and no notice says why",
    ),
    "no protocol": (lambda found: found.update(protocol=None), "protocol: none, though scored_by has 'ood'"),
    "an accuracy above 1": (lambda found: found.update(accuracy=1.5), "accuracy: .* less than or equal to 1"),
    "the same hash": (
        lambda found: found["splits"]["in_dist.test"].update(content_hash=["0" * 12] * 60),
        r"splits\.in_dist\.test: a hash is there twice",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGED.values(), ids=CHANGED)
def test_figures_that_were_changed(expected, tmp_path: Path, change, message: str) -> None:
    write_expected(tmp_path / "b.json", expected)
    content = json.loads((tmp_path / "b.json").read_text())
    change(content)
    (tmp_path / "b.json").write_text(json.dumps(content))
    with pytest.raises(ExpectedFiguresError, match=f"{message}.*; restore it from version control"):
        read_expected(tmp_path / "b.json")


@pytest.mark.parametrize("name", ["knn", "label", "chosen"])
def test_a_score_that_the_run_lacks_is_said(small_run, expected, name: str) -> None:
    other = expected.model_copy(update={"scored_by": {"wrong": name, "ood": name}})
    with pytest.raises(ExpectedFiguresError, match=f"of score '{name}', which this run does not have; give it the set"):
        check_run(RunFolder(small_run), other)


LENGTHS = {
    "of a split": ('"correct": "', '"correct": "1', "must belong to the same samples"),
    "of the probe": (
        '"content_hash": [',
        '"content_hash": ["000000000000", ',
        r"probe.*: wanted \d+ values, one for each sample",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), LENGTHS.values(), ids=LENGTHS)
def test_samples_that_do_not_fit_together(expected, tmp_path: Path, old: str, new: str, message: str) -> None:
    write_expected(tmp_path / "b.json", expected)
    before, found, after = (tmp_path / "b.json").read_text().rpartition(old)
    (tmp_path / "b.json").write_text(before + found.replace(old, new) + after)
    with pytest.raises(ExpectedFiguresError, match=message):
        read_expected(tmp_path / "b.json")


def test_a_run_that_was_not_evaluated(small_run, expected, tmp_path: Path) -> None:
    shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    with pytest.raises(StoreError, match="gradscore evaluate"):
        check_run(RunFolder(tmp_path / "run"), expected)


@pytest.fixture(scope="module")
def mixed(small_run, expected) -> CheckReport:
    """A report with a outcome of every status."""
    report = check_run(RunFolder(small_run), expected)
    changes = ["fail", "undecided", "info"]
    tests = [replace(outcome, status=status) for outcome, status in zip(report.tests, changes, strict=False)]
    return replace(report, tests=[*tests, *report.tests[len(tests) :]])


def test_junit(mixed: CheckReport) -> None:
    suite = Xml.fromstring(to_junit(mixed))
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 8, "failures": 1, "errors": 1, "skipped": 1}
    assert [len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")] == [1, 1, 1]
