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
    assert f"since {tmp_path / 'scans' / 'list.csv'} may say their classes; name it in data.ood if" in remark
