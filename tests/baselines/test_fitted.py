"""All scores of a run: what is fitted, tables of them, and what is stored."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from score_names import score_names
from threadpoolctl import threadpool_limits

from gradscore.baselines import (
    BASELINES,
    OVER_AUGMENTATIONS,
    FittedBaselines,
    InDistribution,
    NetworkOutputs,
    plain_name,
)
from gradscore.errors import EvaluationError, MissingExtraError, StoreError
from gradscore.models.layers import Head

GENERATOR = np.random.default_rng(0)
M, D, K = 80, 6, 3
HEAD = Head(weight=GENERATOR.normal(size=(K, D)), bias=GENERATOR.normal(size=K))


def look(features):
    return NetworkOutputs(logits=features @ HEAD.weight.T + HEAD.bias, penultimate=features)


def samples(count, *, seed, content="new"):
    generator = np.random.default_rng(seed)
    features = np.abs(generator.normal(1.0, 1.0, (count, D)))
    augmentations = {
        name: look(np.abs(features + generator.normal(0, 0.1, features.shape))) for name in ("flip", "shift")
    }
    hashes = np.array([f"{content}{place}" for place in range(count)], dtype=np.str_)
    return replace(look(features), augmentations=augmentations, content=hashes)


IN_DIST = InDistribution(outputs=samples(M, seed=1, content="bank"), classes=np.arange(M) % K, head=HEAD)
NEW = samples(13, seed=2)
WHOLE = FittedBaselines.fit(IN_DIST, augmentations=["flip", "shift"])
PLAIN = FittedBaselines.fit(IN_DIST)
LOGITS = FittedBaselines.fit(
    InDistribution(outputs=NetworkOutputs(logits=IN_DIST.outputs.logits), classes=IN_DIST.classes)
)
FITTED = {"features and augmentations": WHOLE, "features": PLAIN, "logits": LOGITS}


def table_of(fitted, outputs):
    return pd.DataFrame(fitted.scores(outputs))


NAMES = {
    "logits": (LOGITS, score_names("logits")),
    "features": (PLAIN, score_names("logits") + score_names("neighbours") + score_names("penultimate")),
    "features and augmentations": (
        WHOLE,
        [
            *BASELINES,
            *(
                name + OVER_AUGMENTATIONS
                for name in BASELINES
                if BASELINES[name].needs not in ("augmentations", "features of augmentations")
            ),
        ],
    ),
}


@pytest.mark.parametrize(("fitted", "names"), NAMES.values(), ids=NAMES)
def test_every_score_that_samples_allow_is_there(fitted, names):
    assert sorted(fitted.names) == sorted(names)
    assert list(table_of(fitted, NEW).columns) == fitted.names


def test_augmentations_of_logits_alone_have_no_score_of_features():
    bare = {name: NetworkOutputs(logits=augmentation.logits) for name, augmentation in NEW.augmentations.items()}
    in_dist = InDistribution(outputs=NetworkOutputs(logits=NEW.logits, augmentations=bare), classes=NEW.predictions)
    names = FittedBaselines.fit(in_dist, augmentations=["flip", "shift"]).names
    assert {"augmentations_probability", "msp@augmentations"} <= set(names)
    assert not {"augmentations_features", "knn", "vim"} & set(names)


def test_inputs_and_compared_are_those_that_say_so():
    assert {plain_name(name) for name in WHOLE.inputs} == {name for name in BASELINES if BASELINES[name].is_input}
    assert {plain_name(name) for name in WHOLE.compared} == {name for name in BASELINES if BASELINES[name].is_compared}


@pytest.mark.parametrize("name", ["msp", "vim", "gradnorm"])
def test_over_augmentations_is_the_mean_over_the_sample_and_its_augmentations(name):
    table = table_of(WHOLE, NEW)
    looks = [BASELINES[name].of(each, WHOLE.learned[name]) for each in (NEW, *NEW.augmentations.values())]
    np.testing.assert_allclose(table[name], looks[0], rtol=1e-12)
    np.testing.assert_allclose(table[name + OVER_AUGMENTATIONS], (looks[0] + looks[1] + looks[2]) / 3, rtol=1e-12)


def test_neighbours_of_augmentations_leave_out_the_sample_that_they_are_of():
    """Augmentations of samples of the bank, with the classes that are predicted of the samples themselves."""
    table = table_of(WHOLE, IN_DIST.outputs)
    found = [
        WHOLE.bank.neighbours(each.penultimate, IN_DIST.outputs.predictions, IN_DIST.outputs.content)
        for each in (IN_DIST.outputs, *IN_DIST.outputs.augmentations.values())
    ]
    np.testing.assert_allclose(
        table["knn_1" + OVER_AUGMENTATIONS], np.mean([each.distances[:, 0] for each in found], axis=0), rtol=1e-12
    )
    np.testing.assert_allclose(
        table["class_knn" + OVER_AUGMENTATIONS], np.mean([each.of_class[:, -1] for each in found], axis=0), rtol=1e-12
    )


def test_augmentations_that_do_not_count_are_not_looked_at():
    fitted = FittedBaselines.fit(IN_DIST, augmentations=["flip"])
    only = replace(NEW, augmentations={"flip": NEW.augmentations["flip"]})
    np.testing.assert_array_equal(table_of(fitted, NEW), table_of(fitted, only))


def restored_of(fitted, arrays):
    return FittedBaselines.restored(arrays, names=list(fitted.learned), augmentations=fitted.augmentations)


@pytest.mark.parametrize("fitted", FITTED.values(), ids=FITTED)
def test_a_round_trip_scores_the_same_bits(fitted):
    arrays = {name: values.copy() for name, values in fitted.arrays().items()}
    restored = restored_of(fitted, arrays)
    assert restored.names == fitted.names
    asked = replace(NEW, content=np.r_[["bank3"], NEW.content[1:]])
    assert table_of(restored, asked).to_numpy().tobytes() == table_of(fitted, asked).to_numpy().tobytes()


def wide(count, *, seed):
    """As those of a small network: 64 features, ten classes, and two augmentations."""
    generator = np.random.default_rng(seed)
    head = np.random.default_rng(0).normal(size=(10, 64))
    looks = np.abs(generator.normal(1.0, 1.0, (3, count, 64)))
    plain, *augmentations = (NetworkOutputs(logits=each @ head.T, penultimate=each) for each in looks)
    return replace(plain, augmentations=dict(zip(["flip", "shift"], augmentations, strict=True))), Head(
        weight=head, bias=np.ones(10)
    )


def some(samples, rows):
    augmentations = {name: some(augmentation, rows) for name, augmentation in samples.augmentations.items()}
    return NetworkOutputs(
        logits=samples.logits[rows], penultimate=samples.penultimate[rows], augmentations=augmentations
    )


@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_a_sample_scores_the_same_in_any_company(rows):
    """With more than one thread of OpenBLAS as well, which deal rows out by how many there are."""
    in_dist, head = wide(200, seed=1)
    fitted = FittedBaselines.fit(
        InDistribution(outputs=in_dist, classes=np.arange(200) % 10, head=head), augmentations=["flip", "shift"]
    )
    new, _ = wide(min(130, 30 * rows), seed=2)
    with threadpool_limits(2, user_api="blas"):
        parts = [table_of(fitted, some(new, slice(start, start + rows))) for start in range(0, len(new.logits), rows)]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), table_of(fitted, new), check_exact=True)


def test_content_is_stored_as_it_is_or_not_at_all():
    restored = restored_of(WHOLE, WHOLE.arrays())
    np.testing.assert_array_equal(restored.bank.content, IN_DIST.outputs.content)
    assert restored.bank.content.dtype.kind == "U"
    assert restored_of(WHOLE, WHOLE.arrays(content=False)).bank.content is None


def test_an_unknown_baseline_is_refused():
    with pytest.raises(StoreError, match="'of another package' unknown here"):
        FittedBaselines.restored({}, names=["msp", "of another package"], augmentations=[])


@pytest.mark.parametrize("fitted", FITTED.values(), ids=FITTED)
def test_no_samples_have_an_empty_table(fitted):
    none = NetworkOutputs(logits=np.empty((0, K)))
    assert table_of(fitted, none).shape == (0, len(fitted.names))
    assert list(table_of(fitted, none).columns) == fitted.names


MISSING = {
    "no features": (NetworkOutputs(logits=NEW.logits, augmentations=NEW.augmentations), "wanted penultimate features"),
    "no augmentation": (replace(NEW, augmentations={"flip": NEW.augmentations["flip"]}), "augmentation 'shift'"),
    "not finite": (replace(NEW, penultimate=np.full((13, D), np.nan)), "not finite"),
}


@pytest.mark.parametrize(("asked", "message"), MISSING.values(), ids=MISSING)
def test_samples_of_which_less_is_known_are_refused(asked, message):
    with pytest.raises(EvaluationError, match=message):
        table_of(WHOLE, asked)


def test_a_score_whose_package_is_missing_is_left_out_with_a_notice(monkeypatch):
    def fit(_in_dist):
        raise MissingExtraError("energy needs a package; pip install it")

    monkeypatch.setitem(BASELINES._entries, "energy", replace(BASELINES["energy"], fit=fit))
    found = FittedBaselines.fit(IN_DIST)
    assert "energy" not in found.names
    assert found.notices == ["energy needs a package; pip install it"]


def test_too_few_samples_are_refused():
    one = NetworkOutputs(logits=IN_DIST.outputs.logits[:1], penultimate=IN_DIST.outputs.penultimate[:1])
    with pytest.raises(EvaluationError, match="at least 2"):
        FittedBaselines.fit(InDistribution(outputs=one, classes=IN_DIST.classes[:1], head=HEAD))


def test_distances_from_few_samples_that_fit_meta_models_are_no_inputs():
    """Of fewer than two for each dimension; they are compared all the same."""
    few = NetworkOutputs(logits=IN_DIST.outputs.logits[:12], penultimate=IN_DIST.outputs.penultimate[:12])
    in_dist = InDistribution(outputs=few, classes=IN_DIST.classes[:12], head=HEAD)
    leaving_out = {"mahalanobis", "relative_mahalanobis", "unit_mahalanobis", "fdbd"}
    fitted = FittedBaselines.fit(in_dist, on_others=False)
    assert set(FittedBaselines.fit(in_dist).inputs) - set(fitted.inputs) == leaving_out
    assert fitted.compared == PLAIN.compared
    assert FittedBaselines.fit(IN_DIST, on_others=False).inputs == PLAIN.inputs


LEAVING_OUT = [name for name in BASELINES if BASELINES[name].leaves_out]


@cache
def scored_without(sample):
    """The scores of one sample by the same as `WHOLE`, fitted without it."""
    rest = np.arange(M) != sample

    def of(outputs):
        parts = {name: of(each) for name, each in outputs.augmentations.items()}
        content = None if outputs.content is None else outputs.content[rest]
        return NetworkOutputs(
            logits=outputs.logits[rest], penultimate=outputs.penultimate[rest], augmentations=parts, content=content
        )

    in_dist = InDistribution(outputs=of(IN_DIST.outputs), classes=IN_DIST.classes[rest], head=HEAD)
    return table_of(FittedBaselines.fit(in_dist, augmentations=["flip", "shift"]), IN_DIST.outputs).iloc[sample]


@pytest.mark.parametrize("name", [*LEAVING_OUT, *(name + OVER_AUGMENTATIONS for name in LEAVING_OUT)])
def test_a_sample_that_fitted_scores_as_if_it_had_not(name):
    """Against fits without each of the samples, from the start."""
    found = table_of(WHOLE, IN_DIST.outputs)[name].to_numpy()
    expected = [scored_without(place)[name] for place in range(0, M, 9)]
    np.testing.assert_allclose(found[::9], expected, rtol=1e-9)
    assert not np.isclose(found, table_of(WHOLE, replace(IN_DIST.outputs, content=None))[name]).any()


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis", "unit_mahalanobis"])
def test_a_direction_that_one_sample_alone_has_is_gone_without_it(name):
    """As a unit that is active in one sample: nothing is known of how far others go along it."""
    alone = IN_DIST.outputs.penultimate.copy()
    alone[:, 0] = 0.0
    alone[7, 0] = 3.0
    outputs = replace(IN_DIST.outputs, penultimate=alone, augmentations={})
    found = table_of(FittedBaselines.fit(replace(IN_DIST, outputs=outputs)), outputs)[name].iloc[7]
    rest = np.arange(M) != 7
    others = NetworkOutputs(logits=outputs.logits[rest], penultimate=alone[rest])
    refitted = FittedBaselines.fit(InDistribution(outputs=others, classes=IN_DIST.classes[rest], head=HEAD))
    assert found == pytest.approx(table_of(refitted, outputs)[name].iloc[7], rel=1e-6)


def test_a_class_of_one_sample_is_gone_without_it():
    classes = np.where(np.arange(M) == 7, 9, IN_DIST.classes)
    in_dist = replace(IN_DIST, classes=classes)
    found = table_of(FittedBaselines.fit(in_dist), IN_DIST.outputs)["mahalanobis"].iloc[7]
    rest = np.arange(M) != 7
    outputs = NetworkOutputs(logits=in_dist.outputs.logits[rest], penultimate=in_dist.outputs.penultimate[rest])
    others = FittedBaselines.fit(InDistribution(outputs=outputs, classes=classes[rest], head=HEAD))
    assert found == pytest.approx(table_of(others, IN_DIST.outputs)["mahalanobis"].iloc[7])


def test_samples_among_others_that_fitted_are_scored_alike():
    both = replace(NEW, content=np.array([*IN_DIST.outputs.content[:4], *NEW.content[4:]]))
    found = table_of(WHOLE, replace(both, penultimate=NEW.penultimate))
    pd.testing.assert_frame_equal(found[LEAVING_OUT].iloc[4:], table_of(WHOLE, NEW)[LEAVING_OUT].iloc[4:])


@pytest.mark.parametrize("name", LEAVING_OUT)
def test_an_axis_that_holds_rounding_alone_tells_nothing(name):
    """Features after a layer norm have a constant sum but for rounding, which is another number in another batch."""
    generator = np.random.default_rng(5)
    whole = generator.normal(size=(M, D)) * 0.05
    whole = whole - whole.mean(axis=1, keepdims=True)
    rounded, again = (whole + generator.normal(scale=1e-8, size=whole.shape) for _ in range(2))
    fitted = FittedBaselines.fit(InDistribution(outputs=look(rounded), classes=IN_DIST.classes, head=HEAD))
    first, second = (table_of(fitted, look(each))[name].to_numpy() for each in (rounded, again))
    np.testing.assert_allclose(second, first, atol=1e-3 * first.std())
