"""What is proposed where tables say the classes of images."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradscore.data import open_source
from gradscore.setup import FILL_IN, Proposal, propose
from gradscore.setup.image_index import ImageIndex


def images(folder: Path, *classes: str, size: tuple[int, ...] = (8, 6), count: int = 2) -> None:
    """Images (height, width), or with channels, of each class, or in the folder itself."""
    for name in classes or (".",):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(np.zeros(size, np.uint8)).save(folder / name / f"{number}.png")


def numbered(folder: Path, count: int = 6, *, form: str = "{}.png", start: int = 0) -> None:
    """Images that are called by numbers."""
    folder.mkdir(exist_ok=True)
    for number in range(start, start + count):
        Image.fromarray(np.zeros((8, 6), np.uint8)).save(folder / form.format(number))


def table(path: Path, *rows: tuple[object, ...], heading: str = "file,label") -> None:
    path.write_text("\n".join([heading, *(",".join(map(str, row)) for row in rows)]))


def rows(folder: str, count: int = 6) -> list[tuple[object, ...]]:
    return [(f"{folder}{number}.png", ("cat", "dog")[number % 2]) for number in range(count)]


def sources(made: Proposal) -> tuple[dict[str, str], list[str]]:
    """Which source plays which part, and which are out-of-distribution."""
    parts = {
        key.rpartition(".")[2]: value["source"]
        for key, value in made.settings.items()
        if key.startswith("data.in_dist.")
    }
    return parts, [each["source"] for each in made.settings["data.ood"] if "auxiliary" not in each]


TABLES = {
    "labels.csv": ("file,breed", {"inputs": "file", "labels": "breed", "ids": "file"}),
    "train.csv": ("id,label", {"inputs": "id", "ids": "id"}),
    "index.tsv": ("path\tweight\ty", {"inputs": "path", "ids": "path"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_the_classes_of_images_in_a_folder(tmp_path: Path, name: str) -> None:
    images(tmp_path / "photos", count=6)
    images(tmp_path / "others", count=3)
    heading, arguments = TABLES[name]
    sign = "\t" if name.endswith("tsv") else ","
    rows = [
        [f"photos/{number}.png", *["0.5"] * (heading.count(sign) - 1), ("cat", "dog")[number % 2]]
        for number in range(6)
    ]
    (tmp_path / name).write_text("\n".join([heading, *map(sign.join, rows)]))
    made = propose([tmp_path], base=tmp_path)
    entry = {"source": f"csv:{name}", "arguments": arguments}
    assert made.settings["data.in_dist.fit"] == {**entry, "select": {"hash": [0.0, 0.5]}}
    assert made.settings["data.in_dist.test"] == {**entry, "select": {"hash": [0.5, 1.0]}}
    assert made.reasons["data.in_dist.fit"].startswith("6 images of 2 classes; one half by content")
    assert [each["source"] for each in made.settings["data.ood"] if "auxiliary" not in each] == ["folder:others"]
    opened = open_source(entry["source"].replace("csv:", f"csv:{tmp_path}/"), entry["arguments"])
    assert opened.ids[:2] == ["photos/0.png", "photos/1.png"]
    assert opened.image(5).shape == (8, 6, 1)


def test_names_in_a_table_without_folder_and_ending(tmp_path: Path) -> None:
    for name in ("train", "test"):
        images(tmp_path / name, count=6)
    (tmp_path / "train.csv").write_text("\n".join(["id,breed", *(f"{k},{('cat', 'dog')[k % 2]}" for k in range(6))]))
    made = propose([tmp_path], base=tmp_path)
    arguments = {"inputs": "id", "folder": "train", "suffix": ".png", "labels": "breed", "ids": "id"}
    entry = {"source": "csv:train.csv", "arguments": arguments}
    assert made.settings["data.in_dist.fit"] == {**entry, "select": {"hash": [0.0, 0.5]}}
    assert all("auxiliary" in each for each in made.settings["data.ood"])
    assert made.remarks == [
        f"{tmp_path / 'train.csv'}: the column 'breed' is taken for the classes, since there is no other; check",
        f"{tmp_path / 'test'}: not used, since its images have no classes",
    ]


def named_alike(folder: Path) -> None:
    numbered(folder / "train_images")
    numbered(folder / "test_images")
    for part in ("train", "test"):
        table(folder / f"{part}_labels.csv", *[(k, ("cat", "dog")[k % 2]) for k in range(6)])


def with_masks(folder: Path) -> None:
    numbered(folder / "train")
    numbered(folder / "masks")
    table(folder / "train.csv", *[(k, ("cat", "dog")[k % 2]) for k in range(6)])


def with_an_index(folder: Path) -> None:
    numbered(folder / "train")
    rest = [(k, f"{5 - k}.png", ("cat", "dog")[k % 2]) for k in range(6)]
    table(folder / "train.csv", *rest, heading="index,name,label")


def with_zeros_and_capitals(folder: Path) -> None:
    numbered(folder / "train", form="00{}.PNG")
    table(folder / "train.csv", *[(f"00{k}", ("cat", "dog")[k % 2]) for k in range(6)])


GUESSES = {
    "folders called as tables": (
        named_alike,
        {"inputs": "file", "folder": "train_images", "suffix": ".png", "ids": "file"},
    ),
    "masks": (with_masks, {"inputs": "file", "folder": "train", "suffix": ".png", "ids": "file"}),
    "an index": (with_an_index, {"inputs": "name", "folder": "train", "ids": "name"}),
    "zeros": (with_zeros_and_capitals, {"inputs": "file", "folder": "train", "suffix": ".PNG", "ids": "file"}),
}


@pytest.mark.parametrize(("make", "arguments"), GUESSES.values(), ids=GUESSES)
def test_what_names_lack_is_found_where_several_things_fit(
    tmp_path: Path, make: Callable[[Path], None], arguments: dict[str, str]
) -> None:
    make(tmp_path)
    made = propose([tmp_path], base=tmp_path)
    entry = made.settings["data.in_dist.bank"]
    assert entry["arguments"] == arguments
    assert sources(made)[1] == []
    opened = open_source(entry["source"].replace("csv:", f"csv:{tmp_path}/"), arguments)
    assert [opened.image(place).shape for place in range(6)] == [(8, 6, 1)] * 6


def test_folders_that_fit_equally_are_asked_about(tmp_path: Path) -> None:
    numbered(tmp_path / "left")
    numbered(tmp_path / "right")
    numbered(tmp_path, 1, start=50)  # so that these are no class folders
    table(tmp_path / "labels.csv", *[(k, ("cat", "dog")[k % 2]) for k in range(6)])
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": f"folder:{FILL_IN}", "test": f"folder:{FILL_IN}"}, [])
    assert "images of left, right are called as it says; which of them are meant?" in made.remarks[0]


def test_images_in_two_folders_are_none_of_them_out_of_distribution(tmp_path: Path) -> None:
    numbered(tmp_path / "part_1", 30)
    numbered(tmp_path / "part_2", 10, start=30)
    table(tmp_path / "labels.csv", *[(k, ("cat", "dog")[k % 2]) for k in range(40)])
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "csv:labels.csv", "test": "csv:labels.csv"}, [])
    parted, absent, alike = made.remarks
    assert parted.endswith(f"so {tmp_path} is not taken for class folders; check")
    assert absent.startswith(f"{tmp_path / 'labels.csv'}: 10 of 40 images that it names are not there")
    assert alike == f"{tmp_path / 'part_2'}: not used, since a table names images that are called alike"


NO_LABELS = {
    "paths that are not there": "file,label\nphotos/7.png,cat\n",
    "paths that lead out": "file,label\n../photos/0.png,cat\n",
    "nothing beside the paths": "file\nphotos/0.png\n",
    "classes that are none": "file,label\nphotos/0.png,0.5\n",
    "no table": "\0\n",
    "nothing": "",
}


@pytest.mark.parametrize("content", NO_LABELS.values(), ids=NO_LABELS)
def test_tables_that_say_no_classes_of_images(tmp_path: Path, content: str) -> None:
    images(tmp_path / "set" / "photos", count=2)
    images(tmp_path / "photos", count=2)
    (tmp_path / "set" / "labels.csv").write_text(content)
    assert "data.in_dist.fit" in propose([tmp_path / "set"], base=tmp_path).missing


UNCLEAR = {
    "several columns": "file,breed,age\nphotos/0.png,cat,1\nphotos/1.png,dog,2\n",
    "captions": "file,text\nphotos/0.png,a cat\nphotos/1.png,a dog\n",
    "measurements": "file,micrograms\nphotos/0.png,900000000000\nphotos/1.png,3\n",
}


@pytest.mark.parametrize("table", UNCLEAR.values(), ids=UNCLEAR)
def test_a_table_whose_classes_are_not_clear_is_asked_about(tmp_path: Path, table: str) -> None:
    images(tmp_path / "photos", count=2)
    (tmp_path / "labels.csv").write_text(table)
    made = propose([tmp_path], base=tmp_path)
    (remark,) = made.remarks
    assert "which column has the classes of the images?" in remark
    assert "arguments: {inputs: file, labels: COLUMN}" in remark
    assert "data.in_dist.fit" in made.missing
    assert all("auxiliary" in each for each in made.settings["data.ood"])


def in_each_folder(folder: Path) -> None:
    for part in ("test", "train", "val"):
        images(folder / part, count=6)
        table(folder / part / "metadata.csv", *rows(""))


def with_words(folder: Path) -> None:
    for part in ("test", "train", "val"):
        images(folder / "images" / part, count=6)
        table(folder / f"{part}_labels.csv", *rows(f"images/{part}/"))


@pytest.mark.parametrize(("make", "form"), [(in_each_folder, "csv:{}/metadata.csv"), (with_words, "csv:{}_labels.csv")])
def test_tables_say_by_their_names_what_their_images_are_for(
    tmp_path: Path, make: Callable[[Path], None], form: str
) -> None:
    make(tmp_path)
    wanted = {role: form.format(part) for role, part in (("fit", "val"), ("test", "test"), ("bank", "train"))}
    assert sources(propose([tmp_path], base=tmp_path)) == (wanted, [])


def with_a_copy(folder: Path) -> None:
    table(folder / "copy.csv", *rows("images/"), heading="file,prediction")


def by_another_way(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "images")
    table(folder / "labels.csv", *[(f"link/../link/{Path(str(name)).name}", label) for name, label in rows("")])


def with_placeholders(folder: Path) -> None:
    images(folder / "test", count=4)
    table(folder / "submission.csv", *[(f"test/{number}.png", 0) for number in range(4)])


def with_a_pipe_and_broken_links(folder: Path) -> None:
    os.mkfifo(folder / "pipe.csv")
    (folder / "nowhere.csv").symlink_to(folder / "missing")
    (folder / "zero.csv").symlink_to("/dev/zero")


def with_another_table(folder: Path) -> None:
    table(folder / "many.csv", *[("images/0.png", "9" * 25)] * 3)
    rest = ["images/1.png,cat,1"] * 200_000
    (folder / "mixed.csv").write_text("\n".join(["file,label,x", *rest, "images/2.png,dog,a"]))


def with_upper_case(folder: Path) -> None:
    (folder / "labels.csv").unlink()
    (folder / "labels.CSV").write_text(
        "\n".join(["file,label", *(f"{name},{label}" for name, label in rows("images/"))])
    )


ONE_TABLE = {
    "a copy": (with_a_copy, "labels.csv", ["copy.csv: not used, since "]),
    "another way": (by_another_way, "labels.csv", []),
    "placeholders": (
        with_placeholders,
        "labels.csv",
        ["submission.csv: not used, since all its images have the class 0"],
    ),
    "files that are none": (with_a_pipe_and_broken_links, "labels.csv", []),
    "numbers that are too large": (with_another_table, "labels.csv", []),
    "upper case": (with_upper_case, "labels.CSV", []),
}


@pytest.mark.parametrize(("change", "name", "said"), ONE_TABLE.values(), ids=ONE_TABLE)
def test_one_table_is_used(tmp_path: Path, change: Callable[[Path], None], name: str, said: list[str]) -> None:
    images(tmp_path / "images", count=6)
    table(tmp_path / "labels.csv", *rows("images/"))
    change(tmp_path)
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": f"csv:{name}", "test": f"csv:{name}"}, [])
    remarks = "\n".join(made.remarks)
    assert [text for text in said if text not in remarks] == []


REMARKED = {
    "a column of splits": ("file,label,split", ",train", "the column 'split' is not looked at"),
    "images that are named twice": ("file,label,x", ",1\nimages/0.png,cat,2", "12 rows name 6 images"),
}


@pytest.mark.parametrize(("heading", "more", "said"), REMARKED.values(), ids=REMARKED)
def test_what_a_table_leaves_open_is_said(tmp_path: Path, heading: str, more: str, said: str) -> None:
    images(tmp_path / "images", count=7)
    table(tmp_path / "labels.csv", *[(name, f"{label}{more}") for name, label in rows("images/")], heading=heading)
    first, second = propose([tmp_path], base=tmp_path).remarks
    assert said in first
    assert second == "1 images beside those that tables name are not used"


NOT_READ = {
    "semicolons": ("labels.csv", "file;label\nimages/0.png;cat", "columns are parted by commas"),
    "paths of another machine": ("labels.csv", "file,label\nC:\\images\\0.png,cat", "paths are relative to its folder"),
    "another alphabet": ("labels.csv", b"file,label\nimages/0.png,\xe9t\xe9", "cannot be read as a table"),
}


@pytest.mark.parametrize(("name", "content", "said"), NOT_READ.values(), ids=NOT_READ)
def test_why_a_table_is_not_used(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    images(tmp_path / "images", count=6)
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    made = propose([tmp_path], base=tmp_path)
    assert "data.in_dist.fit" in made.missing
    assert sources(made)[1] == []
    why, images_left = made.remarks
    assert said in why
    assert images_left == f"{tmp_path / 'images'}: not used, since its images have no classes"


def test_class_folders_stay_whatever_else_is_known_of_their_images(tmp_path: Path) -> None:
    images(tmp_path / "data", "cat", "dog", count=4)
    about = [(f"data/{name}/{k}.png", ("f", "m")[k % 2]) for name in ("cat", "dog") for k in range(4)]
    table(tmp_path / "meta.csv", *about, heading="file,sex")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "folder:data", "test": "folder:data"}, [])
    assert made.remarks == [f"{tmp_path / 'meta.csv'}: not used, since its images lie in class folders"]


def test_class_folders_come_before_a_table_of_the_same_images(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    (tmp_path / "labels.csv").write_text("file,label\nval/cat/0.png,feline\nval/dog/0.png,canine\n")
    assert propose([tmp_path], base=tmp_path).settings["data.in_dist.fit"]["source"] == "folder:val"


def labelled(folder: Path, name: str = "val") -> None:
    """Class folders beside which others may be taken for out-of-distribution images."""
    images(folder / name, "cat", "dog", count=3)


def with_a_table_that_shares(folder: Path) -> None:
    numbered(folder / "photos")
    numbered(folder / "more")
    table(folder / "zoo.csv", *rows("more/"), ("photos/0.png", "cat"))
    table(folder / "photos.csv", *rows("photos/"), ("photos/1.png", "dog"))


def over_class_folders(folder: Path) -> None:
    numbered(folder / "extra")
    table(folder / "meta.csv", *rows("extra/"), *[(f"val/{name}/0.png", name) for name in ("cat", "dog")])


def with_classes_that_are_none(folder: Path) -> None:
    numbered(folder / "photos")
    table(folder / "photos" / "labels.csv", *[(f"{number}.png", 0.5) for number in range(6)])


def with_a_column_twice(folder: Path) -> None:
    numbered(folder / "photos")
    table(folder / "labels.csv", *[(f"photos/{k}.png", "cat", "dog") for k in range(6)], heading="file,label,label")


def without_names_of_columns(folder: Path) -> None:
    numbered(folder / "photos")
    first, *others = [(f"{k}.png", ("cat", "dog")[k % 2]) for k in range(6)]
    table(folder / "labels.csv", *others, heading=",".join(first))


def without_names_and_endings(folder: Path) -> None:
    numbered(folder / "photos")
    first, *others = [(str(k), ("cat", "dog")[k % 2]) for k in range(6)]
    table(folder / "labels.csv", *others, heading=",".join(first))


def with_boxes(folder: Path) -> None:
    numbered(folder / "photos")
    boxes = [(f"photos/{k}.png", name, 1) for k in range(6) for name in ("cat", "dog")]
    table(folder / "boxes.csv", *boxes, heading="filename,class,xmin")


def with_two_columns_of_paths(folder: Path) -> None:
    for name in ("left", "right"):
        numbered(folder / name)
    pairs = [(f"left/{k}.png", f"right/{k}.png", ("cat", "dog")[k % 2]) for k in range(6)]
    table(folder / "pairs.csv", *pairs, heading="one,other,label")


def with_parts_alone(folder: Path) -> None:
    numbered(folder / "photos", 12)
    table(
        folder / "parts.csv", *[(f"photos/{k}.png", ("train", "val")[k % 2]) for k in range(12)], heading="file,split"
    )


def with_links_that_lead_out(folder: Path) -> None:
    numbered(folder / "photos", 1)
    numbered(folder.parent / "cache")
    for number in range(1, 6):
        (folder / "photos" / f"{number}.png").symlink_to(folder.parent / "cache" / f"{number}.png")
    table(folder / "labels.csv", *rows("photos/"))


def with_many_classes(folder: Path) -> None:
    numbered(folder / "photos", 9)
    table(folder / "labels.csv", *[(f"photos/{k}.png", f"class {k % 6}") for k in range(9)])


def without_any_class(folder: Path) -> None:
    numbered(folder / "photos")
    table(folder / "labels.csv", *[(f"photos/{k}.png", "") for k in range(6)])


def without_a_class_in_half(folder: Path) -> None:
    numbered(folder / "photos")
    table(folder / "labels.csv", *[(f"photos/{k}.png", ("cat", "")[k % 2]) for k in range(6)])


WITHHELD = {
    "a table of the same images": (with_a_table_that_shares, "zoo.csv: not used, since {}photos.csv has 1 of its"),
    "class folders as well": (over_class_folders, "meta.csv: not used, since some of its images lie in class folders"),
    "classes that are none": (with_classes_that_are_none, "labels.csv: not used: "),
    "a column twice": (with_a_column_twice, "two columns are called 'label'"),
    "no names of columns": (without_names_of_columns, "its first line has no names of columns"),
    "no names, no endings": (without_names_and_endings, "its first line has no names of columns"),
    "boxes": (with_boxes, "6 of 6 images have several classes"),
    "two columns of paths": (with_two_columns_of_paths, "one and other have paths of images; which are the samples?"),
    "parts alone": (with_parts_alone, "no column has the classes of its images ('split' says which part"),
    "links that lead out": (with_links_that_lead_out, "leads out of"),
    "many classes": (with_many_classes, "'label' has 6 classes for 9 images"),
    "no class": (without_any_class, "no row has a class in the column 'label'"),
    "one class and none": (
        without_a_class_in_half,
        "all its images have the class cat; 3 of 6 rows have none (an empty field",
    ),
}


@pytest.mark.parametrize(("make", "said"), WITHHELD.values(), ids=WITHHELD)
def test_images_that_a_table_names_are_not_out_of_distribution(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "data"
    labelled(folder)
    make(folder)
    made = propose([folder], base=folder)
    assert sources(made)[1] == []
    assert said.format(f"{folder}/") in "\n".join(made.remarks)


def test_masks_beside_images_are_not_out_of_distribution(tmp_path: Path) -> None:
    for name in ("masks", "photos"):
        numbered(tmp_path / name)
    pairs = [(f"masks/{k}.png", f"photos/{k}.png", ("cat", "dog")[k % 2]) for k in range(6)]
    table(tmp_path / "index.csv", *pairs, heading="mask,image,label")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "csv:index.csv", "test": "csv:index.csv"}, [])
    assert made.settings["data.in_dist.fit"]["arguments"] == {"inputs": "image", "ids": "image"}


def test_names_without_folders_of_images_and_masks(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    numbered(tmp_path / "masks", form="{}_mask.png")
    pairs = [(f"{k}.png", f"{k}_mask.png", ("cat", "dog")[k % 2]) for k in range(6)]
    table(tmp_path / "index.csv", *pairs, heading="image,mask,label")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "csv:index.csv", "test": "csv:index.csv"}, [])
    assert made.settings["data.in_dist.fit"]["arguments"] == {"inputs": "image", "folder": "photos", "ids": "image"}


UNREADABLE = {"another alphabet": b"file,label\n0.png,\xe9t\xe9", "quotes that do not end": b'file,label\n"0.png,cat'}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_table_that_cannot_be_read_is_said_beside_others(tmp_path: Path, content: bytes) -> None:
    labelled(tmp_path)
    (tmp_path / "labels.csv").write_bytes(content)
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "labels.csv: not used, since it cannot be read as a table" in remark


def test_a_large_table_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled(tmp_path)
    table(tmp_path / "labels.csv", *rows("val/cat/"))
    monkeypatch.setattr("gradscore.setup.image_tables.LARGEST", 10)
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "labels.csv: not used, since it is too large to be looked into" in remark


@pytest.mark.parametrize("name", ["held_out.csv", "held-out_labels.csv", "holdout.csv"])
def test_held_out_images_are_those_to_fit_on(tmp_path: Path, name: str) -> None:
    numbered(tmp_path / "photos")
    numbered(tmp_path / "seen")
    table(tmp_path / name, *rows("photos/"))
    table(tmp_path / "train.csv", *rows("seen/"))
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": f"csv:{name}", "test": f"csv:{name}", "bank": "csv:train.csv"}, [])


@pytest.mark.parametrize("name", ["labels_out.csv", "output.csv"])
def test_out_is_no_word_that_makes_images_ood(tmp_path: Path, name: str) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / name, *rows("photos/"))
    assert sources(propose([tmp_path], base=tmp_path)) == ({"fit": f"csv:{name}", "test": f"csv:{name}"}, [])


def test_training_images_of_two_tables_are_not_fitted_on(tmp_path: Path) -> None:
    for number in (1, 2):
        numbered(tmp_path / f"train_{number}")
        table(tmp_path / f"train_{number}.csv", *rows(f"train_{number}/"))
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[0] == dict.fromkeys(("fit", "test", "bank"), "csv:train_1.csv")
    assert "figures are too good" in made.reasons["data.in_dist.fit"]
    assert f"{tmp_path / 'train_2.csv'}: not used; {tmp_path / 'train_1.csv'} is for the same part" in made.remarks


def test_a_table_of_training_images_and_others_is_taken_for_training(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "train_val.csv", *rows("photos/"))
    assert sources(propose([tmp_path], base=tmp_path))[0]["bank"] == "csv:train_val.csv"


def test_a_named_column_of_classes_comes_before_a_guess(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *rows("photos/"))
    table(tmp_path / "test_predictions.csv", *rows("photos/"), heading="file,prediction")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[0] == {"fit": "csv:labels.csv", "test": "csv:labels.csv"}


def test_a_guess_is_said(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "people.csv", *[(f"photos/{k}.png", 30 + k % 2) for k in range(6)], heading="file,age")
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "the column 'age' is taken for the classes, since there is no other; check" in remark


def test_class_folders_that_a_table_parts_are_said(tmp_path: Path) -> None:
    images(tmp_path / "data", "cat", "dog", count=4)
    table(tmp_path / "meta.csv", *[(f"data/cat/{k}.png", ("f", "m")[k % 2]) for k in range(4)])
    made = propose([tmp_path], base=tmp_path)
    remark = next(each for each in made.remarks if "class folders" in each)
    assert f"meta.csv: has several classes of images of {tmp_path / 'data' / 'cat'}" in remark


def test_the_folder_that_one_works_in_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "ood"
    work.mkdir()
    numbered(work / "photos")
    table(work / "labels.csv", *rows("photos/"))
    monkeypatch.chdir(work)
    assert sources(propose([Path()], base=Path()))[0] == {"fit": "csv:labels.csv", "test": "csv:labels.csv"}


def test_a_table_that_is_named_and_lies_in_a_folder_that_is_named(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *rows("photos/"))
    assert propose([tmp_path, tmp_path / "labels.csv"], base=tmp_path).remarks == []


def test_one_image_in_two_spellings(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *rows("photos/"), ("./photos/0.png", "cat"))
    assert propose([tmp_path], base=tmp_path).remarks == [f"{tmp_path / 'labels.csv'}: 7 rows name 6 images"]


ELSEWHERE = {
    "a folder beside": "../other/{}.png",
    "another place": "/root/other/{}.png",
    "a loop": "loop/{}.png",
    "a long name": "x" * 300 + "/{}.png",
    "no path": "a\0b/{}.png",
}


@pytest.mark.parametrize("form", ELSEWHERE.values(), ids=ELSEWHERE)
def test_rows_that_lead_elsewhere_name_no_images(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    numbered(folder / "photos", 30)
    numbered(tmp_path / "other", 3)
    (folder / "loop").symlink_to(folder / "loop")
    table(folder / "labels.csv", *rows("photos/", 30), *[(form.format(k), "cat") for k in range(3)])
    made = propose([folder, tmp_path / "other"], base=folder)
    assert sources(made) == ({"fit": "csv:labels.csv", "test": "csv:labels.csv"}, ["folder:../other"])
    (remark,) = made.remarks
    assert "3 of 33 images that it names are not there, where extract stops; correct the table" in remark


def test_a_folder_beside_a_table_that_cannot_be_listed(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *rows("", 6))
    (tmp_path / "locked").mkdir(mode=0)
    assert sources(propose([tmp_path / "photos", tmp_path / "labels.csv"], base=tmp_path))[1] == []


def test_an_image_that_is_too_large_to_be_opened_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled(tmp_path)
    Image.fromarray(np.zeros((40, 40), np.uint8)).save(tmp_path / "val" / "cat" / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)
    assert propose([tmp_path], base=tmp_path).settings["preprocessing.resize"] == [8, 6]


def in_many_spellings(form: str) -> str:
    return "\n".join(["file,label", *(f"{form.format(k)},{('cat', 'dog')[k % 2]}" for k in range(6))])


NOT_MATCHED = {
    "semicolons": ("photos.csv", in_many_spellings("photos/shot_{}.png").replace(",", ";")),
    "tabs": ("photos.csv", in_many_spellings("photos/shot_{}.png").replace(",", "\t")),
    "a folder beside": ("annotations/photos.csv", in_many_spellings("../photos/shot_{}.png")),
    "bare names beside": ("annotations/photos.csv", in_many_spellings("shot_{}.png")),
    "another machine": ("photos.csv", in_many_spellings(r"C:\photos\shot_{}.png")),
    "capitals": ("photos.csv", in_many_spellings("photos/SHOT_{}.PNG")),
    "another ending": ("photos.csv", in_many_spellings("photos/shot_{}.jpg")),
    "Latin-1": ("photos.csv", in_many_spellings("photos/shot_{}.png").replace("cat", "été").encode("latin-1")),
    "UTF-16": ("photos.csv", in_many_spellings("photos/shot_{}.png").encode("utf-16")),
    "a ragged row": ("photos.csv", in_many_spellings("photos/shot_{}.png") + "\na,b,c,d"),
    "a trailing comma": (
        "photos.csv",
        in_many_spellings("photos/shot_{}.png").replace("cat", "cat,").replace("dog", "dog,"),
    ),
    "a comment": ("photos.csv", "# made by hand\n" + in_many_spellings("photos/shot_{}.png")),
}


@pytest.mark.parametrize(("name", "content"), NOT_MATCHED.values(), ids=NOT_MATCHED)
def test_images_whose_names_stand_in_a_table_that_is_not_understood(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    labelled(tmp_path)
    numbered(tmp_path / "photos", form="shot_{}.png")
    (tmp_path / "annotations").mkdir()
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    made = propose([tmp_path], base=tmp_path)
    assert sources(made) == ({"fit": "folder:val", "test": "folder:val"}, [])
    remarks = "\n".join(made.remarks)
    assert f"{tmp_path / name}: not used, since" in remarks
    assert f"{tmp_path / 'photos'}: not used, since their names stand in {tmp_path / name}" in remarks


def test_composed_and_decomposed_names_are_the_same(tmp_path: Path) -> None:
    labelled(tmp_path)
    numbered(tmp_path / "photos", form="caf\u00e9_{}.png")
    (tmp_path / "photos.csv").write_text(in_many_spellings("photos/cafe\u0301_{}.png"))
    assert sources(propose([tmp_path], base=tmp_path))[1] == []


ABOUT = {
    "captions": "file,text\n" + "".join(f"shot_{k}.png,number {k}\n" for k in range(6)),
    "semicolons": "file;label\n" + "".join(f"shot_{k}.png;cat\n" for k in range(6)),
}


@pytest.mark.parametrize("content", ABOUT.values(), ids=ABOUT)
def test_a_folder_that_is_called_so_stays_out_of_distribution(tmp_path: Path, content: str) -> None:
    labelled(tmp_path)
    numbered(tmp_path / "ood", form="shot_{}.png")
    (tmp_path / "ood" / "about.csv").write_text(content)
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[1] == ["folder:ood"]
    assert any("about.csv" in remark for remark in made.remarks)


def test_short_names_are_found_with_their_ending(tmp_path: Path) -> None:
    labelled(tmp_path)
    numbered(tmp_path / "photos", form="a{}.png")
    (tmp_path / "photos.csv").write_text(in_many_spellings("elsewhere/A{}.PNG"))
    assert sources(propose([tmp_path], base=tmp_path))[1] == []


def test_a_table_in_parquet_is_said(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    (tmp_path / "labels.parquet").write_bytes(b"PAR1")
    remark, _ = propose([tmp_path], base=tmp_path).remarks
    assert "labels.parquet: not looked into for classes of images; write a .csv of it" in remark


def test_a_history_of_training_takes_no_images_away(tmp_path: Path) -> None:
    labelled(tmp_path)
    numbered(tmp_path / "textures")
    table(tmp_path / "history.csv", *[(k, 0.5) for k in range(20)], heading="epoch,loss")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[1] == ["folder:textures"]
    assert any("history.csv: not used, since no column has paths of images" in each for each in made.remarks)


PARTS = {
    "words that are one": ("trainset.csv", "testset.csv", ("a", "b")),
    "capitals for spaces": ("trainLabels.csv", "testLabels.csv", ("a", "b")),
    "words in folders": ("train_data/labels.csv", "test_data/labels.csv", ("train_data/a", "test_data/b")),
    "folders of images": ("first.csv", "second.csv", ("train", "test")),
    "deep folders of images": ("first.csv", "second.csv", ("img/train", "img/test")),
    "training and validation": ("trainval.csv", "test.csv", ("a", "b")),
}


@pytest.mark.parametrize(("seen", "new", "folders"), PARTS.values(), ids=PARTS)
def test_what_says_that_images_trained_the_network(
    tmp_path: Path, seen: str, new: str, folders: tuple[str, str]
) -> None:
    for name, folder, start in ((seen, folders[0], 0), (new, folders[1], 6)):
        (tmp_path / folder).mkdir(parents=True)
        numbered(tmp_path / folder, start=start)
        inner = folder.partition("/")[2] if "/" in name else folder
        table(tmp_path / name, *[(f"{inner}/{k}.png", ("cat", "dog")[k % 2]) for k in range(start, start + 6)])
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[0] == {"bank": f"csv:{seen}", "fit": f"csv:{new}", "test": f"csv:{new}"}


def test_a_list_of_training_images_among_those_of_a_table_is_said(tmp_path: Path) -> None:
    numbered(tmp_path / "photos", 12)
    table(tmp_path / "labels.csv", *rows("photos/", 12))
    table(tmp_path / "train.csv", *[(f"photos/{k}.png",) for k in range(8)], heading="file")
    remarks = "\n".join(propose([tmp_path], base=tmp_path).remarks)
    assert "train.csv: not used, since " in remarks
    assert "they trained the network, by its name: make a table of each part" in remarks


def test_class_folders_that_another_set_has_too_stay_whole(tmp_path: Path) -> None:
    for part in ("train", "test"):
        images(tmp_path / part, "cat", "dog", count=4)
    breeds = [(f"train/cat/{k}.png", ("manx", "tabby")[k % 2]) for k in range(4)]
    table(tmp_path / "breeds.csv", *breeds)
    assert sources(propose([tmp_path], base=tmp_path)) == (
        {"bank": "folder:train", "fit": "folder:test", "test": "folder:test"},
        [],
    )


def test_a_table_of_few_images_breaks_no_class_folders(tmp_path: Path) -> None:
    images(tmp_path / "data", "cat", "dog", count=8)
    table(tmp_path / "bad.csv", *[(f"data/cat/{k}.png", ("blur", "dark")[k % 2]) for k in range(4)], heading="file,why")
    assert sources(propose([tmp_path], base=tmp_path)) == ({"fit": "folder:data", "test": "folder:data"}, [])


def test_of_several_columns_of_classes_the_one_that_is_taken_is_said(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    both = [(f"photos/{k}.png", ("cat", "dog")[k % 2], k % 3) for k in range(6)]
    table(tmp_path / "labels.csv", *both, heading="file,Label,y")
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "the column 'y' is taken for the classes, and not 'Label'; check" in remark


@pytest.mark.parametrize("name", ["Usage", "data set", "is_train"])
def test_more_columns_of_parts(tmp_path: Path, name: str) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *[(*row, "x") for row in rows("photos/")], heading=f"file,label,{name}")
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert f"the column {name!r} is not looked at" in remark


@pytest.mark.parametrize("name", ["submission.csv", "test_predictions.csv"])
def test_predictions_are_no_labels(tmp_path: Path, name: str) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / name, *rows("photos/"))
    made = propose([tmp_path], base=tmp_path)
    assert "data.in_dist.fit" in made.missing
    assert f"{name}: not used, since it has predictions, by its name" in made.remarks[0]


def test_links_that_go_round_and_files_that_never_end(tmp_path: Path) -> None:
    labelled(tmp_path)
    (tmp_path / "y.csv").symlink_to("y.csv")
    for name in ("m.pt", "m.py"):
        os.mkfifo(tmp_path / name)
    assert sources(propose([tmp_path], base=tmp_path)) == ({"fit": "folder:val", "test": "folder:val"}, [])


def test_one_folder_by_two_ways_is_one_set(tmp_path: Path) -> None:
    labelled(tmp_path)
    (tmp_path / "latest").symlink_to("val")
    settings = propose([tmp_path, tmp_path / "val"], base=tmp_path).settings
    assert settings["data.in_dist.fit"]["select"] == {"hash": [0.0, 0.5]}


def test_rows_without_a_name_are_said(tmp_path: Path) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *rows("photos/"), ("", "cat"))
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "1 rows name no image, where extract stops" in remark


def test_folders_that_archives_bring_have_no_images(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "__none__", count=3)
    images(tmp_path / "__MACOSX" / "val", "cat", "dog")
    made = propose([tmp_path], base=tmp_path)
    assert sources(made)[1] == []
    assert made.reasons["data.in_dist.fit"].startswith("6 images of 2 classes")


def test_a_wide_table_of_other_things_is_put_aside_soon(tmp_path: Path) -> None:
    images(tmp_path / "data", *(f"class_{number}" for number in range(150)), count=1)
    heading = ",".join(f"c{number}" for number in range(400))
    table(tmp_path / "wide.csv", *[tuple(range(400))] * 20, heading=heading)
    found: list[object] = []
    index = ImageIndex.find
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageIndex, "find", lambda *a, **k: found.append(a) or index(*a, **k))
        propose([tmp_path], base=tmp_path)
    assert len(found) < 1000


def test_folders_where_one_may_not_look_have_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled(tmp_path)
    (tmp_path / "locked").mkdir()
    look = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "locked":  # a superuser may look everywhere
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert sources(propose([tmp_path], base=tmp_path)) == ({"fit": "folder:val", "test": "folder:val"}, [])


@pytest.mark.parametrize("word", ["NA", "None", "null", "nan", "N/A"])
def test_a_class_that_is_a_word_for_none_is_one_and_is_said(tmp_path: Path, word: str) -> None:
    numbered(tmp_path / "photos")
    table(tmp_path / "labels.csv", *[(f"photos/{k}.png", ("cat", word)[k % 2]) for k in range(6)])
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert f"{word!r} in the column 'label' is taken for a class; leave the field empty for none" in remark
