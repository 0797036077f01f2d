"""Tables of images and of their classes, as data sets that are downloaded have them beside a folder of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


PARTS = {
    "words": ("train_labels.csv", "val_labels.csv", "test_labels.csv"),
    "capitals": ("trainLabels.csv", "validLabels.csv", "testLabels.csv"),
}


@pytest.mark.parametrize("names", PARTS.values(), ids=PARTS)
def test_tables_say_by_their_names_what_their_images_are_for(tmp_path: Path, names: tuple[str, ...]) -> None:
    images(tmp_path / "photos")
    for name in names:
        table(tmp_path / name, "photos")
    parts, _ = sources(propose([tmp_path], base=tmp_path))
    assert parts == dict(zip(("bank", "fit", "test"), (f"csv:{name}" for name in names), strict=True))


UNUSED = {
    "names of other columns": "id,breed\n1,cat\n2,dog\n",
    "two columns of paths": "path,mask,label\nphotos/0.png,photos/1.png,cat\n",
    "one class": "file,label\nphotos/0.png,cat\n",
    "paths that are not there": "file,label\nphotos/9.png,cat\nphotos/8.png,dog\n",
    "paths that lead out": "file,label\n../photos/0.png,cat\n../photos/1.png,dog\n",
    "another alphabet": b"file,label\nphotos/0.png,\xe9t\xe9\n",
    "nothing": "",
}


@pytest.mark.parametrize("content", UNUSED.values(), ids=UNUSED)
def test_images_that_an_unclear_table_may_name_are_not_ood(tmp_path: Path, content: str | bytes) -> None:
    for part in ("val", "test"):
        for name in ("cat", "dog"):
            images(tmp_path / "classes" / part / name, count=2)
    images(tmp_path / "photos")
    (tmp_path / "list.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    made = propose([tmp_path], base=tmp_path)
    parts, ood = sources(made)
    assert parts == {"fit": "folder:classes/val", "test": "folder:classes/test"}
    assert [each for each in ood if "photos" in each] == []
    assert any(remark.startswith(f"{tmp_path / 'list.csv'}: not used: ") for remark in made.remarks)
    assert any("name it in data.ood if they are of none" in remark for remark in made.remarks)


def test_a_folder_that_is_called_ood_stays_out_of_distribution(tmp_path: Path) -> None:
    images(tmp_path / "photos")
    images(tmp_path / "ood")
    table(tmp_path / "labels.csv", "photos")
    assert sources(propose([tmp_path], base=tmp_path))[1] == ["folder:ood"]


def test_a_history_of_training_takes_no_images_away(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        images(tmp_path / "val" / name, count=2)
    images(tmp_path / "photos")
    (tmp_path / "history.csv").write_text("epoch,loss\n1,0.3\n")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[1] == ["folder:photos"]
    assert not any("history" in remark for remark in made.remarks)


def test_a_large_table_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path / "photos")
    table(tmp_path / "labels.csv", "photos")
    monkeypatch.setattr("gradscore.setup.folders.LARGEST", 9)
    assert any("less than" in remark for remark in propose([tmp_path], base=tmp_path).remarks)
