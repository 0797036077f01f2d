"""Splits: which samples are selected, how they are labelled and named, and batches of them."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradscore.data import (
    FIT,
    TEST,
    ArraySource,
    BadSample,
    DataConfig,
    DatasetConfig,
    Preprocessing,
    PreprocessingConfig,
    SampleDataset,
    SplitInfo,
    base_split,
    collate,
    content_hash,
    open_splits,
)
from gradscore.data.dataset import lots, select
from gradscore.data.splits import SelectConfig
from gradscore.errors import DataError

LABELS = [2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
IMAGES = np.random.default_rng(1).integers(0, 256, (10, 4, 6), dtype=np.uint8)


@pytest.fixture
def npz(tmp_path: Path) -> str:
    np.savez(tmp_path / "set.npz", images=IMAGES, labels=LABELS)
    return f"npz:{tmp_path / 'set.npz'}"


def make_split(
    source: str,
    *,
    num_classes: int = 3,
    labelled: bool = True,
    fit: dict | None = None,
    preprocessing: dict | None = None,
    seed: int = 0,
    **spec: object,
) -> SampleDataset:
    """The samples to fit on, or an OOD set beside others to fit on."""
    own = {"source": source, **spec}
    ood = [] if labelled else [{"name": "set", "auxiliary": True, **own}]
    data = DataConfig.model_validate({"in_dist": {"fit": fit or own, "test": None}, "ood": ood})
    options = PreprocessingConfig.model_validate(preprocessing or {})
    return list(open_splits(data, preprocessing=options, num_classes=num_classes, seed=seed).values())[-1]


def hash_shares() -> list[float]:
    return [int(content_hash(image[..., None]), 16) / 2**64 for image in IMAGES]


MIDDLE = sorted(hash_shares())[4]

DIGITS = {"fit": {"source": "sklearn:digits"}, "num_classes": 10}

SELECTIONS = {
    "everything": ({}, range(10)),
    "classes": ({"classes": [0, 1]}, [1, 2, 4, 5, 7, 8]),
    "classes, numbers as text": ({"classes": ["0", "1"]}, [1, 2, 4, 5, 7, 8]),
    "start": ({"start": 7}, [7, 8, 9]),
    "stop": ({"stop": 2}, [0, 1]),
    "stop beyond the end": ({"stop": 99}, range(10)),
    "start and stop count within the classes": ({"classes": [2], "start": 1, "stop": 3}, [3, 6]),
    "count beyond the end": ({"count": 99}, range(10)),
    "whole hash interval": ({"hash": [0, 1]}, range(10)),
    "lower hashes": ({"hash": [0, MIDDLE]}, [n for n, share in enumerate(hash_shares()) if share < MIDDLE]),
    "lots": ({"lot": [0, 0.75]}, np.flatnonzero(lots(0).random(10) < 0.75)),
    "the other lots": ({"lot": [0.75, 1]}, np.flatnonzero(lots(0).random(10) >= 0.75)),
    "upper hashes": ({"hash": [MIDDLE, 1]}, [n for n, share in enumerate(hash_shares()) if share >= MIDDLE]),
}


@pytest.mark.parametrize(("choice", "wanted"), SELECTIONS.values(), ids=SELECTIONS)
def test_selection(npz: str, choice: dict, wanted: list[int]) -> None:
    dataset = make_split(npz, select=choice)
    assert dataset.ids == [str(place) for place in wanted]
    assert [sample.label for sample in dataset] == [LABELS[place] for place in wanted]
    assert len(dataset) == len(wanted)


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_lot_depends_on_no_numbers_that_a_program_draws_with_the_same_seed(seed: int) -> None:
    """Else a part would have all the samples whose labels a program changed by them, or none."""
    drawn = np.random.default_rng(seed).random(1000)
    assert abs(np.corrcoef(drawn, lots(seed).random(1000))[0, 1]) < 0.1


def test_a_count_is_a_random_choice_in_the_order_of_the_data() -> None:
    source = ArraySource(np.zeros((200, 1, 1, 1), dtype=np.uint8), [str(n) for n in range(200)], None)
    chosen, again, other = (select(source, SelectConfig(count=50, seed=seed)).tolist() for seed in (1, 1, 2))
    assert len(set(chosen)) == 50
    assert chosen == sorted(chosen) == again != other
    assert max(chosen) > 100


def test_sample(npz: str) -> None:
    sample = make_split(npz, select={"start": 3})[1]
    assert (sample.id, sample.label) == ("4", 0)
    assert sample.inputs.dtype == torch.float32
    torch.testing.assert_close(sample.inputs, torch.from_numpy(IMAGES[4])[None] / 255)


def test_content_hash_is_that_of_the_raw_pixels(npz: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", images=IMAGES[::-1])
    plain = [sample.content_hash for sample in make_split(npz)]
    other = make_split(f"npz:{tmp_path / 'other.npz'}", preprocessing={"resize": 2}, labelled=False, **DIGITS)
    assert [sample.content_hash for sample in other] == plain[::-1]
    assert (len(set(plain)), {len(value) for value in plain}) == (10, {16})
    assert content_hash(IMAGES[0][..., None]) == plain[0] != content_hash(IMAGES[0].reshape(6, 4, 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [(np.float32, np.float64), (np.float32, np.dtype(">f8")), (np.int32, np.int64), (np.uint16, np.int64)],
    ids=str,
)
def test_content_of_another_width_is_the_same(one: np.dtype, other: np.dtype) -> None:
    values = np.random.default_rng(0).uniform(0, 100, (3, 4)).astype(one)
    assert content_hash(values) == content_hash(values.astype(other)) != content_hash(values[::-1])
    assert content_hash({"a": values}) == content_hash({"a": values.astype(other)})


def test_numbers_that_are_the_same_for_the_network_have_the_same_content() -> None:
    values = np.random.default_rng(0).normal(size=5)
    assert content_hash(values) == content_hash(values.astype(np.float32))
    zeros = np.zeros(3)
    assert content_hash(zeros) == content_hash(-zeros)
    assert content_hash(np.array([np.nan])) == content_hash(np.array([-np.nan]))


def test_an_image_that_does_not_decode_is_in_one_part_of_several_which_names_it(tmp_path: Path) -> None:
    for place, pixels in enumerate(IMAGES):
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
    (tmp_path / "4.png").write_bytes(b"no image")
    parts = [make_split(f"folder:{tmp_path}", select={"hash": share}) for share in ([0, 0.5], [0.5, 1])]
    bad = [sample.id for part in parts for sample in part if isinstance(sample, BadSample)]
    assert bad == ["4.png"]
    assert sorted(name for part in parts for name in part.ids) == [f"{place}.png" for place in range(10)]


def test_labels_of_minus_one_and_one_are_two_classes_where_a_map_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=IMAGES, labels=np.where(np.array(LABELS) > 0, 1, -1))
    source = f"npz:{tmp_path / 'set.npz'}"
    with pytest.raises(DataError, match=r"-1 and 1, and -1 stands for no label; set label_map: \{-1: 0, 1: 1\}"):
        make_split(source, num_classes=2)
    for keys in ({-1: 0, 1: 1}, {"-1": 0, "1": 1}):  # of a configuration, and of the one that a run keeps
        found = [sample.label for sample in make_split(source, num_classes=2, label_map=keys)]
        assert found == [int(label > 0) for label in LABELS]
    assert [sample.label for sample in make_split(source, num_classes=3)] == [1 if each else -1 for each in LABELS]


def test_labels_are_mapped_after_the_selection(npz: str) -> None:
    dataset = make_split(npz, num_classes=2, select={"classes": [0, 2]}, label_map={0: 1, 2: 0})
    assert [sample.label for sample in dataset] == [0, 1, 0, 1, 0, 1, 0]


def test_synthetic_split_is_made_of_the_selected_fit_images(npz: str) -> None:
    fit = {"source": npz, "select": {"stop": 3}}
    made = make_split("synthetic:rotate90", labelled=False, fit=fit, select={"start": 1})
    assert made.ids == ["rotate90-1", "rotate90-2"]
    assert made[0].inputs.shape == (1, 6, 4)
    assert made[0].label == -1


def test_a_synthetic_split_follows_the_seed_unless_it_has_its_own(npz: str) -> None:
    fit = {"source": npz}
    sets = [
        make_split("synthetic:uniform_noise", labelled=False, fit=fit, seed=seed, arguments=arguments)
        for seed, arguments in ((0, {}), (1, {}), (0, {"seed": 1}))
    ]
    assert not torch.equal(sets[0][0].inputs, sets[1][0].inputs)
    assert torch.equal(sets[2][0].inputs, sets[1][0].inputs)


CHANGES = {
    "selection": {"select": {"stop": 9}},
    "labels": {"label_map": {0: 1, 1: 0, 2: 2}},
    "no labels": {"labelled": False, **DIGITS},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fingerprint_is_stable_and_tells_changes(npz: str, change: dict) -> None:
    assert make_split(npz, **change).fingerprint() != make_split(npz).fingerprint() == make_split(npz).fingerprint()


def test_fingerprint_tells_changed_pixels(npz: str, tmp_path: Path) -> None:
    before = make_split(npz).fingerprint()
    np.savez(tmp_path / "set.npz", images=IMAGES ^ 1, labels=LABELS)
    assert make_split(npz).fingerprint() != before


BAD_SPLITS = {
    "nothing selected": ({"select": {"classes": [7]}}, r"no sample left of 10 with select \{'classes': \[7\]\}"),
    "start beyond the end": ({"select": {"start": 10}}, "no sample left of 10"),
    "label outside the classes": ({"num_classes": 2}, r"sample 0 has label 2, and 4 labels .* classes 0\.\.1"),
    "label mapped outside": ({"label_map": {0: 0, 1: 1, 2: 5}}, "sample 0 has label 5"),
    "label map with a gap": ({"label_map": {0: 0, 1: 1}}, r"label_map says nothing of the labels \[2\]"),
    "arguments nobody takes": ({"arguments": {"root": "."}}, "takes inputs, labels, got root"),
}


@pytest.mark.parametrize(("spec", "message"), BAD_SPLITS.values(), ids=BAD_SPLITS)
def test_unusable_split(npz: str, spec: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_split(npz, **spec)


def test_classes_need_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=IMAGES)
    with pytest.raises(DataError, match=r"select\.classes needs labels"):
        make_split(f"npz:{tmp_path / 'set.npz'}", select={"classes": [0]})


def make_folder(root: Path) -> str:
    """Three images; the second does not decode and the third is larger."""
    Image.fromarray(IMAGES[0]).save(root / "a.png")
    (root / "b.png").write_bytes(b"no image")
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(root / "c.png")
    return f"folder:{root}"


def test_batch(tmp_path: Path) -> None:
    samples = list(make_split(make_folder(tmp_path), labelled=False, preprocessing={"resize": [5, 5]}, **DIGITS))
    batch = collate(samples)
    assert isinstance(samples[1], BadSample)
    assert "b.png cannot be decoded" in samples[1].error
    assert batch.ids == ["a.png", "c.png"]
    assert batch.inputs.shape == (2, 1, 5, 5)
    assert batch.labels.tolist() == [-1, -1]
    assert batch.labels.dtype == torch.int64
    assert batch.content_hashes == [samples[0].content_hash, samples[2].content_hash]
    assert batch.bad == [replace(samples[1], place=1)]


def test_batch_of_bad_samples_alone() -> None:
    bad = [BadSample("a", "broken"), BadSample("b", "broken", place=1)]
    batch = collate(bad)
    assert (batch.ids, batch.bad, len(batch.inputs), len(batch.labels)) == ([], bad, 0, 0)


def test_images_of_different_sizes_need_a_resize(tmp_path: Path) -> None:
    samples = list(make_split(make_folder(tmp_path), labelled=False, **DIGITS))
    with pytest.raises(
        DataError, match=r"c\.png has shape \(1, 9, 9\) and sample a\.png \(1, 4, 6\); set preproc.*resize"
    ):
        collate(samples)


ALL_KINDS = {
    "plain": {},
    "weights": {"weights": "ResNet18_Weights.IMAGENET1K_V1"},
    "normalised": {"mean": [0.5], "std": [0.5], "resize": 4},
}


@pytest.mark.parametrize("preprocessing", ALL_KINDS.values(), ids=ALL_KINDS)
def test_a_copy_in_another_process_gives_the_same_samples(npz: str, preprocessing: dict) -> None:
    dataset = make_split("synthetic:cutmix", labelled=False, fit={"source": npz}, preprocessing=preprocessing)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [sample.content_hash for sample in copy] == [sample.content_hash for sample in dataset]
    assert all(torch.equal(one.inputs, other.inputs) for one, other in zip(copy, dataset, strict=True))


MADE_OF = {
    "OOD set with images of its own": ("ood", "sklearn:digits", None),
    "OOD set made of others": ("ood", "synthetic:blur", FIT),
    "shifted set with images of its own": ("shifted", "folder:night", None),
    "shifted set made of others": ("shifted", "corrupted:blur", TEST),
    "in-distribution set": ("in_dist.test", "synthetic:blur", None),
    "unknown kind": ("ood", "nothing:blur", None),
}


@pytest.mark.parametrize(("kind", "source", "split"), MADE_OF.values(), ids=MADE_OF)
def test_what_a_split_is_made_of(kind: str, source: str, split: str | None) -> None:
    assert base_split(SplitInfo("any", kind), DatasetConfig(source=source)) == split


def halves(spec: str) -> DataConfig:
    return DataConfig.model_validate({
        "in_dist": {"fit": {"source": spec, "select": {"hash": [0, MIDDLE]}},
                    "test": {"source": spec, "select": {"hash": [MIDDLE, 1]}}},
    })  # fmt: skip


def test_samples_are_read_once_to_share_them_out_by_content(npz: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    sample = ArraySource.sample

    def counted(self: ArraySource, index: int) -> np.ndarray:
        read.append(index)
        return sample(self, index)

    monkeypatch.setattr(ArraySource, "sample", counted)
    opened = open_splits(halves(npz), preprocessing=PreprocessingConfig(channels=1), num_classes=3, seed=0)
    assert sorted(read) == list(range(10))
    assert sorted([*opened[FIT].ids, *opened[TEST].ids]) == sorted(map(str, range(10)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_sample_with_a_number_that_is_not_finite_cannot_be_used(tmp_path: Path, value: float) -> None:
    values = np.ones((3, 2, 2))
    values[1, 0, 1] = value
    np.savez(tmp_path / "set.npz", images=values, labels=[0, 1, 0])
    samples = [make_split(f"npz:{tmp_path / 'set.npz'}", num_classes=2)[place] for place in range(3)]
    assert [isinstance(each, BadSample) for each in samples] == [False, True, False]


def test_masks_of_attention_may_be_infinite() -> None:
    values = {"x": np.ones((3, 2), np.float32), "mask": np.full((3, 2), -np.inf, np.float32)}
    values["x"][1, 0] = np.nan
    source = ArraySource(values, ["a", "b", "c"], np.zeros(3, np.int64))
    samples = SampleDataset(source, Preprocessing(PreprocessingConfig()), labelled=True)
    assert [isinstance(samples[place], BadSample) for place in range(3)] == [False, True, False]
