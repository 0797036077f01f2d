import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from run_inputs import write_manifest
from score_files import write_scores

from gradscore.errors import EvaluationError, StoreError
from gradscore.evaluation.evaluated_runs import compare_runs
from gradscore.evaluation.intervals import paired_delong
from gradscore.evaluation.metrics import auroc
from gradscore.evaluation.score_tables import LEADING, MADE_OF, made_of
from gradscore.store import RunFolder

N = 60


def table(*, seed, noise=1.0, dataset="in_dist.test"):
    generator = np.random.default_rng(seed)
    positive = np.arange(N) % 3 == 0
    leading = {
        "task": "misclassification",
        "protocol": "in_dist_only",
        "dataset": dataset,
        "split": "in_dist.test",
        "sample_id": [str(place) for place in range(N)],
        "content_hash": [f"{place:016x}" for place in range(N)],
        "label": np.arange(N) % 10,
        "prediction": 0,
        "positive": positive,
        "probability": 0.5,
    }
    return pd.DataFrame(leading)[list(LEADING)].assign(chosen=positive + noise * generator.normal(size=N))


def write_run(path: Path, scores: pd.DataFrame | None) -> RunFolder:
    write_manifest(path)
    if scores is not None:
        write_scores(path / "evaluation", scores, of=made_of(RunFolder(path)))
    return RunFolder(path)


def compared(tmp_path, *tables, **options):
    return compare_runs([write_run(tmp_path / str(place), each) for place, each in enumerate(tables)], **options)


A, B = table(seed=0), table(seed=1, noise=0.3)
SHUFFLED = B.sample(frac=1.0, random_state=0)
OTHER_TRUTH = B.assign(positive=~B["positive"], chosen=-B["chosen"])


def test_samples_are_joined_by_content(tmp_path):
    (found,) = compared(tmp_path, A, SHUFFLED).compared
    expected = paired_delong(B["chosen"], A["chosen"], A["positive"])
    assert found.test == expected
    assert (found.n, found.n_positive) == (N, (20, 20))


def test_every_run_is_compared_with_the_first(tmp_path):
    result = compared(tmp_path, A, B, SHUFFLED)
    assert [each.run.name for each in result.compared] == ["1", "2"]
    assert result.notices == []


def test_only_common_samples_count_and_others_are_said(tmp_path):
    result = compared(tmp_path, A, B.iloc[10:])
    assert result.compared[0].n == N - 10
    assert "10 samples are in one of the runs only" in result.notices[0]


def test_copies_of_an_image_are_joined_one_to_one(tmp_path):
    copies = [each.assign(content_hash=each["content_hash"].str[-1]) for each in (A, B)]
    assert compared(tmp_path, *copies).compared[0].n == N


def test_each_run_keeps_its_own_truth(tmp_path):
    (found,) = compared(tmp_path, A, OTHER_TRUTH).compared
    assert found.n_positive == (20, 40)
    assert found.other == auroc(OTHER_TRUTH["chosen"], OTHER_TRUTH["positive"])
    assert found.test.difference == pytest.approx(found.other - found.first)


def test_scores_of_one_ranking_certainly_differ_by_nothing(tmp_path):
    test = compared(tmp_path, A, A.assign(chosen=2 * A["chosen"])).compared[0].test
    assert (test.difference, test.low, test.high) == (0, 0, 0)


def test_labels_that_one_run_lacks_are_no_other_labels(tmp_path):
    (found,) = compared(tmp_path, A, B.assign(label=B["label"].where(np.arange(N) % 4 > 0, -1))).compared
    assert found.test == paired_delong(B["chosen"], A["chosen"], A["positive"])


@pytest.mark.parametrize(("positives", "told"), [(8, True), (15, False)])
def test_few_positives_of_two_truths_are_said(tmp_path, positives, told):
    first, other = (A.assign(positive=(np.arange(N) + shift) % N < positives) for shift in (0, 3))
    assert any(f"of {positives} positives" in each for each in compared(tmp_path, first, other).notices) == told


def test_few_positives_of_one_truth_are_not_said(tmp_path):
    few = A.assign(positive=np.arange(N) < 8)
    assert compared(tmp_path, few, few.assign(chosen=-few["chosen"])).notices == []


def test_data_sets_of_one_run_only_are_said(tmp_path):
    both = pd.concat([B, table(seed=2, dataset="extra")])
    (said,) = compared(tmp_path, A, both).notices
    assert re.fullmatch(
        r"left out, as only one of \S+ and \S+ reports it: extra \(misclassification, in_dist_only\)", said
    )


UNUSABLE = {
    "one run": ((A,), "wanted two or more different runs"),
    "no data set in common": ((A, table(seed=0, dataset="b")), "no data set in common"),
    "no sample in common": ((A, B.assign(content_hash="x")), "not one of its 60 samples"),
    "other labels": ((A, B.assign(label=3)), "54 samples have another label"),
    "not evaluated": ((A, None), "run `gradscore evaluate"),
}


@pytest.mark.parametrize(("tables", "message"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_runs_are_refused(tmp_path, tables, message):
    with pytest.raises((EvaluationError, StoreError), match=message):
        compared(tmp_path, *tables)


def test_an_unknown_score_is_refused(tmp_path):
    with pytest.raises(EvaluationError, match="no score 'energy'; wanted one of chosen"):
        compared(tmp_path, A, B, score="energy")


def test_a_run_given_twice_is_refused(tmp_path):
    run = write_run(tmp_path / "run", A)
    with pytest.raises(EvaluationError, match="two or more different runs"):
        compare_runs([run, run])


OTHERS = {
    "other meta models": ({"meta models": "0"}, "the meta models changed since; run `gradscore evaluate "),
    "features of a split": (
        {"ood.new": "0"},
        "the features of ood.new changed since; run `gradscore fit-meta .*evaluate ",
    ),
    "nothing said": (None, "the meta models changed since"),
}


@pytest.mark.parametrize(("changed", "message"), OTHERS.values(), ids=OTHERS)
def test_scores_of_something_else_than_the_run_holds_are_refused(tmp_path, changed, message):
    runs = [write_run(tmp_path / name, A) for name in "ab"]
    of = None if changed is None else made_of(runs[1]) | changed
    write_scores(tmp_path / "b" / "evaluation", A, of=of)
    with pytest.raises(StoreError, match=f"b/evaluation: not of what the run holds now: {message}"):
        compare_runs(runs)


def with_notes(path, notes):
    kept = {MADE_OF: pq.read_schema(path).metadata[MADE_OF]}
    pq.write_table(pq.read_table(path).replace_schema_metadata(kept | notes), path)


DAMAGED = {
    "notes of pandas": lambda path: with_notes(path, {b"pandas": b"{"}),
    "the note of what scores are of": lambda path: with_notes(path, {MADE_OF: b"[]"}),
    "the table": lambda path: path.write_bytes(b"PAR1 and then nothing"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_said(tmp_path, damage):
    runs = [write_run(tmp_path / name, A) for name in "ab"]
    damage(tmp_path / "b" / "evaluation" / "scores.parquet")
    with pytest.raises(StoreError, match="damaged"):
        compare_runs(runs)
