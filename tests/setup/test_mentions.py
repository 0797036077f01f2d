"""Lists of images and their classes that are no CSV files: said, and their images not out-of-distribution ones."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gradscore.setup import Proposal, propose


def photos(folder: Path, form: str = "shot_{}.png", count: int = 6) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(np.zeros((8, 6), np.uint8)).save(folder / form.format(number))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Labelled images, and beside them photos without classes."""
    for name in ("cat", "dog"):
        photos(tmp_path / "val" / name, form="{}.png", count=2)
    photos(tmp_path / "photos")
    return tmp_path


NAMES = [f"photos/shot_{number}.png" for number in range(6)]
ROWS = pd.DataFrame({"file": NAMES, "label": ["cat", "dog"] * 3})


def in_excel() -> bytes:
    """What a spreadsheet has in it: a ZIP archive with the texts in one member."""
    texts = "".join(f"<si><t>{name}</t></si>" for name in NAMES)
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/sharedStrings.xml", f"<sst>{texts}</sst>")
    return whole.getvalue()


def in_parquet(compression: str) -> bytes:
    whole = io.BytesIO()
    ROWS.to_parquet(whole, compression=compression)
    return whole.getvalue()


LISTS: dict[str, Callable[[], bytes]] = {
    "labels.txt": lambda: "\n".join(f"{name} {k % 2}" for k, name in enumerate(NAMES)).encode(),
    "split.lst": lambda: "\n".join(f"{k}\t{k % 2}\t{name}" for k, name in enumerate(NAMES)).encode(),
    "coco.JSON": lambda: json.dumps({"images": [{"file_name": name} for name in NAMES]}).encode(),
    "metadata.jsonl": lambda: ROWS.to_json(orient="records", lines=True).encode(),
    "labels.csv.gz": lambda: gzip.compress(ROWS.to_csv(index=False).encode()),
    "labels.csv.zip": in_excel,
    "labels.xlsx": in_excel,
    "labels.parquet": lambda: in_parquet("zstd"),
    "labels.pq": lambda: in_parquet("snappy"),
}


def ood(made: Proposal) -> list[str]:
    return [each["source"] for each in made.settings["data.ood"] if "auxiliary" not in each]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_images_is_said_and_keeps_them_from_being_out_of_distribution(place: Path, name: str) -> None:
    (place / name).write_bytes(LISTS[name]())
    made = propose([place], base=place)
    assert ood(made) == []
    said = "\n".join(made.remarks)
    assert f"{place / name}: not looked into for classes of images; write a .csv of it" in said
    assert f"{place / 'photos'}: not used, since their names stand in {place / name}" in said


@pytest.mark.parametrize("name", sorted(set(LISTS) - {"labels.parquet", "labels.pq"}))
def test_nothing_is_said_of_what_lists_no_images(place: Path, name: str) -> None:
    other = b"".join(LISTS[name]().split(b"photos")) if name in ("labels.txt", "split.lst") else b"none at all"
    (place / name).write_bytes(other.replace(b"shot", b"text"))
    made = propose([place], base=place)
    assert ood(made) == ["folder:photos"]
    assert not any(name in remark for remark in made.remarks)


def test_a_bomb_is_opened_no_further_than_other_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscore.setup.mentions.LARGEST", 1 << 16)
    lines = b"0" * (1 << 20) + "\n".join(NAMES).encode()
    (place / "labels.txt.gz").write_bytes(gzip.compress(lines))
    with zipfile.ZipFile(place / "labels.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first", lines)
    assert ood(propose([place], base=place)) == ["folder:photos"]


def test_images_of_class_folders_stay_where_they_are(place: Path) -> None:
    (place / "classes.txt").write_text("\n".join(f"val/{kind}/{k}.png" for kind in ("cat", "dog") for k in range(2)))
    made = propose([place], base=place)
    assert made.settings["data.in_dist.fit"]["source"] == "folder:val"
    assert ood(made) == ["folder:photos"]
    assert not any("classes.txt" in remark for remark in made.remarks)


def test_a_folder_that_is_called_ood_stays_out_of_distribution(place: Path) -> None:
    (place / "photos").rename(place / "ood")
    (place / "ood" / "list.txt").write_bytes(LISTS["labels.txt"]())
    assert ood(propose([place], base=place)) == ["folder:ood"]


def test_of_many_files_the_largest_are_looked_into(place: Path) -> None:
    for number in range(300):
        (place / f"{number:03}.txt").write_text(f"photos/shot_{number % 6}.png")
    (place / "zzz.txt").write_bytes(LISTS["labels.txt"]())
    assert ood(propose([place], base=place)) == []
