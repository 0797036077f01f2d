"""The chosen score of a run: by what is not reported, and the same in every table."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from written_runs import rows_of, written_run

from gradscore.evaluation import deployed, evaluate_run, fit_run, prepared, score_chooser
from gradscore.meta import MetaInputs, MetaModel, ScoreChoice, TrainingSet, alarms, penalties, training_set
from gradscore.store import RunFolder, ShardRows

SIZE = 80
SETS = ("a", "b", "c", "d")
LOGITS = ["logit_0", "logit_1"]
GRADIENTS = [f"uniform/fc.{name}/l1" for name in ("weight", "bias")]


def write_run(
    folder: Path,
    *,
    in_logits: float,
    in_gradients: float,
    planted: float = 0.0,
    different: int = SIZE,
    mislabelled: bool = False,
    auxiliary: int = 0,
    of_auxiliary: float | None = None,
) -> RunFolder:
    """A run on four OOD sets, which are as far off in logits and gradients as is said.

    `planted` shifts the logits of what is to be found in `a` and in
    `in_dist.test` alone. Of `in_dist.fit` only the first `different` contents differ;
    if `mislabelled`, its one wrong prediction is the one that looks least like it.
    As many `auxiliary` sets as is said lie beside the four, as far off as these, or `of_auxiliary` in logits.
    """

    def rows(split: str) -> ShardRows:
        generator = np.random.default_rng(list(split.encode()))
        far = split.startswith("ood.")
        wrong = np.arange(SIZE) % 5 == 0
        off = of_auxiliary if of_auxiliary is not None and split.startswith("ood.made") else in_logits
        margin = generator.normal(4.0, 1.0, SIZE) - off * far - wrong
        other = np.zeros(SIZE)
        if split in ("ood.a", "in_dist.test"):
            margin -= planted * (wrong + 2 * far)
            other -= 3 * planted
        if mislabelled and split == "in_dist.fit":
            wrong = np.arange(SIZE) == margin.argmax()
        contents = np.arange(SIZE) % (different if split == "in_dist.fit" else SIZE)
        sizes = generator.lognormal(0.0, 0.5, (SIZE, 2)) * np.exp(in_gradients * far)
        return rows_of(
            split,
            [*LOGITS, *GRADIENTS],
            np.column_stack([margin, other, sizes]),
            labels=np.full(SIZE, -1) if far else wrong.astype(np.int64),
            predictions=np.zeros(SIZE, dtype=np.int64),
            content_hashes=[f"{split}-{place}" for place in contents],
        )

    return written_run(
        folder,
        rows,
        ood=[
            *({"name": name} for name in SETS),
            *(
                {"name": f"made_{place}", "auxiliary": True, "source": "synthetic:patches"}
                for place in range(auxiliary)
            ),
        ],
        meta={"cv_folds": 3, "Cs": [0.01]},
        evaluate={
            "near_duplicates": "ignore",
            "protocols": ["leave_one_dataset_out", *(["known", "auxiliary"] if auxiliary else [])],
        },
    )


def choice_of(run: RunFolder, label: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.meta_path / label / "model.json").read_text())["notes"]["choice"]
    return found


def test_expected_kinds_raise_an_alarm_of_the_known_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sets that are reported as well; a fold that leaves all of them out does without it."""
    fitted: list[set[str]] = []
    add = alarms.add_alarms

    def noted(model: MetaModel, rows: TrainingSet, weights: dict[str, float], expected: MetaModel | None) -> MetaModel:
        fitted.append(set(np.unique(rows.sets[rows.target])) if expected is None else {"expected"})
        return add(model, rows, weights, expected)

    monkeypatch.setattr(score_chooser, "add_alarms", noted)
    run = write_run(tmp_path / "run", in_logits=1.0, in_gradients=0.3, auxiliary=4)
    report = fit_run(run)
    with_it = {each.spec.label for each in report.models if "expected" in each.model.notes}
    assert with_it == {"ood/known/all"}
    regression = json.loads((run.meta_path / "ood/known/all/score_lr/model.json").read_text())["notes"]
    assert not any(each["gradients"] for each in regression["expected"])
    assert {"expected"} in fitted
    own = {f"ood.{name}" for name in SETS}
    assert all(each == {"expected"} or not each & own for each in fitted)


def test_models_of_all_protocols_are_judged_by_the_same_sets(tmp_path: Path) -> None:
    """Own sets that nothing finds lower no figure of the model that fits them, which auxiliary ones do not have."""
    found = []
    for in_logits in (0.0, 3.0):
        run = write_run(tmp_path / f"{in_logits}", in_logits=in_logits, in_gradients=0.3, auxiliary=4, of_auxiliary=3.0)
        fit_run(run)
        found.append({name: deployed.auroc_left_out(run, name) for name in ("known", "auxiliary")})
    for areas in found:
        assert areas["known"] == pytest.approx(areas["auxiliary"], abs=0.03)
    assert choice_of(run, "ood/known/all")["judged"]["meta"] > 0.9


def test_copies_are_judged_and_fitted_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folds of scores, and in those of penalties."""
    asked: dict[ModuleType, list[TrainingSet]] = {score_chooser: [], penalties: []}
    folds = training_set.held_out_folds
    for module, rows in asked.items():
        noted = lambda each, *config, rows=rows: (rows.append(each), folds(each, *config))[1]  # noqa: E731
        monkeypatch.setattr(module, "held_out_folds", noted)
    fit_run(write_run(tmp_path / "run", in_logits=0.3, in_gradients=0.5, different=30))
    for rows in asked.values():
        of_fit = [each.content[each.sets == "in_dist.fit"] for each in rows if each.content is not None]
        assert len(of_fit) == len(rows) > 1
        assert {len(np.unique(each)) for each in of_fit} == {30}
        assert all((each[:50] == each[30:]).all() for each in of_fit)


def test_inputs_of_folds_that_protocols_have_in_common_are_fitted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the run, of three folds for wrong predictions, and of three for all models that leave one set out."""
    fitted: list[int] = []
    fit = MetaInputs.fit
    monkeypatch.setattr(
        MetaInputs, "fit", lambda frame, *args, **kept: (fitted.append(len(frame)), fit(frame, *args, **kept))[1]
    )
    fit_run(write_run(tmp_path / "run", in_logits=0.3, in_gradients=0.5))
    assert len(fitted) == 1 + 3 + 3
    whole, *folds = sorted(fitted, reverse=True)
    assert whole == SIZE
    assert sum(folds) == 2 * 2 * SIZE, "each of three folds goes without the third of samples that it judges"


@pytest.fixture(scope="module")
def by_gradients(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which gradients tell more than logits do, fitted."""
    run = write_run(tmp_path_factory.mktemp("gradients") / "run", in_logits=0.3, in_gradients=1.5)
    fit_run(run)
    return run


@pytest.fixture(scope="module")
def by_logits(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, pd.DataFrame]:
    """A run in which gradients tell nothing, fitted, and its scores."""
    run = write_run(tmp_path_factory.mktemp("logits") / "run", in_logits=2.0, in_gradients=0.0)
    fit_run(run)
    return run, evaluate_run(run).scores


def test_gradients_that_find_ood_samples_are_used(by_gradients: RunFolder) -> None:
    choice = choice_of(by_gradients, "ood/leave_one_dataset_out/a")
    assert (choice["score"], choice["judged_by"]) == ("meta", "sets")
    assert choice["gain"] > 0.1


def test_a_model_that_is_the_baseline_it_starts_from_makes_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing corrects the largest probability; which score is the best is open."""
    monkeypatch.setattr(penalties._Judge, "best_rankings", lambda _, alone: (alone,))
    monkeypatch.setattr(score_chooser, "choose_score", lambda *_, **__: ScoreChoice())
    run = write_run(tmp_path / "run", in_logits=0.3, in_gradients=1.5)
    fit_run(run)
    choice = choice_of(run, "misclassification/in_dist_only/all")
    assert choice["score"] == "msp"
    assert choice["log_odds"][0] > 0
    assert choice_of(run, "ood/leave_one_dataset_out/a")["score"] == "meta"


def test_one_wrong_label_does_not_turn_the_score_round(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", in_logits=0.3, in_gradients=1.5, mislabelled=True)
    report = fit_run(run)
    assert any("(1, wanted at least 10): the score for them is the baseline" in each for each in report.notices)
    assert choice_of(run, "misclassification/in_dist_only/all")["score"] == "msp"
    found = [each for each in evaluate_run(run).records if (each.dataset, each.metric) == ("in_dist.test", "auroc")]
    areas = {each.score: each.value for each in found}
    assert areas["chosen"] == areas["meta"] == areas["msp"]
    assert areas["msp"] is not None
    assert areas["msp"] > 0.6


def test_the_chosen_score_is_the_one_that_is_reported(by_logits: tuple[RunFolder, pd.DataFrame]) -> None:
    run, table = by_logits
    for (_, protocol, dataset), rows in table.groupby(["task", "protocol", "dataset"]):
        name = dataset if protocol == "leave_one_dataset_out" else "all"
        score = choice_of(run, f"{rows['task'].iloc[0]}/{protocol}/{name}")["score"]
        assert rows["chosen"].to_numpy() == pytest.approx(rows[score].to_numpy(), abs=0)
    chosen = {choice_of(run, f"ood/leave_one_dataset_out/{name}")["score"] for name in SETS}
    assert chosen - {"meta"}, "gradients that add nothing"


def test_a_chosen_baseline_has_a_probability_that_rises_with_it(by_logits: tuple[RunFolder, pd.DataFrame]) -> None:
    _, table = by_logits
    rows = table[table["dataset"] == "a"].sort_values("chosen", kind="stable")
    probability = rows["probability"].to_numpy()
    assert ((probability > 0) & (probability < 1)).all()
    assert (np.diff(probability) >= 0).all()


def test_what_works_on_reported_samples_alone_is_not_chosen(by_gradients: RunFolder, tmp_path: Path) -> None:
    """A leak, planted: the logits tell everything of what is reported, and little of what is not."""
    runs = by_gradients, write_run(tmp_path / "planted", in_logits=0.3, in_gradients=1.5, planted=9.0)
    fit_run(runs[1])
    for label in ("ood/leave_one_dataset_out/a", "misclassification/in_dist_only/all"):
        one, other = (choice_of(run, label) for run in runs)
        assert one == other
    areas = {
        each.score: each.value
        for each in evaluate_run(runs[1]).records
        if (each.task, each.protocol, each.dataset, each.metric) == ("ood", "leave_one_dataset_out", "a", "auroc")
    }
    assert areas["max_logit"] > 0.99, "who had looked would have chosen it"
    assert areas["chosen"] == areas["meta"] < areas["max_logit"]


OOD_MODELS = [f"ood/leave_one_dataset_out/{name}" for name in SETS] + ["ood/auxiliary/all"]


def test_enough_auxiliary_sets_choose_for_all_models_but_that_of_known_sets(tmp_path: Path) -> None:
    """Logits that tell all of `a` change no other choice, not even of models that are fitted on it."""
    choices, known = [], []
    for planted in (0.0, 9.0):
        run = write_run(tmp_path / str(planted), in_logits=0.3, in_gradients=1.5, planted=planted, auxiliary=3)
        fit_run(run)
        choices += [choice_of(run, label) for label in OOD_MODELS]
        known.append(choice_of(run, "ood/known/all"))
    assert known[0]["judged"] != known[1]["judged"]
    assert all(choice == choices[0] for choice in choices)
    assert (choices[0]["score"], choices[0]["judged_by"]) == ("meta", "sets")


def test_where_all_models_are_kept_no_samples_are_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", in_logits=0.3, in_gradients=1.5, auxiliary=3)
    wanted = [each.spec.label for each in fit_run(run).models]
    monkeypatch.setattr(prepared.Prepared, "rows", lambda *_: pytest.fail("nothing is to be fitted"))
    assert fit_run(run).kept == wanted


def test_too_few_auxiliary_sets_do_not_choose_alone(tmp_path: Path) -> None:
    choices = []
    for planted in (0.0, 9.0):
        run = write_run(tmp_path / str(planted), in_logits=0.3, in_gradients=1.5, planted=planted, auxiliary=2)
        fit_run(run)
        choices.append({label: choice_of(run, label)["judged"] for label in OOD_MODELS})
    assert choices[0][OOD_MODELS[0]] == choices[1][OOD_MODELS[0]]
    assert choices[0][OOD_MODELS[1]] != choices[1][OOD_MODELS[1]]


def test_auxiliary_sets_are_judged_as_an_independent_count_says(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", in_logits=1.0, in_gradients=0.0, auxiliary=3)
    fit_run(run)
    judged = choice_of(run, "ood/leave_one_dataset_out/a")["judged"]["max_logit"]
    in_dist = run.read("in_dist.fit")["logit_0"].to_numpy()
    areas = [
        np.mean(run.read(f"ood.made_{place}")["logit_0"].to_numpy()[:, None] < in_dist[None]) for place in range(3)
    ]
    assert judged == pytest.approx(np.mean(areas), abs=0.03)


def test_what_is_held_out_is_judged_as_an_independent_count_says(tmp_path: Path) -> None:
    """Of every set left out, the AUROC of the logits' margin against parts of the in-distribution samples."""
    run = write_run(tmp_path / "run", in_logits=1.0, in_gradients=0.0)
    fit_run(run)
    judged = choice_of(run, "ood/leave_one_dataset_out/a")["judged"]["max_logit"]
    in_dist = run.read("in_dist.fit")["logit_0"].to_numpy()
    areas = [np.mean(run.read(f"ood.{name}")["logit_0"].to_numpy()[:, None] < in_dist[None]) for name in "bcd"]
    assert judged == pytest.approx(np.mean(areas), abs=0.03)
