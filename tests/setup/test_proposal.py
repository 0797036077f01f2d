"""What is proposed for folders and checkpoints."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gradscore.config import load_config
from gradscore.data import open_source
from gradscore.errors import ConfigError, OutputError
from gradscore.setup import FILL_IN, Proposal, as_yaml, propose, write_proposal


def images(folder: Path, *classes: str, size: tuple[int, ...] = (8, 6), count: int = 2) -> None:
    """Images (height, width), or with channels, of each class, or in the folder itself."""
    for name in classes or (".",):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(np.zeros(size, np.uint8)).save(folder / name / f"{number}.png")


def network(path: Path, classes: int = 2) -> None:
    torch.save(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(72, classes)).state_dict(), path)


LAYOUTS = {
    "validation and test": (("train", "val", "test"), {"bank": "train", "fit": "val", "test": "test"}),
    "capital letters": (("Train", "Valid", "Test"), {"bank": "Train", "fit": "Valid", "test": "Test"}),
    "test alone": (("train", "test"), {"bank": "train", "fit": "test", "test": "test"}),
    "one set": (("photos",), {"fit": "photos", "test": "photos"}),
    "names that say nothing": (("first", "second"), {"fit": "first", "test": "second"}),
    "calibration": (
        ("calibration", "fit", "test"),
        {"fit": "fit", "test": "test", "calibration": "calibration"},
    ),
}


@pytest.mark.parametrize(("folders", "wanted"), LAYOUTS.values(), ids=LAYOUTS)
def test_parts(tmp_path: Path, folders: tuple[str, ...], wanted: dict[str, str]) -> None:
    for folder in folders:
        images(tmp_path / folder, "cat", "dog")
    settings = propose([tmp_path], base=tmp_path).settings
    found = {key.rpartition(".")[2]: value for key, value in settings.items() if key.startswith("data.in_dist.")}
    assert {role: entry["source"] for role, entry in found.items()} == {
        role: f"folder:{name}" for role, name in wanted.items()
    }
    halves = [entry["select"]["hash"] for entry in (found["fit"], found["test"]) if "select" in entry]
    assert halves == ([[0.0, 0.5], [0.5, 1.0]] if wanted["fit"] == wanted["test"] else [])


def test_training_images_alone_are_said(tmp_path: Path) -> None:
    images(tmp_path / "train", "cat", "dog")
    assert "figures are too good" in propose([tmp_path], base=tmp_path).reasons["data.in_dist.fit"]


OTHERS = {
    "no classes": ("strange", ()),
    "other classes": ("textures", ("wool", "wood")),
    "classes of the same names": ("ood", ("cat", "dog")),
}


@pytest.mark.parametrize(("name", "classes"), OTHERS.values(), ids=OTHERS)
def test_other_images_are_ood(tmp_path: Path, name: str, classes: tuple[str, ...]) -> None:
    images(tmp_path / "in" / "val", "cat", "dog", "emu")
    images(tmp_path / "in" / "test", "cat", "dog", "emu")
    images(tmp_path / name, *classes, count=1)
    first, *made = propose([tmp_path], base=tmp_path).settings["data.ood"]
    assert first == {"name": name, "source": f"folder:{name}"}
    assert [entry["auxiliary"] for entry in made] == [True, True]


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
    assert made.remarks == [f"{tmp_path / 'test'}: not used, since its images have no classes"]


def numbered(folder: Path, count: int = 6, *, form: str = "{}.png", start: int = 0) -> None:
    """Images that are called by numbers."""
    folder.mkdir(exist_ok=True)
    for number in range(start, start + count):
        Image.fromarray(np.zeros((8, 6), np.uint8)).save(folder / form.format(number))


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
    assert made.remarks == [
        f"{tmp_path / 'labels.csv'}: 10 of 40 images that it names are not there",
        f"{tmp_path / 'part_2'}: not used, since a table names images that are called alike",
    ]


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
    "no names of columns": (
        "labels.csv",
        "images/0.png,cat\nimages/1.png,dog",
        "its first line has no names of columns",
    ),
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


def test_code_is_read_and_not_run(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text("""
raise SystemExit("this file was run")

def helper(path):
    pass

def build(num_classes, width=3):
    pass
""")
    settings = propose([tmp_path], base=tmp_path).settings
    assert settings["model.source"] == "python:net.py:build"
    assert settings["model.arguments"] == {"num_classes": 2}
    assert (settings["model.checkpoint"], settings["model.num_classes"]) == ("weights.pt", 2)
    assert settings["preprocessing.channels"] == 1


def test_what_is_missing_is_marked_and_refused(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    made = propose([tmp_path], base=tmp_path)
    write_proposal(made, tmp_path / "gradscore.yaml")
    assert set(made.missing) == {
        "model.source", "model.checkpoint", "model.num_classes", "preprocessing.mean", "preprocessing.std"
    }  # fmt: skip
    assert (tmp_path / "gradscore.yaml").read_text().count("FILL IN: ") == 5
    with pytest.raises(ConfigError, match=f"model.num_classes: .*{FILL_IN}"):
        load_config(tmp_path / "gradscore.yaml")


def test_sizes_that_differ_are_asked_for(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", size=(8, 6))
    images(tmp_path / "val", "dog", size=(80, 60))
    assert propose([tmp_path], base=tmp_path).missing["preprocessing.resize"].endswith("from 8 x 6 to 80 x 60")


def test_another_number_of_classes_is_said(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt", classes=3)
    images(tmp_path / "val", "cat", "dog")
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "has 2 class folders and the network 3 classes: name all classes of the model in their order" in remark


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    images(tmp_path / "images" / "val", "cat", "dog")
    made = propose([tmp_path / "images"], base=tmp_path / "configs")
    assert made.settings["data.in_dist.fit"]["source"] == "folder:../images/val"


def test_lines_are_not_too_long(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    assert max(map(len, as_yaml(propose([tmp_path], base=tmp_path)).splitlines())) <= 120


def test_nothing_is_replaced(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    made = propose([tmp_path], base=tmp_path)
    (tmp_path / "gradscore.yaml").write_text("mine")
    with pytest.raises(OutputError, match="there is a file already; name another with --out"):
        write_proposal(made, tmp_path / "gradscore.yaml")
    assert (tmp_path / "gradscore.yaml").read_text() == "mine"
    write_proposal(made, tmp_path / "gradscore.yaml", force=True)
    assert "folder:val" in (tmp_path / "gradscore.yaml").read_text()


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: no such file or folder"):
        propose([tmp_path / "absent"], base=tmp_path)


CHANNELS = {
    "grey": (np.zeros((8, 6), np.uint8), "[0.5];"),
    "colour": (np.zeros((8, 6, 3), np.uint8), "[0.5, 0.5, 0.5];"),
}


@pytest.mark.parametrize(("pixels", "wanted"), CHANNELS.values(), ids=CHANNELS)
def test_without_a_convolution_the_images_say_how_many_channels(tmp_path: Path, pixels, wanted: str) -> None:
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(pixels.size, 2)).state_dict(), tmp_path / "weights.pt")
    images(tmp_path / "val", "cat", "dog", size=pixels.shape)
    assert f"such as {wanted}" in propose([tmp_path], base=tmp_path).missing["preprocessing.mean"]


OTHER_DATA = {
    "numbers": ("rows.csv", "a,b,label\n1,2,0\n", "docs/tutorial-tables.md"),
    "texts": ("texts.csv", "text,label\na good film,0\n", "docs/tutorial-text.md"),
    "what cannot be read": ("rows.parquet", "no", "docs/data.md"),
}


@pytest.mark.parametrize("named", ["the folder", "the file"])
@pytest.mark.parametrize(("name", "content", "page"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_than_images_are_refused_with_their_page(
    tmp_path: Path, name: str, content: str, page: str, named: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name}: init looks at images, and there is none; .*{page}"):
        propose([{"the folder": tmp_path, "the file": tmp_path / name}[named]], base=tmp_path)


def test_a_table_beside_images_is_no_matter(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    (tmp_path / "labels.csv").write_text("a,b\n1,2\n")
    assert propose([tmp_path], base=tmp_path).settings["data.in_dist.fit"]["source"] == "folder:val"


def test_a_run_folder_is_refused(small_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"this is a run folder, made with the configuration .*config\.yaml"):
        propose([small_run], base=small_run)
