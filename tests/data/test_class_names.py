"""Names of classes: the same class in every split, never shifted, whatever is missing there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from gradscore.data import DataConfig, PreprocessingConfig, SampleDataset, open_splits
from gradscore.errors import DataError

ANIMALS = ["cat", "dog", "owl"]
CLASSES = {"cat": 0, "dog": 1, "owl": 2}
NUMBERS = [str(number) for number in range(12)]
OF_NUMBERS = {name: int(name) for name in NUMBERS}


def save(path: Path, classes: list, *, table: bool = False) -> str:
    """Two images in a folder for each name, none where it begins with !; numbers are labels without names.

    Those are in a table or an array, by position.
    """
    if table:
        rows = [f"{place}.5,{label}" for place, label in enumerate(classes)]
        path.with_suffix(".csv").write_text("\n".join(["x,label", *rows]) + "\n")
        return f"csv:{path}.csv"
    if isinstance(classes[0], int):
        np.savez(path, images=np.zeros((len(classes), 4, 4), dtype=np.uint8), labels=classes)
        return f"npz:{path}.npz"
    for name in classes:
        inner = path / name.removeprefix("!")
        inner.mkdir(parents=True)
        pixels = np.random.default_rng(len(str(inner))).integers(0, 256, (2, 4, 4), dtype=np.uint8)
        for place, each in enumerate(pixels[: 0 if name.startswith("!") else 2]):
            Image.fromarray(each).save(inner / f"{place}.png")
    return f"folder:{path}"


def opened(
    folder: Path, fit: dict[str, Any], test: dict[str, Any], *, only: list[str] | None = None, **options: Any
) -> dict[str, SampleDataset]:
    """The splits of folders of the classes that each has `of`; options beside those of `open_splits` are of data."""
    specs = {}
    for name, spec in {"fit": fit, "test": test, **options.pop("ood", {})}.items():
        specs[name] = {key: value for key, value in spec.items() if key not in ("of", "table")}
        specs[name]["source"] = save(folder / name, spec["of"], table=spec.get("table", False))
    ood = [{"name": name, **spec} for name, spec in specs.items() if name not in ("fit", "test")]
    data = {"in_dist": {name: specs[name] for name in ("fit", "test")}, "ood": ood}
    return open_splits(
        DataConfig.model_validate({**data, "class_names": options.get("class_names")}),
        preprocessing=PreprocessingConfig(),
        num_classes=options.get("num_classes", 3),
        seed=0,
        only=only,
        model_names=options.get("model_names"),
    )


def labels(dataset: SampleDataset) -> dict[str, int]:
    """The class of each sample by the folder it is in, or by its position."""
    return {sample.id.partition("/")[0]: sample.label for sample in dataset}


TO_NUMBERS = {"of": ANIMALS, "label_map": {"cat": 1, "dog": 0, "owl": 2}}
TO_NAMES = {"of": ANIMALS, "label_map": {"cat": "chat", "dog": "chien", "owl": "hibou"}}
MAPPED = {"cat": 1, "dog": 0, "owl": 2}
ALL, TWO, FROM_1 = {"of": ANIMALS}, {"of": ["cat", "owl"]}, {"of": ["1", "2", "3"]}
FOUND: dict[str, tuple[dict, dict, dict, dict, dict, list[str]]] = {
    "a folder is missing in test": (ALL, TWO, {}, CLASSES, {"cat": 0, "owl": 2}, ANIMALS),
    "a folder is empty in test": (ALL, {"of": ["cat", "!dog", "owl"]}, {}, CLASSES, {"cat": 0, "owl": 2}, ANIMALS),
    "a folder is missing in fit": (TWO, ALL, {}, {"cat": 0, "owl": 2}, CLASSES, ANIMALS),
    "an empty folder too many": (ALL, {"of": ["!cow", *ANIMALS]}, {"class_names": ANIMALS}, CLASSES, CLASSES, ANIMALS),
    "names of the model": (
        *(TWO, TWO, {"model_names": ["owl", "ant", "cat"]}),
        *({"cat": 2, "owl": 0}, {"cat": 2, "owl": 0}, ["owl", "ant", "cat"]),
    ),
    "names that the data do not know": (
        *(ALL, ALL, {"model_names": ["LABEL_0", "LABEL_1", "LABEL_2"]}),
        *(CLASSES, CLASSES, ANIMALS),
    ),
    "maps of names to numbers": (TO_NUMBERS, TO_NUMBERS, {}, MAPPED, MAPPED, ["dog", "cat", "owl"]),
    "maps of names to names": (
        *(TO_NAMES, TO_NAMES, {"class_names": ["chien", "chat", "hibou"]}),
        *(MAPPED, MAPPED, ["chien", "chat", "hibou"]),
    ),
    "classes selected by name": (
        *({**ALL, "select": {"classes": ["dog", 2]}}, ALL, {}),
        *({"dog": 1, "owl": 2}, CLASSES, ANIMALS),
    ),
    "labels without names": (ALL, {"of": [2, 0, 1]}, {}, CLASSES, {"0": 2, "1": 0, "2": 1}, ANIMALS),
    "folders called by numbers": (
        *({"of": NUMBERS}, {"of": list(range(12))}, {"num_classes": 12}),
        *(OF_NUMBERS, OF_NUMBERS, NUMBERS),
    ),
    "folders of numbers that are selected": (
        *({"of": NUMBERS, "select": {"classes": [2, "10"]}}, {"of": NUMBERS}, {"num_classes": 12}),
        *({"2": 2, "10": 10}, OF_NUMBERS, NUMBERS),
    ),
    "a map says which class a number is": (
        *(FROM_1, {"of": [1, 2], "label_map": {1: 0, 2: 1}}, {}),
        *({"1": 0, "2": 1, "3": 2}, {"0": 0, "1": 1}, ["1", "2", "3"]),
    ),
    "a number in a map is the name of a class": (
        *({"of": ["malignant", "benign"], "label_map": {"malignant": 1, "benign": "0"}},) * 2,
        {"class_names": [1, 0], "num_classes": 2},
        *({"malignant": 0, "benign": 1},) * 2,
        ["1", "0"],
    ),
    "a number in a table is the name of a class": (
        *({"of": [0, 1, 0], "table": True}, {"of": [2, 1], "table": True}, {"class_names": [1, 0, 2]}),
        *({"0": 1, "1": 0, "2": 1}, {"0": 2, "1": 0}, ["1", "0", "2"]),
    ),
    "a map says which class a number of an array is": (
        *({"of": ["0", "1", "10"]}, {"of": [1, 2], "label_map": {1: "1", 2: "10"}}, {"class_names": [0, 10, 1]}),
        *({"0": 0, "1": 2, "10": 1}, {"0": 2, "1": 1}, ["0", "10", "1"]),
    ),
    "numbers that can only be names": (
        *({"of": [3, 1, 2]}, {"of": [0, 1], "label_map": {0: 1, 1: 3}}, {"class_names": [1, 2, 3]}),
        *({"0": 2, "1": 0, "2": 1}, {"0": 0, "1": 2}, ["1", "2", "3"]),
    ),
    "names say which class a number is": (
        *(FROM_1, {"of": [1, 2]}, {"class_names": ["0", "1", "2", "3"], "num_classes": 4}),
        *({"1": 1, "2": 2, "3": 3}, {"0": 1, "1": 2}, ["0", "1", "2", "3"]),
    ),
}


@pytest.mark.parametrize(("fit", "test", "options", "of_fit", "of_test", "names"), FOUND.values(), ids=FOUND)
def test_a_class_is_the_same_in_every_split(
    tmp_path: Path, fit: dict, test: dict, options: dict, of_fit: dict, of_test: dict, names: list[str]
) -> None:
    found = opened(tmp_path, fit, test, **options)
    assert [labels(each) for each in found.values()] == [of_fit, of_test]
    assert list(found["in_dist.fit"].class_names) == names


@pytest.mark.parametrize("label_map", [{0: 5, 1: 6, 2: 7}, {1: 0, "1": 6, 2: 7}], ids=["number", "name before number"])
def test_a_number_in_a_label_map_is_the_folder_of_that_number(tmp_path: Path, label_map: dict) -> None:
    spec = {"of": ["1", "2"], "label_map": label_map}
    assert labels(opened(tmp_path, spec, spec, num_classes=8)["in_dist.fit"]) == {"1": 6, "2": 7}


def test_truth_values_are_two_classes(tmp_path: Path) -> None:
    truths = {"of": [True, False, True]}
    found = opened(tmp_path, truths, truths, num_classes=2)["in_dist.fit"]
    assert (list(labels(found).values()), found.class_names) == ([1, 0, 1], ("False", "True"))
    with pytest.raises(DataError, match=r"name 2 classes \(False, True\), and the model has 3"):
        opened(tmp_path, truths, truths, num_classes=3)


def test_the_splits_that_are_not_asked_for_count(tmp_path: Path) -> None:
    found = opened(tmp_path, ALL, TWO, only=["in_dist.test"])
    assert {name: labels(each) for name, each in found.items()} == {"in_dist.test": {"cat": 0, "owl": 2}}


def test_ood_sets_have_classes_of_their_own(tmp_path: Path) -> None:
    found = opened(tmp_path, ALL, ALL, ood={"plants": {"of": ["fern", "oak"], "select": {"classes": ["oak"]}}})
    assert labels(found["ood.plants"]) == {"oak": -1}
    assert list(found["in_dist.fit"].class_names) == ANIMALS


FILES = {
    "lines": ("names.txt", "owl\ncat\ndog\n"),
    "JSON mapping": ("names.json", json.dumps({"2": "dog", "0": "owl", "1": "cat"})),
}


@pytest.mark.parametrize(("name", "text"), FILES.values(), ids=FILES)
def test_names_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = opened(tmp_path, TWO, TWO, class_names=tmp_path / name)
    assert labels(found["in_dist.test"]) == {"cat": 1, "owl": 0}
    assert list(found["in_dist.test"].class_names) == ["owl", "cat", "dog"]


@pytest.mark.parametrize("keys", ["123", "013", ["0", "1", "01"]])
def test_names_of_other_outputs_in_a_file_are_refused(tmp_path: Path, keys: str | list[str]) -> None:
    (tmp_path / "names.json").write_text(json.dumps(dict(zip(keys, ANIMALS, strict=True))))
    with pytest.raises(DataError, match=f"its keys are not the outputs 0 to 2, but {', '.join(keys)}"):
        opened(tmp_path, ALL, ALL, class_names=tmp_path / "names.json")


TO_A_NAME = {"of": [0, 1], "label_map": {0: "cat", 1: 1}}
BY_POSITION = {"of": ["1", "2"], "label_map": {0: 0, 1: 1}}
REFUSED: dict[str, tuple[dict, dict, dict, str]] = {
    "a class that no split has would shift the others": (
        *(TWO, TWO, {}),
        r"2 classes \(cat, owl\), and the model has 3, .*data\.class_names",
    ),
    "an empty folder too many": (
        *(ALL, {"of": ["!cow", *ANIMALS]}, {}),
        r"has label 3 \(owl\).*no sample is of class cow.*data\.class_names",
    ),
    "too few names": (ALL, ALL, {"class_names": ["cat", "dog"]}, "each of the 3 classes of the model, got 2 names"),
    "other names": (ALL, ALL, {"class_names": ["cat", "dog", "eel"]}, "no class 'owl'"),
    "no file of names": (ALL, ALL, {"class_names": Path("/nowhere/names.txt")}, "cannot be read"),
    "a map to a name that the model has not": (TO_A_NAME, TO_A_NAME, {}, "'cat' is a name, and the classes have none"),
    "positions of folders of numbers": (BY_POSITION, BY_POSITION, {}, r"says nothing of the labels \['2'\]"),
    "numbers beside folders from 1 on": (
        *(FROM_1, {"of": [1, 2]}, {}),
        r"in_dist\.test: its labels are numbers, .*set label_map of in_dist\.test",
    ),
    "positions that no class is called": (
        *({"of": [0, 1, 2]}, {"of": [0, 1, 2]}, {"class_names": [0, 10, 1]}),
        r"no class '2'",
    ),
    "names or positions": (
        *({"of": [0, 1]}, {"of": [0, 1]}, {"class_names": [0, 10, 1]}),
        r"label 1 may be the class of that name or output 1, '10'; .*label_map: \{1: '1', ...\} or \{1: '10', ...\}",
    ),
    "a number that no class is called in a map": (
        *({"of": ANIMALS, "label_map": {"cat": 0, "dog": 1, "owl": 2}},) * 2,
        {"class_names": [1, 2, 3]},
        "label_map: no class '0'",
    ),
    "one number in two spellings": (FROM_1, {"of": ["01", "2", "3"]}, {}, "'01' and '1' have one number in two spell"),
}


@pytest.mark.parametrize(("fit", "test", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_classes_that_cannot_be_told(tmp_path: Path, fit: dict, test: dict, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(tmp_path, fit, test, **options)


@pytest.mark.parametrize("table", [True, False], ids=["table", "array"])
def test_labels_that_count_from_1_are_named_as_the_message_says(tmp_path: Path, table: bool) -> None:
    spec = {"of": [1, 2, 3], "table": table}
    with pytest.raises(DataError, match=r"they count from 1: set data\.class_names: \[1, 2, 3\]$") as error:
        opened(tmp_path, spec, spec)
    names = yaml.safe_load(str(error.value).rpartition("data.class_names: ")[2])
    found = opened(tmp_path, spec, spec, class_names=names)["in_dist.test"]
    assert [sample.label for sample in found] == [0, 1, 2]
