"""Tables of images and of their classes, as data sets that are downloaded have them beside a folder of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradscore.data import open_source
from gradscore.errors import ConfigError
from gradscore.setup import Proposal, propose


def images(folder: Path, count: int = 6) -> None:
    """Images that are called by numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(np.zeros((8, 6), np.uint8)).save(folder / f"{number}.png")


def table(path: Path, folder: str, *, classes: tuple[object, ...] = ("cat", "dog")) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{folder}/{number}.png,{classes[number % len(classes)]}" for number in range(6)]
    path.write_text("\n".join(["file,label", *rows]) + "\n")


def sources(made: Proposal) -> tuple[dict[str, str], list[str]]:
    """Which source plays which part, and which are out-of-distribution."""
    parts = {key.rpartition(".")[2]: value for key, value in made.settings.items() if key.startswith("data.in_dist.")}
    ood = [each["source"] for each in made.settings["data.ood"] if "auxiliary" not in each]
    return {role: entry["source"] for role, entry in parts.items()}, ood


CLASSES = {"names": ("cat", "dog"), "numbers": (0, 1)}


@pytest.mark.parametrize("classes", CLASSES.values(), ids=CLASSES)
def test_a_table_says_the_classes_of_images_in_a_folder(tmp_path: Path, classes: tuple[object, ...]) -> None:
    images(tmp_path / "photos")
    table(tmp_path / "labels.csv", "photos", classes=classes)
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "csv:labels.csv", "test": "csv:labels.csv"}, [])
    assert "6 images of 2 classes" in made.reasons["data.in_dist.fit"]


def test_the_only_text_of_few_values_beside_numbers_is_the_classes(tmp_path: Path) -> None:
    rows = [f"{number}.5,{number % 3},{('benign', 'malignant')[number % 2]}" for number in range(12)]
    (tmp_path / "fit.csv").write_text("\n".join(["radius,texture,diagnosis", *rows]) + "\n")
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.fit"]["arguments"] == {"labels": "diagnosis"}
    assert made.reasons["data.in_dist.fit"].startswith("12 rows of 2 classes")
    assert "classes of column 'diagnosis', check" in made.reasons["data.in_dist.fit"]


def churn(path: Path, rows: int, *, first: int = 0, labels: bool = True) -> None:
    """Customers with a date, numbers with gaps and, with `labels`, the class in a column of text."""
    heading = ["customer_id", "signup_date", "age", "income", "visits", *(["churn"] if labels else [])]
    lines = [",".join(heading)]
    for row in range(rows):
        fields = [
            str(first + row),
            f"2021-0{1 + row % 7}-1{row % 9}",
            f"{20 + row % 50}",
            "" if row % 30 == 0 else "9.5",
        ]
        lines.append(",".join([*fields, f"{row % 5}", *([("stay", "leave")[row % 2]] if labels else [])]))
    path.write_text("\n".join(lines) + "\n")


def test_numbers_beside_dates_are_rows_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    churn(tmp_path / "valid.csv", 130)
    churn(tmp_path / "test.csv", 130, first=200)
    churn(tmp_path / "currency.csv", 30, first=400, labels=False)
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    made = propose([tmp_path], base=tmp_path)
    beside = {"labels": "churn", "ids": "customer_id"}
    settings, inputs = made.settings, ["age", "income", "visits"]
    assert settings["data.in_dist.fit"]["arguments"] == {**beside, "inputs": inputs}
    assert settings["data.in_dist.test"] == {"source": "csv:test.csv", "arguments": beside}
    assert settings["data.ood"] == [
        {"name": "currency", "source": "csv:currency.csv", "arguments": {"ids": "customer_id"}}
    ]
    assert "130 rows of 2 classes" in made.reasons["data.in_dist.fit"]
    assert made.remarks == [
        f"{tmp_path / 'valid.csv'}: left out of the rows: signup_date (text); python:data.py:rows brings rows "
        "that need code of your own, see gradscore docs data"
    ]
    assert "of each column" in made.missing["preprocessing.mean"]


WHOLE = {"the first column": ("person,a,b", ["a", "b"]), "called an id": ("a,b,userId", ["a", "b"])}


@pytest.mark.parametrize(("heading", "inputs"), WHOLE.values(), ids=WHOLE)
def test_whole_numbers_that_name_samples_are_no_features(tmp_path: Path, heading: str, inputs: list[str]) -> None:
    values = {"a": "{}.5", "b": "2.5", "person": "{}", "userId": "{}"}
    rows = [",".join(values[name].format(row) for name in heading.split(",")) + f",{row % 2}" for row in range(20)]
    (tmp_path / "fit.csv").write_text("\n".join([f"{heading},label", *rows]) + "\n")
    entry = propose([tmp_path], base=tmp_path).settings["data.in_dist.fit"]
    assert open_source(f"csv:{tmp_path / 'fit.csv'}", entry["arguments"]).input_columns == inputs


def test_whole_numbers_that_count_nothing_are_a_feature(tmp_path: Path) -> None:
    rows = [f"{7 * row},{row}.5,{row % 2}" for row in range(20)]
    (tmp_path / "fit.csv").write_text("\n".join(["price,a,label", *rows]) + "\n")
    entry = propose([tmp_path], base=tmp_path).settings["data.in_dist.fit"]
    source = open_source(f"csv:{tmp_path / 'fit.csv'}", entry.get("arguments", {}))
    assert source.input_columns == ["price", "a"]


def test_arrays_of_an_archive_are_samples(tmp_path: Path) -> None:
    for name in ("valid", "test", "other_topic"):
        labels = {} if name == "other_topic" else {"label": np.arange(12) % 3}
        np.savez(
            tmp_path / f"{name}.npz", input_ids=np.ones((12, 4), int), attention_mask=np.ones((12, 4), int), **labels
        )
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "npz:valid.npz", "test": "npz:test.npz"}, ["npz:other_topic.npz"])
    assert "12 arrays of 3 classes" not in made.reasons["data.in_dist.fit"]
    assert made.reasons["data.in_dist.fit"].startswith("12 samples of 3 classes")
    assert not any("image" in text for text in (*made.missing.values(), *made.reasons.values(), *made.remarks))
    assert not any(key.startswith("preprocessing") for key in made.settings)


def test_archives_without_classes_are_a_skeleton(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input_ids=np.ones((12, 4), int))
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.fit"] == {"source": "npz:fill-in"}
    assert "arrays under the names of the parameters of forward" in made.missing["data.in_dist.fit"]


def test_of_no_samples_none_are_taken_to_be_images(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    made = propose([tmp_path], base=tmp_path)
    assert "folder:DIR of images, csv:FILE or npz:FILE" in made.missing["data.in_dist.fit"]
    assert not any("image" in text for text in (*made.reasons.values(), *made.remarks))


def test_pickles_that_may_hold_weights_are_said(tmp_path: Path) -> None:
    (tmp_path / "churn.joblib").write_bytes(b"\x80\x04.")
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    for places in ([tmp_path], [tmp_path / "churn.joblib", tmp_path / "net.py"]):
        made = propose(places, base=tmp_path)
        assert made.settings["model.source"] == "python:net.py:build"
        assert made.missing["model.checkpoint"].endswith(
            "churn.joblib may hold the weights: load it as you do in training, and "
            "torch.save(network.state_dict(), 'churn.pt')"
        )


@pytest.mark.parametrize("name", ["model_best.pth.tar", "last.ckpt"])
def test_weights_are_found_by_their_suffix(tmp_path: Path, name: str) -> None:
    torch.save(torch.nn.Linear(4, 2).state_dict(), tmp_path / name)
    (tmp_path / "net.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(4, 2)\n")
    assert propose([tmp_path], base=tmp_path).settings["model.checkpoint"] == name


def test_of_a_pickle_alone_it_is_said_what_to_save(tmp_path: Path) -> None:
    (tmp_path / "churn.joblib").write_bytes(b"\x80\x04.")
    with pytest.raises(
        ConfigError, match=r"churn\.joblib may hold .*torch\.save\(network\.state_dict\(\), 'churn\.pt'\)"
    ):
        propose([tmp_path], base=tmp_path)


def test_a_folder_that_is_called_ood_stays_out_of_distribution(tmp_path: Path) -> None:
    images(tmp_path / "photos")
    images(tmp_path / "ood")
    table(tmp_path / "labels.csv", "photos")
    assert sources(propose([tmp_path], base=tmp_path))[1] == ["folder:ood"]


def test_images_that_a_table_may_name_are_not_ood(tmp_path: Path) -> None:
    for part in ("val", "test"):
        for name in ("cat", "dog"):
            images(tmp_path / part / name, count=2)
    images(tmp_path / "scans" / "photos")
    images(tmp_path / "textures")
    (tmp_path / "scans" / "list.csv").write_text("number,breed\n1,cat\n2,dog\n")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "folder:val", "test": "folder:test"}, ["folder:textures"])
    (remark,) = (each for each in made.remarks if each.startswith(f"{tmp_path / 'scans' / 'photos'}: not used"))
    assert f"since {tmp_path / 'scans' / 'list.csv'} may hold their labels; name it in data.ood if" in remark


NUMBERED = {
    "a name that says nothing": ("test4", 3),
    "the name of a part": ("holdout", 3),
    "some of the classes": ("more", 2),
}


@pytest.mark.parametrize(("name", "classes"), NUMBERED.values(), ids=NUMBERED)
def test_numbers_that_may_be_the_known_classes_are_not_ood(tmp_path: Path, name: str, classes: int) -> None:
    for part in ("val", "test"):
        for called in ("cat", "dog", "emu"):
            images(tmp_path / part / called, count=2)
    images(tmp_path / "noise")
    np.savez(tmp_path / f"{name}.npz", images=np.zeros((12, 8, 6), np.uint8), labels=np.arange(12) % classes)
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "folder:val", "test": "folder:test"}, ["folder:noise"])
    (remark,) = made.remarks
    assert remark.startswith(f"{tmp_path / name}.npz: not used, since its classes are numbers, which may be those of ")
    assert "name it in data.in_dist if they are; name it in data.ood if its samples are of none" in remark


def test_an_archive_of_more_numbers_than_classes_is_ood(tmp_path: Path) -> None:
    for called in ("cat", "dog", "emu"):
        images(tmp_path / "val" / called, count=2)
    np.savez(tmp_path / "mnist.npz", images=np.zeros((40, 8, 6), np.uint8), labels=np.arange(40) % 10)
    assert sources(propose([tmp_path], base=tmp_path))[1] == ["npz:mnist.npz"]


def test_json_lines_are_said_not_to_be_used(tmp_path: Path) -> None:
    (tmp_path / "fit.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    (remark,) = (each for each in propose([tmp_path], base=tmp_path).remarks if "fit.jsonl" in each)
    assert remark.startswith(f"{tmp_path / 'fit.jsonl'}: not used: JSON Lines are not read; make a .csv or .parquet")


def test_what_score_wrote_is_not_taken_for_samples(tmp_path: Path) -> None:
    """Its ids are texts, and of a folder of images their paths, so that they pass for samples."""
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    rows = "".join(f"images/{place}.png,{place % 2},accept,,\n" for place in range(8))
    (tmp_path / "new.csv").write_text(f"sample_id,prediction,decision,reason,error\n{rows}")
    (remark,) = (each for each in propose([tmp_path], base=tmp_path).remarks if "new.csv" in each)
    assert remark == f"{tmp_path / 'new.csv'}: not used: it holds decisions of gradscore score, and no samples"


def test_a_saved_data_set_is_said_not_to_be_used(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).save_to_disk(tmp_path / "saved")
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    (remark,) = (each for each in propose([tmp_path], base=tmp_path).remarks if ".arrow" in each)
    assert "a data set of datasets; give the folder" in remark


def test_what_keeps_several_files_from_use_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    for name in ("fit", "test", "wild"):
        (tmp_path / f"{name}.csv").write_text("subject,text,label\nseen this,a few words,0\nand that,some more,1\n")
    (remark,) = (each for each in propose([tmp_path], base=tmp_path).remarks if "which columns" in each)
    named = ", ".join(str(tmp_path / f"{name}.csv") for name in ("fit", "test", "wild"))
    assert remark.startswith(f"{named}: not used: which columns hold the samples?")


def test_columns_of_whole_numbers_that_may_be_the_classes_are_said(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        rows = "\n".join(f"{row}.5,{row % 40},{row % 2},{row % 3}" for row in range(60))
        (tmp_path / f"{name}.csv").write_text(f"spend,age,is_member,churn\n{rows}\n")
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    remarks = propose([tmp_path], base=tmp_path).remarks
    for name in ("train", "valid", "test"):
        said = f"{tmp_path / name}.csv: not used, since its rows have no classes, unless is_member, churn holds them: "
        (remark,) = (each for each in remarks if each.startswith(said))
        assert "then name it in data.in_dist with arguments: {labels: COLUMN}; name it in data.ood if" in remark
