"""Names of classes: the same class in every split, never shifted, whatever is missing there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gradscore.data import DataConfig, PreprocessingConfig, SampleDataset, open_splits
from gradscore.errors import DataError

ANIMALS = ["cat", "dog", "owl"]


def save_classes(folder: Path, *names: str, count: int = 2) -> str:
    """A folder with a sub-folder for each class; a name that begins with ! has no image."""
    for name in names:
        inner = folder / name.removeprefix("!")
        inner.mkdir(parents=True)
        pixels = np.random.default_rng(len(str(inner))).integers(0, 256, (count, 4, 4), dtype=np.uint8)
        kept = pixels[: 0 if name.startswith("!") else count]
        for place, each in enumerate(kept):
            Image.fromarray(each).save(inner / f"{place}.png")
    return f"folder:{folder}"


def opened(
    fit: str | dict[str, Any],
    test: str | dict[str, Any],
    *,
    num_classes: int = 3,
    model_names: list[str] | None = None,
    ood: list[dict[str, Any]] | None = None,
    **data: Any,
) -> dict[str, SampleDataset]:
    specs = {name: {"source": spec} if isinstance(spec, str) else spec for name, spec in (("fit", fit), ("test", test))}
    return open_splits(
        DataConfig.model_validate({"in_dist": specs, "ood": ood or [], **data}),
        preprocessing=PreprocessingConfig(),
        num_classes=num_classes,
        seed=0,
        model_names=model_names,
    )


def labels(dataset: SampleDataset) -> dict[str, int]:
    """The class of each sample by the folder it is in."""
    return {sample.id.partition("/")[0]: sample.label for sample in dataset}


MISSING = {
    "a folder is missing in test": (ANIMALS, ["cat", "owl"]),
    "a folder is empty in test": (ANIMALS, ["cat", "!dog", "owl"]),
    "a folder is missing in fit": (["cat", "owl"], ANIMALS),
    "nothing is missing": (ANIMALS, ANIMALS),
}


@pytest.mark.parametrize(("fit", "test"), MISSING.values(), ids=MISSING)
def test_a_class_is_the_same_in_every_split(tmp_path: Path, fit: list[str], test: list[str]) -> None:
    found = opened(save_classes(tmp_path / "fit", *fit), save_classes(tmp_path / "test", *test))
    wanted = {name: place for place, name in enumerate(ANIMALS)}
    seen = [labels(dataset) for dataset in found.values()]
    assert seen[0] == {name: wanted[name] for name in fit}
    assert seen[1] == {name: wanted[name] for name in test if not name.startswith("!")}
    assert list(found["in_dist.test"].class_names) == ANIMALS


def test_the_splits_that_are_not_asked_for_count(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / "fit", *ANIMALS), save_classes(tmp_path / "test", "cat", "owl")]
    specs = {name: {"source": source} for name, source in zip(("fit", "test"), sources, strict=True)}
    data = DataConfig.model_validate({"in_dist": specs})
    options = {"preprocessing": PreprocessingConfig(), "num_classes": 3, "seed": 0}
    assert labels(open_splits(data, only=["in_dist.test"], **options)["in_dist.test"]) == {"cat": 0, "owl": 2}


def test_a_class_that_no_split_has_is_refused_since_it_would_shift_the_others(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / name, "cat", "owl") for name in ("fit", "test")]
    with pytest.raises(DataError, match=r"2 classes \(cat, owl\), and the model has 3, .*data\.class_names"):
        opened(*sources)


def test_an_empty_folder_too_many_is_named(tmp_path: Path) -> None:
    fit, test = save_classes(tmp_path / "fit", *ANIMALS), save_classes(tmp_path / "test", "!cow", *ANIMALS)
    with pytest.raises(DataError, match=r"has label 3 \(owl\).*no sample is of class cow.*data\.class_names"):
        opened(fit, test)
    found = opened(fit, test, class_names=ANIMALS)
    assert [labels(each) for each in found.values()] == [{name: place for place, name in enumerate(ANIMALS)}] * 2


def test_names_of_the_model_say_which_classes_these_are(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / name, "cat", "owl") for name in ("fit", "test")]
    found = opened(*sources, model_names=["owl", "ant", "cat"])
    assert labels(found["in_dist.fit"]) == {"cat": 2, "owl": 0}
    assert list(found["in_dist.fit"].class_names) == ["owl", "ant", "cat"]


def test_names_of_the_model_that_the_data_do_not_know_are_no_names(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / name, *ANIMALS) for name in ("fit", "test")]
    found = opened(*sources, model_names=["LABEL_0", "LABEL_1", "LABEL_2"])
    assert list(found["in_dist.fit"].class_names) == ANIMALS


FILES = {
    "lines": ("names.txt", "owl\ncat\ndog\n"),
    "JSON mapping": ("names.json", json.dumps({"2": "dog", "0": "owl", "1": "cat"})),
}


@pytest.mark.parametrize(("name", "text"), FILES.values(), ids=FILES)
def test_names_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    sources = [save_classes(tmp_path / split, "cat", "owl") for split in ("fit", "test")]
    found = opened(*sources, class_names=tmp_path / name)
    assert labels(found["in_dist.test"]) == {"cat": 1, "owl": 0}
    assert list(found["in_dist.test"].class_names) == ["owl", "cat", "dog"]


BAD_NAMES = {
    "too few": (["cat", "dog"], "wanted one name for each of the 3 classes of the model, got 2 names"),
    "others": (["cat", "dog", "eel"], "no class 'owl'"),
    "no such file": (Path("/nowhere/names.txt"), "cannot be read"),
}


@pytest.mark.parametrize(("names", "message"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_do_not_fit(tmp_path: Path, names: object, message: str) -> None:
    sources = [save_classes(tmp_path / split, *ANIMALS) for split in ("fit", "test")]
    with pytest.raises(DataError, match=message):
        opened(*sources, class_names=names)


MAPS: dict[str, tuple[dict[Any, Any], dict[str, Any]]] = {
    "names to numbers": ({"cat": 1, "dog": 0, "owl": 2}, {}),
    "names to names": ({"cat": "chat", "dog": "chien", "owl": "hibou"}, {"class_names": ["chien", "chat", "hibou"]}),
}


@pytest.mark.parametrize(("label_map", "data"), MAPS.values(), ids=MAPS)
def test_label_maps_take_names(tmp_path: Path, label_map: dict, data: dict) -> None:
    fit = {"source": save_classes(tmp_path / "fit", *ANIMALS), "label_map": label_map}
    test = {"source": save_classes(tmp_path / "test", "cat", "owl"), "label_map": label_map}
    found = opened(fit, test, **data)
    assert labels(found["in_dist.fit"]) == {"cat": 1, "dog": 0, "owl": 2}
    assert labels(found["in_dist.test"]) == {"cat": 1, "owl": 2}
    assert list(found["in_dist.fit"].class_names) == data.get("class_names", ["dog", "cat", "owl"])


def test_a_label_map_names_what_it_leaves_out(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / split, *ANIMALS) for split in ("fit", "test")]
    with pytest.raises(DataError, match=r"label_map says nothing of the labels \['owl'\]"):
        opened({"source": sources[0], "label_map": {"cat": 0, "dog": 1}}, sources[1])


def test_a_label_map_to_a_name_wants_names_of_the_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.zeros((2, 4, 4), dtype=np.uint8), labels=[0, 1])
    source = {"source": f"npz:{tmp_path}/set.npz", "label_map": {0: "cat", 1: 1}}
    with pytest.raises(DataError, match=r"'cat' is a name, and the classes have none; .*data\.class_names"):
        opened(source, source)


def test_classes_are_selected_by_name(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / split, *ANIMALS) for split in ("fit", "test")]
    found = opened({"source": sources[0], "select": {"classes": ["dog", 2]}}, sources[1])
    assert labels(found["in_dist.fit"]) == {"dog": 1, "owl": 2}


def test_ood_sets_have_classes_of_their_own(tmp_path: Path) -> None:
    sources = [save_classes(tmp_path / split, *ANIMALS) for split in ("fit", "test")]
    other = {"name": "plants", "source": save_classes(tmp_path / "ood", "fern", "oak"), "select": {"classes": ["oak"]}}
    found = opened(*sources, ood=[other])
    assert labels(found["ood.plants"]) == {"oak": -1}
    assert list(found["in_dist.fit"].class_names) == ANIMALS


def test_labels_without_names_stay_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.zeros((3, 4, 4), dtype=np.uint8), labels=[2, 0, 1])
    found = opened(save_classes(tmp_path / "fit", *ANIMALS), f"npz:{tmp_path}/set.npz")
    assert [sample.label for sample in found["in_dist.test"]] == [2, 0, 1]


def save_numbers(file: Path, values: list[int]) -> str:
    """Samples whose labels are numbers without names."""
    np.savez(file, images=np.zeros((len(values), 4, 4), dtype=np.uint8), labels=values)
    return f"npz:{file}"


def test_folders_with_numbers_as_names_are_these_classes(tmp_path: Path) -> None:
    folders = save_classes(tmp_path / "fit", *map(str, range(12)))
    found = opened(folders, save_numbers(tmp_path / "set.npz", list(range(12))), num_classes=12)
    assert labels(found["in_dist.fit"]) == {str(number): number for number in range(12)}
    assert [sample.label for sample in found["in_dist.test"]] == list(range(12))
    assert list(found["in_dist.fit"].class_names) == [str(number) for number in range(12)]


NUMBER_MAPS: dict[str, dict[Any, Any]] = {
    "by number": {0: 5, 1: 6, 2: 7},
    "name before number": {1: 0, "1": 6, 2: 7},
}


@pytest.mark.parametrize("label_map", NUMBER_MAPS.values(), ids=NUMBER_MAPS)
def test_a_number_in_a_label_map_is_the_folder_of_that_number(tmp_path: Path, label_map: dict) -> None:
    fit = {"source": save_classes(tmp_path / "fit", "1", "2"), "label_map": label_map}
    assert labels(opened(fit, fit, num_classes=8)["in_dist.fit"]) == {"1": 6, "2": 7}


def test_positions_of_folders_with_numbers_as_names_count_for_nothing(tmp_path: Path) -> None:
    fit = {"source": save_classes(tmp_path / "fit", "1", "2"), "label_map": {0: 0, 1: 1}}
    with pytest.raises(DataError, match=r"label_map says nothing of the labels \['2'\]"):
        opened(fit, fit)


def test_a_number_that_is_selected_is_the_folder_of_that_number(tmp_path: Path) -> None:
    source = save_classes(tmp_path / "fit", *map(str, range(12)))
    found = opened({"source": source, "select": {"classes": [2, "10"]}}, source, num_classes=12)
    assert labels(found["in_dist.fit"]) == {"2": 2, "10": 10}


def test_numbers_beside_folders_from_1_on_are_refused(tmp_path: Path) -> None:
    fit, test = save_classes(tmp_path / "fit", "1", "2", "3"), save_numbers(tmp_path / "set.npz", [1, 2])
    with pytest.raises(DataError, match=r"in_dist\.test: its labels are numbers, .*set label_map of in_dist\.test"):
        opened(fit, test)


UNAMBIGUOUS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "label_map": ({"label_map": {1: 0, 2: 1}}, {}),
    "class_names": ({}, {"class_names": ["0", "1", "2", "3"], "num_classes": 4}),
}


@pytest.mark.parametrize(("spec", "data"), UNAMBIGUOUS.values(), ids=UNAMBIGUOUS)
def test_what_says_which_class_a_number_is(tmp_path: Path, spec: dict, data: dict) -> None:
    test = {"source": save_numbers(tmp_path / "set.npz", [1, 2]), **spec}
    found = opened(save_classes(tmp_path / "fit", "1", "2", "3"), test, **data)
    fit = labels(found["in_dist.fit"])
    assert [sample.label for sample in found["in_dist.test"]] == [fit["1"], fit["2"]]


def test_one_number_in_two_spellings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'01' and '1' have one number in two spellings"):
        opened(save_classes(tmp_path / "fit", "1", "2", "3"), save_classes(tmp_path / "test", "01", "2", "3"))
