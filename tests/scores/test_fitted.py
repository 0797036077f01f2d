"""All scores of a run: what is fitted, tables of them, and what is stored."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from score_names import score_names

from gradscore.errors import EvaluationError, MissingExtraError, StoreError
from gradscore.models.last_layer import Head
from gradscore.scores import OVER_VIEWS, SCORES, FittedScores, Ordinary, Samples, plain_name

GENERATOR = np.random.default_rng(0)
M, D, K = 80, 6, 3
HEAD = Head(weight=GENERATOR.normal(size=(K, D)), bias=GENERATOR.normal(size=K))


def look(features):
    return Samples(logits=features @ HEAD.weight.T + HEAD.bias, penultimate=features)


def samples(count, *, seed, content="new"):
    generator = np.random.default_rng(seed)
    features = np.abs(generator.normal(1.0, 1.0, (count, D)))
    views = {name: look(np.abs(features + generator.normal(0, 0.1, features.shape))) for name in ("flip", "shift")}
    hashes = np.array([f"{content}{place}" for place in range(count)], dtype=np.str_)
    return replace(look(features), views=views, content=hashes)


ORDINARY = Ordinary(samples=samples(M, seed=1, content="bank"), classes=np.arange(M) % K, head=HEAD)
NEW = samples(13, seed=2)
WHOLE = FittedScores.fit(ORDINARY, views=["flip", "shift"])
PLAIN = FittedScores.fit(ORDINARY)
LOGITS = FittedScores.fit(Ordinary(samples=Samples(logits=ORDINARY.samples.logits), classes=ORDINARY.classes))
FITTED = {"features and views": WHOLE, "features": PLAIN, "logits": LOGITS}

NAMES = {
    "logits": (LOGITS, score_names("logits")),
    "features": (PLAIN, score_names("logits") + score_names("neighbours") + score_names("penultimate")),
    "features and views": (
        WHOLE,
        [*SCORES, *(name + OVER_VIEWS for name in SCORES if SCORES[name].needs not in ("views", "features of views"))],
    ),
}


@pytest.mark.parametrize(("fitted", "names"), NAMES.values(), ids=NAMES)
def test_every_score_that_samples_allow_is_there(fitted, names):
    assert sorted(fitted.names) == sorted(names)
    assert list(fitted.table(NEW).columns) == fitted.names


def test_views_of_logits_alone_have_no_score_of_features():
    bare = {name: Samples(logits=view.logits) for name, view in NEW.views.items()}
    ordinary = Ordinary(samples=Samples(logits=NEW.logits, views=bare), classes=NEW.predictions)
    names = FittedScores.fit(ordinary, views=["flip", "shift"]).names
    assert {"views_probability", "msp@views"} <= set(names)
    assert not {"views_features", "knn", "vim"} & set(names)


def test_inputs_and_rivals_are_those_that_say_so():
    assert {plain_name(name) for name in WHOLE.inputs} == {name for name in SCORES if SCORES[name].is_input}
    assert {plain_name(name) for name in WHOLE.rivals} == {name for name in SCORES if SCORES[name].is_rival}


@pytest.mark.parametrize("name", ["msp", "vim", "gradnorm"])
def test_over_views_is_the_mean_over_the_sample_and_its_views(name):
    table = WHOLE.table(NEW)
    looks = [SCORES[name].of(each, WHOLE.learned[name]) for each in (NEW, *NEW.views.values())]
    np.testing.assert_allclose(table[name], looks[0], rtol=1e-12)
    np.testing.assert_allclose(table[name + OVER_VIEWS], (looks[0] + looks[1] + looks[2]) / 3, rtol=1e-12)


def test_neighbours_of_views_leave_out_the_sample_that_they_are_of():
    """Views of samples of the bank, with the classes that are predicted of the samples themselves."""
    table = WHOLE.table(ORDINARY.samples)
    found = [
        WHOLE.bank.neighbours(each.penultimate, ORDINARY.samples.predictions, ORDINARY.samples.content)
        for each in (ORDINARY.samples, *ORDINARY.samples.views.values())
    ]
    np.testing.assert_allclose(
        table["knn_1" + OVER_VIEWS], np.mean([each.distances[:, 0] for each in found], axis=0), rtol=1e-12
    )
    np.testing.assert_allclose(
        table["class_knn" + OVER_VIEWS], np.mean([each.of_class[:, -1] for each in found], axis=0), rtol=1e-12
    )


def test_views_that_do_not_count_are_not_looked_at():
    fitted = FittedScores.fit(ORDINARY, views=["flip"])
    only = replace(NEW, views={"flip": NEW.views["flip"]})
    np.testing.assert_array_equal(fitted.table(NEW), fitted.table(only))


@pytest.mark.parametrize("fitted", FITTED.values(), ids=FITTED)
def test_a_round_trip_scores_the_same_bits(fitted):
    arrays = {name: values.copy() for name, values in fitted.arrays().items()}
    restored = FittedScores.restored(arrays, fitted.description())
    assert restored.names == fitted.names
    asked = replace(NEW, content=np.r_[["bank3"], NEW.content[1:]])
    assert restored.table(asked).to_numpy().tobytes() == fitted.table(asked).to_numpy().tobytes()


def wide(count, *, seed):
    """As those of a small network: 64 features, ten classes, and two views."""
    generator = np.random.default_rng(seed)
    head = np.random.default_rng(0).normal(size=(10, 64))
    looks = np.abs(generator.normal(1.0, 1.0, (3, count, 64)))
    plain, *views = (Samples(logits=each @ head.T, penultimate=each) for each in looks)
    return replace(plain, views=dict(zip(["flip", "shift"], views, strict=True))), Head(weight=head, bias=np.ones(10))


def some(samples, rows):
    views = {name: some(view, rows) for name, view in samples.views.items()}
    return Samples(logits=samples.logits[rows], penultimate=samples.penultimate[rows], views=views)


@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_a_sample_scores_the_same_in_any_company(rows):
    ordinary, head = wide(200, seed=1)
    fitted = FittedScores.fit(
        Ordinary(samples=ordinary, classes=np.arange(200) % 10, head=head), views=["flip", "shift"]
    )
    new, _ = wide(130, seed=2)
    parts = [fitted.table(some(new, slice(start, start + rows))) for start in range(0, 130, rows)]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), fitted.table(new), check_exact=True)


def test_content_is_stored_as_it_is_or_not_at_all():
    restored = FittedScores.restored(WHOLE.arrays(), WHOLE.description())
    np.testing.assert_array_equal(restored.bank.content, ORDINARY.samples.content)
    assert restored.bank.content.dtype.kind == "U"
    assert FittedScores.restored(WHOLE.arrays(content=False), WHOLE.description()).bank.content is None


def test_arrays_are_plain():
    assert {values.dtype.kind for values in WHOLE.arrays().values()} <= {"f", "i", "u"}


DESCRIPTIONS = {
    "an unknown score": ({"scores": ["msp", "of another package"], "views": []}, "'of another package' unknown here"),
    "no scores": ({"views": []}, "incomplete"),
    "no views": ({"scores": []}, "incomplete"),
    "scores that are no list": ({"scores": "msp", "views": []}, "incomplete"),
}


@pytest.mark.parametrize(("description", "message"), DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_that_does_not_fit_is_refused(description, message):
    with pytest.raises(StoreError, match=message):
        FittedScores.restored({}, description)


@pytest.mark.parametrize("fitted", FITTED.values(), ids=FITTED)
def test_no_samples_have_an_empty_table(fitted):
    none = Samples(logits=np.empty((0, K)))
    assert fitted.table(none).shape == (0, len(fitted.names))
    assert list(fitted.table(none).columns) == fitted.names


MISSING = {
    "no features": (Samples(logits=NEW.logits, views=NEW.views), "wanted penultimate features"),
    "no view": (replace(NEW, views={"flip": NEW.views["flip"]}), "view 'shift'"),
    "not finite": (replace(NEW, penultimate=np.full((13, D), np.nan)), "not finite"),
}


@pytest.mark.parametrize(("asked", "message"), MISSING.values(), ids=MISSING)
def test_samples_of_which_less_is_known_are_refused(asked, message):
    with pytest.raises(EvaluationError, match=message):
        WHOLE.table(asked)


def test_a_score_whose_package_is_missing_is_left_out_with_a_notice(monkeypatch):
    def fit(_ordinary):
        raise MissingExtraError("energy needs a package; pip install it")

    monkeypatch.setitem(SCORES._entries, "energy", replace(SCORES["energy"], fit=fit))
    found = FittedScores.fit(ORDINARY)
    assert "energy" not in found.names
    assert found.notices == ["energy needs a package; pip install it"]


def test_too_few_samples_are_refused():
    one = Samples(logits=ORDINARY.samples.logits[:1], penultimate=ORDINARY.samples.penultimate[:1])
    with pytest.raises(EvaluationError, match="at least 2"):
        FittedScores.fit(Ordinary(samples=one, classes=ORDINARY.classes[:1], head=HEAD))


BANKS = {"too long": [[1.5, 0], [0, 1]], "too short": [[0.6, 0.6], [0, 1]], "not finite": [[np.nan, 0], [0, 1]]}


@pytest.mark.parametrize("features", BANKS.values(), ids=BANKS)
def test_a_bank_whose_features_are_not_of_unit_length_is_refused(features: list[list[float]]) -> None:
    arrays = {"bank/features": np.array(features, dtype=np.float32), "bank/classes": np.array([0, 1])}
    with pytest.raises(StoreError, match="the bank is damaged"):
        FittedScores.restored(arrays, {"scores": [], "views": []})


def test_a_bank_may_hold_rows_of_zeros() -> None:
    arrays = {"bank/features": np.array([[0.6, 0.8], [0, 0]], dtype=np.float32), "bank/classes": np.array([0, 1])}
    assert FittedScores.restored(arrays, {"scores": [], "views": []}).bank is not None
