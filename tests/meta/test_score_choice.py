"""Which score is chosen, by hand-worked numbers, and what log-odds a baseline gets."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gradscore.errors import StoreError
from gradscore.meta import META, BaselineScore, ScoreChoice, choose_score, log_odds_of

# Gains of the meta model over knn: mean, and standard error as the standard deviation over the root of the number.
CASES = {
    "worth its gradients": ([0.95, 0.93, 0.94], [0.90, 0.89, 0.90], META, (0.13 / 3, 0.01 / 3)),
    "as good without, by and large": ([0.950, 0.930, 0.940], [0.949, 0.931, 0.940], META, (0.0, 0.001 / 3**0.5)),
    "as good without, exactly": ([0.950, 0.930, 0.940], [0.950, 0.930, 0.940], "knn", (0.0, 0.0)),
    "a small gain that is sure": ([0.950, 0.930, 0.940], [0.945, 0.925, 0.935], META, (0.005, 0.0)),
    "a small loss that is sure": ([0.950, 0.930, 0.940], [0.953, 0.933, 0.943], "knn", (-0.003, 0.0)),
    "a loss of three errors": ([0.950, 0.930, 0.940], [0.955, 0.932, 0.942], META, (-0.003, 0.001)),
    "worse without doubt": ([0.80, 0.82, 0.81], [0.90, 0.92, 0.91], "knn", (-0.1, 0.0)),
    "sets that disagree tell nothing": ([0.6, 0.98, 0.9], [0.99, 0.7, 0.85], META, (-0.02, None)),
}


@pytest.mark.parametrize(("meta", "knn", "score", "gap"), CASES.values(), ids=CASES)
def test_the_score_without_gradients_is_chosen_where_it_is_shown_to_be_ahead(
    meta: list[float], knn: list[float], score: str, gap: tuple[float, float | None]
) -> None:
    choice = choose_score({META: meta, "msp": [0.5, 0.6, 0.55], "knn": knn}, judged_by="sets")
    assert choice.score == score
    assert choice.gain == pytest.approx(gap[0], abs=1e-12)
    assert gap[1] is None or choice.error == pytest.approx(gap[1], abs=1e-12)
    assert list(choice.judged)[-1] == "msp"


def test_the_best_of_many_that_are_as_good_is_seldom_chosen() -> None:
    """Of thirty scores the best looks better than the meta model in most draws."""
    generator = np.random.default_rng(0)
    chosen = 0
    for _ in range(400):
        common = generator.normal(0.9, 0.02, 6)
        areas = {f"score {place}": common + generator.normal(0, 0.01, 6) for place in range(30)}
        chosen += choose_score({**areas, META: common + generator.normal(0, 0.01, 6)}, judged_by="sets").score != META
    assert chosen / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_of_equal_scores_the_first_is_chosen_which_costs_least() -> None:
    areas = {"msp": [0.9, 0.9], "knn": [0.9, 0.9], "score_lr": [0.9, 0.9], META: [0.9, 0.9]}
    assert choose_score(areas, judged_by="sets").score == "msp"


@pytest.mark.parametrize("areas", [{META: [0.6, 0.7]}, {META: [0.6], "knn": [0.9]}], ids=["alone", "one set"])
def test_the_meta_model_stays_where_nothing_can_be_told(areas: dict[str, list[float]]) -> None:
    assert choose_score(areas, judged_by="sets") == ScoreChoice()


def test_a_choice_comes_back_from_notes() -> None:
    choice = ScoreChoice(score="knn", judged_by="sets", judged={"knn": 0.9}, log_odds=(2.0, -1.0), shift=0.5)
    assert ScoreChoice.of_notes({"choice": asdict(choice)}) == choice
    with pytest.raises(StoreError, match=r"notes\.choice has not"):
        ScoreChoice.of_notes({})


DAMAGED = {
    "incomplete": ({"score": "knn"}, "notes.choice has not error, gain, judged"),
    "no choice": (5, "notes.choice has not"),
    "no name": (asdict(ScoreChoice()) | {"score": 5}, "notes.choice.score: Input should be a valid string"),
    "no line": (asdict(ScoreChoice()) | {"log_odds": [1.0]}, r"notes.choice.log_odds.1: Field required"),
    "no number": (asdict(ScoreChoice()) | {"judged": {"knn": "x"}}, "notes.choice.judged.knn: Input should be a"),
}


@pytest.mark.parametrize(("found", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_choice_is_refused(found: object, message: str) -> None:
    with pytest.raises(StoreError, match=f"run/meta/x: damaged: {message}.*; run fit-meta again"):
        ScoreChoice.of_notes({"choice": found}, where="run/meta/x")


def test_log_odds_of_a_baseline_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    target = np.arange(300) < 60
    scores = generator.normal(5, 2, 300) + 3 * target
    found = log_odds_of(scores, target, np.where(target, "ood.a", "fit"))
    assert found is not None
    (slope, intercept), shift = found
    standard = ((scores - scores.mean()) / scores.std())[:, None]
    expected = LogisticRegression(C=1.0, class_weight="balanced", tol=1e-10).fit(standard, target)
    assert slope * scores + intercept == pytest.approx(expected.decision_function(standard), abs=1e-3)
    score = BaselineScore(name="knn", inputs=None, log_odds=(slope, intercept), shift=shift)  # type: ignore[arg-type]
    assert score.probability(scores, at_prevalence=True).mean() == pytest.approx(0.2)


@pytest.mark.parametrize("scores", [np.zeros(10), -np.arange(10.0)], ids=["constant", "upside down"])
def test_a_baseline_that_tells_nothing_has_no_probability(scores: np.ndarray) -> None:
    assert log_odds_of(scores, np.arange(10) > 5, np.full(10, "a")) is None
    score = BaselineScore(name="knn", inputs=None)  # type: ignore[arg-type]
    assert np.isnan(score.probability(scores, at_prevalence=False)).all()
