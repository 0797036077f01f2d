"""Sets made of vectors, tokens and text, against what their names promise."""

import re
from typing import Any

import numpy as np
import pytest

from gradscore.data import ArraySource, SampleSource, open_source
from gradscore.data.sources.synthetic import mostly_copies
from gradscore.data.sources.value_changes import shuffled_tokens, swapped_fields
from gradscore.errors import DataError

RANDOM = np.random.default_rng(0)
LABELS = np.array([0, 0, 1, 1, 2, 2])
IDS = [str(place) for place in range(6)]
VECTORS = RANDOM.normal(size=(6, 10)).astype(np.float32)
LENGTHS = np.array([9, 5, 6, 9, 7, 8])
TOKENS = np.arange(6 * 9).reshape(6, 9)
MASKS = (np.arange(9) < LENGTHS[:, None]).astype(np.int64)


class Texts:
    """Sentences."""

    ids = IDS
    labels = LABELS

    def sample(self, index: int) -> str:
        return " ".join(f"w{index}{place}" for place in range(8))

    def content(self) -> str:
        return "texts"


OF_VECTORS = ArraySource(VECTORS, IDS, LABELS)
OF_TOKENS = ArraySource({"input_ids": TOKENS, "attention_mask": MASKS}, IDS, LABELS)
OF_PLAIN_TOKENS = ArraySource(TOKENS, IDS, LABELS)


def made(kind: str, base: SampleSource, **arguments: Any) -> list[Any]:
    source = open_source(f"synthetic:{kind}", arguments, base=base)
    return [source.sample(place) for place in range(6)]


def test_permuted_columns_are_the_own_values_in_other_places() -> None:
    found = np.stack(made("permuted_columns", OF_VECTORS))
    np.testing.assert_array_equal(np.sort(found, axis=1), np.sort(VECTORS, axis=1))
    assert (found != VECTORS).any(axis=1).all()


def test_a_mixture_is_the_mean_of_two_samples_of_different_classes() -> None:
    found = np.stack(made("feature_mixture", OF_VECTORS))
    others = 2 * found.astype(np.float64) - VECTORS
    gaps = np.abs(others[:, None] - VECTORS[None]).max(axis=2)
    assert gaps.min(axis=1).max() < 1e-6
    assert (LABELS[gaps.argmin(axis=1)] != LABELS).all()
    assert found.dtype == np.float32


BEYOND = {"feature_extrapolation": 1, "far_extrapolation": 4}


@pytest.mark.parametrize(("kind", "times"), BEYOND.items(), ids=BEYOND)
def test_an_extrapolation_lies_opposite_a_sample_of_another_class(kind: str, times: int) -> None:
    steps = (np.stack(made(kind, OF_VECTORS)) - VECTORS) / times
    gaps = np.abs((VECTORS - steps)[:, None] - VECTORS[None]).max(axis=2)
    assert gaps.min(axis=1).max() < 1e-5
    assert (LABELS[gaps.argmin(axis=1)] != LABELS).all()


@pytest.mark.parametrize("kind", ["feature_mixture", *BEYOND, "extrapolated_fields"])
def test_no_more_values_are_missing_than_are_of_the_samples(kind: str) -> None:
    values = VECTORS.copy()
    values[np.random.default_rng(1).random(values.shape) < 0.3] = np.nan
    found = np.stack(made(kind, ArraySource(values, IDS, LABELS)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))


def test_half_of_the_fields_are_extrapolated() -> None:
    found = np.stack(made("extrapolated_fields", OF_VECTORS))
    stays = found == VECTORS
    assert stays.sum(axis=1).tolist() == [5] * 6
    assert len({tuple(row) for row in stays}) > 1
    gaps = np.abs((2 * VECTORS - found)[:, None] - VECTORS[None])
    farthest = np.where(stays[:, None], 0, gaps).max(axis=2)
    farthest[np.arange(6), np.arange(6)] = np.inf
    assert farthest.min(axis=1).max() < 1e-5
    assert (LABELS[farthest.argmin(axis=1)] != LABELS).all()


NAMED = {"num": VECTORS, "cat": TOKENS[:, :3], "mask": MASKS.astype(np.float32), "flag": TOKENS[:, :2] % 2 == 0}
OF_NAMED = ArraySource(NAMED, IDS, LABELS)


@pytest.mark.parametrize("kind", ["permuted_columns", "feature_mixture", *BEYOND, "extrapolated_fields"])
def test_of_several_inputs_those_of_floats_are_changed_as_vectors_are(kind: str) -> None:
    """What is no vector of floats stays, and so does a mask."""
    found = made(kind, OF_NAMED)
    for place, (sample, alone) in enumerate(zip(found, made(kind, OF_VECTORS), strict=True)):
        assert list(sample) == list(NAMED)
        np.testing.assert_array_equal(sample["num"], alone)
        for name in ("cat", "mask", "flag"):
            np.testing.assert_array_equal(sample[name], NAMED[name][place])
            assert sample[name].dtype == NAMED[name].dtype


def test_every_input_of_floats_is_extrapolated_away_from_the_same_sample() -> None:
    """By hand, x + 4 (x - other), with the first and the only sample of another class."""
    base = ArraySource({"a": VECTORS[:2], "b": VECTORS[:2, :3] * 2, "c": VECTORS[:2, 0]}, IDS[:2], np.array([0, 1]))
    found = open_source("synthetic:far_extrapolation", base=base).sample(0)
    a, b = (each.astype(np.float64) for each in VECTORS[:2])
    np.testing.assert_allclose(found["a"], 5 * a - 4 * b, rtol=1e-6)
    np.testing.assert_allclose(found["b"], 10 * a[:3] - 8 * b[:3], rtol=1e-6)
    np.testing.assert_allclose(found["c"], 5 * a[0] - 4 * b[0], rtol=1e-6)
    assert [(type(each), each.dtype) for each in found.values()] == [(np.ndarray, np.dtype(np.float32))] * 3


class Lengths(Texts):
    """Ten numbers or four, and codes."""

    ids, labels = IDS[:2], np.array([0, 1])

    def sample(self, index: int) -> Any:
        return {"num": VECTORS[index, : [10, 4][index]], "cat": TOKENS[index, :3]}


def test_what_a_shorter_sample_lacks_stays() -> None:
    found = open_source("synthetic:feature_extrapolation", base=Lengths()).sample(0)["num"]
    np.testing.assert_allclose(found[:4], 2 * VECTORS[0, :4] - VECTORS[1, :4], rtol=1e-5)
    np.testing.assert_array_equal(found[4:], VECTORS[0, 4:])


@pytest.mark.parametrize("kind", ["permuted_columns", "feature_mixture", *BEYOND, "extrapolated_fields"])
def test_without_an_input_of_floats_they_are_refused(kind: str) -> None:
    with pytest.raises(
        DataError, match=rf"synthetic:{kind} is for vectors .* the samples are cat int64 .*mask float32"
    ):
        made(kind, ArraySource({"cat": TOKENS[:, :3], "mask": NAMED["mask"]}, IDS, LABELS))


def test_swapped_fields_take_half_of_the_columns_from_another_class() -> None:
    found = np.stack(made("swapped_fields", OF_VECTORS))
    own = found == VECTORS
    assert own.sum(axis=1).tolist() == [5] * 6
    rows, columns = np.nonzero(~own)
    from_others = [VECTORS[LABELS[row] != LABELS, column] for row, column in zip(rows, columns, strict=True)]
    assert all(value in others for value, others in zip(found[~own], from_others, strict=True))


def test_shuffled_tokens_leave_the_ends_and_the_padding() -> None:
    found = made("shuffled_tokens", OF_TOKENS)
    tokens, masks = (np.stack([sample[name] for sample in found]) for name in ("input_ids", "attention_mask"))
    np.testing.assert_array_equal(masks, MASKS)
    np.testing.assert_array_equal(np.sort(tokens, axis=1), TOKENS)
    np.testing.assert_array_equal(tokens[:, 0], TOKENS[:, 0])
    last = (np.arange(6), LENGTHS - 1)
    np.testing.assert_array_equal(tokens[last], TOKENS[last])
    np.testing.assert_array_equal(tokens[MASKS == 0], TOKENS[MASKS == 0])
    assert (tokens != TOKENS).any(axis=1).sum() >= 5


def test_swapped_tokens_end_as_a_sample_of_another_class() -> None:
    found = np.stack([sample["input_ids"] for sample in made("swapped_fields", OF_TOKENS)])
    half = LENGTHS // 2
    front = np.arange(9) < half[:, None]
    np.testing.assert_array_equal(found[front], TOKENS[front])
    others = found[:, -1] // 9
    np.testing.assert_array_equal(np.where(front, TOKENS, TOKENS[others]), found)
    assert (LABELS[others] != LABELS).all()


def test_tokens_without_a_mask() -> None:
    found = np.stack(made("shuffled_tokens", OF_PLAIN_TOKENS))
    np.testing.assert_array_equal(np.sort(found, axis=1), TOKENS)
    np.testing.assert_array_equal(found[:, [0, -1]], TOKENS[:, [0, -1]])


def test_text_is_shuffled_and_swapped_by_words() -> None:
    base = Texts()
    shuffled, swapped = made("shuffled_tokens", base), made("swapped_fields", base)
    assert [sorted(text.split()) for text in shuffled] == [base.sample(place).split() for place in range(6)]
    assert [text.split()[:4] for text in swapped] == [base.sample(place).split()[:4] for place in range(6)]
    assert all(text.split()[4][1] != text.split()[0][1] for text in swapped)


@pytest.mark.parametrize("base", [OF_TOKENS, OF_PLAIN_TOKENS], ids=["mask", "no mask"])
def test_random_tokens_are_inner_ones_of_any_sample(base: SampleSource) -> None:
    lengths = LENGTHS if base is OF_TOKENS else np.full(6, 9)
    inside = (np.arange(9) > 0) & (np.arange(9) < lengths[:, None] - 1)
    found, some = (np.stack([ids_of(each) for each in made(kind, base)]) for kind in RANDOM_KINDS)
    np.testing.assert_array_equal(found[~inside], TOKENS[~inside])
    assert np.isin(found[inside], TOKENS[inside]).all()
    assert len(np.unique(found[inside] // 9)) == 6
    replaced = (some != TOKENS).sum(axis=1)
    assert (replaced <= (inside.sum(axis=1) + 1) // 2).all()
    assert replaced.sum() > 6


RANDOM_KINDS = ("random_tokens", "some_random_tokens")


def ids_of(sample: Any) -> Any:
    return sample["input_ids"] if isinstance(sample, dict) else sample


def test_arrays_of_a_random_token_stay_together() -> None:
    kinds = TOKENS % 3
    base = ArraySource({"input_ids": TOKENS, "kinds": kinds, "attention_mask": MASKS}, IDS, LABELS)
    for sample in made("random_tokens", base):
        np.testing.assert_array_equal(sample["kinds"], sample["input_ids"] % 3)
        assert [each.dtype for each in sample.values()] == [TOKENS.dtype, kinds.dtype, MASKS.dtype]


class Repeated(Texts):
    """One word is 99 of a hundred."""

    def sample(self, index: int) -> str:
        return "often " * 99 + f"rare{index}"


def test_random_words_are_as_often_rare_ones() -> None:
    words = " ".join(made("random_tokens", Repeated())).split()
    assert len(words) == 600
    counts = [words.count(word) for word in ("often", *(f"rare{index}" for index in range(6)))]
    assert sum(counts) == 600
    assert max(abs(count - 600 / 7) for count in counts) < 5 * np.sqrt(600 / 7)
    assert sum(text.split().count("often") for text in made("some_random_tokens", Repeated())) < 6 * 75


class Words(Texts):
    """One word each, of three."""

    def sample(self, index: int) -> str:
        return ("yes", "no", "maybe")[index // 2]


ONE_HOT = ArraySource(np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0, 1]], IDS, LABELS)
VECTOR_KINDS = ["swapped_fields", "permuted_columns", "feature_mixture", "feature_extrapolation"]
TEXT_KINDS = ["shuffled_tokens", "swapped_fields", *RANDOM_KINDS, "blended_words"]
COPIES = {
    "words": (Words(), TEXT_KINDS, {"shuffled_tokens", *RANDOM_KINDS}),
    "sentences": (Texts(), TEXT_KINDS, set()),
    "one-hot columns": (ONE_HOT, VECTOR_KINDS, {"permuted_columns"}),
    "numbers": (OF_VECTORS, VECTOR_KINDS, set()),
    "words of one class": (ArraySource(TOKENS[:, :3], IDS, LABELS * 0), ["swapped_fields"], set()),
}


@pytest.mark.parametrize(("base", "kinds", "wanted"), COPIES.values(), ids=COPIES)
def test_sets_that_are_mostly_copies_are_known(base, kinds, wanted) -> None:
    found = mostly_copies(kinds, base, seed=0)
    samples = [np.asarray(base.sample(place)).tobytes() for place in range(6)]
    made_of = {kind: [np.asarray(each).tobytes() for each in made(kind, base)] for kind in found}
    assert found == {kind: sum(each in samples for each in sets) / 6 for kind, sets in made_of.items()}
    assert wanted <= set(found) <= {*wanted, "swapped_fields"}


def test_blended_words_end_as_words_of_another_class() -> None:
    for place, text in enumerate(made("blended_words", Texts())):
        for word, own in zip(text.split(), Texts().sample(place).split(), strict=True):
            assert (word[:2], len(word)) == (own[:2], 4)
            assert LABELS[int(word[2])] != LABELS[place]
    known = ArraySource(TOKENS, IDS, LABELS)
    with pytest.raises(DataError, match=r"blended_words is for text"):
        open_source("synthetic:blended_words", base=known)


class Two(Texts):
    """A word of small and a word of large letters."""

    ids, labels = IDS[:2], np.array([0, 1])

    def sample(self, index: int) -> str:
        return ["abcde  fg", "VWXYZ"][index]


def test_halves_of_words() -> None:
    source = open_source("synthetic:blended_words", base=Two())
    assert [source.sample(0), source.sample(1) in ("VWXde", "VWXg")] == ["abcXYZ  fXYZ", True]


SPACED = "  Two  words,\n\tthen\tthree more. "
OTHER = "one\n\n\nanother  text\n"


def gaps(text: str) -> list[str]:
    return re.split(r"\S+", text)


def test_shuffled_words_leave_the_white_space() -> None:
    found = shuffled_tokens(SPACED, "", np.random.default_rng(1))
    assert found != SPACED
    assert (gaps(found), sorted(found.split())) == (gaps(SPACED), sorted(SPACED.split()))


SWAPPED = {
    "words": (SPACED, OTHER, "  Two  words,\n\tthen\tanother  text\n"),
    "one word": ("One ", OTHER, "One another  text\n"),
    "another without words": (SPACED, " ", "  Two  words,\n\tthen"),
    "nothing": ("", OTHER, "another  text\n"),
}


@pytest.mark.parametrize(("sample", "other", "wanted"), SWAPPED.values(), ids=SWAPPED)
def test_swapped_texts_keep_their_white_space(sample: str, other: str, wanted: str) -> None:
    assert swapped_fields(sample, other, np.random.default_rng(0)) == wanted


KINDS = {
    "shuffled_tokens": OF_TOKENS,
    "random_tokens": OF_TOKENS,
    "blended_words": Texts(),
    "swapped_fields": OF_VECTORS,
    "permuted_columns": OF_VECTORS,
}


@pytest.mark.parametrize(("kind", "base"), KINDS.items(), ids=KINDS)
def test_they_follow_the_seed(kind: str, base: SampleSource) -> None:
    first, again, other = (str(made(kind, base, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_images_have_sets_of_their_own() -> None:
    images = ArraySource(np.zeros((6, 4, 4, 1), dtype=np.uint8), IDS, LABELS)
    with pytest.raises(DataError, match=r"samples that are no images, .*for them there are: blur"):
        open_source("synthetic:feature_mixture", base=images)
