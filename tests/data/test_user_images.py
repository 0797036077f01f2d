"""What a user names becomes images by name, in order, one by one."""

import io
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gradscore.data import open_user_samples
from gradscore.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the same five images in every form."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    names = ["images/b.png", "images/a.png", "images/deep/c.png", "images/d.bmp", "images/e.png"]
    for name, pixels in zip(names, PIXELS, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    np.savez(tmp_path / "plain.npz", images=PIXELS)
    np.savez_compressed(tmp_path / "packed.npz", images=PIXELS[..., None])
    encoded = [png(pixels) for pixels in PIXELS]
    pq.write_table(pa.table({"label": [1] * 5, "image": encoded}), tmp_path / "bytes.parquet")
    pq.write_table(
        pa.table({"image": [{"bytes": each, "path": None} for each in encoded]}), tmp_path / "struct.parquet"
    )
    pq.write_table(pa.table({"note": ["x"] * 5, "path": names}), tmp_path / "paths.parquet")
    return tmp_path


ALL, BY_NAME = [0, 1, 2, 3, 4], [1, 0, 3, 2, 4]
FORMS = {
    "a folder": (["images"], BY_NAME),
    "a file": (["images/deep/c.png"], [2]),
    "files in the order given": (["images/e.png", "images/b.png"], [4, 0]),
    "a pattern": (["images/*.png"], [1, 0, 4]),
    "a deep pattern": (["images/**/*.png"], [1, 0, 2, 4]),
    "npz": (["plain.npz"], ALL),
    "compressed npz": (["packed.npz"], ALL),
    "encoded bytes in Parquet": (["bytes.parquet"], ALL),
    "Hugging Face's images in Parquet": (["struct.parquet"], ALL),
    "paths in Parquet": (["paths.parquet"], ALL),
    "several": (["plain.npz", "images/a.png"], [*ALL, 1]),
}


@pytest.mark.parametrize(("samples", "wanted"), FORMS.values(), ids=FORMS)
@pytest.mark.usefixtures("place")
def test_forms(samples: list[str], wanted: list[int]) -> None:
    opened = open_user_samples(samples)
    found = [image for source in opened for image in source]
    assert sum(map(len, opened)) == len(found) == len(wanted)
    assert all(np.array_equal(image.raw[..., 0], PIXELS[index]) for image, index in zip(found, wanted, strict=True))
    assert len({image.id for image in found}) == len(found)


def test_endings_in_capitals(place: Path) -> None:
    (place / "folder").mkdir()
    (place / "folder" / "PLAIN.NPZ").write_bytes((place / "plain.npz").read_bytes())
    (images,) = open_user_samples(["folder"])
    np.testing.assert_array_equal([each.raw.squeeze() for each in images], PIXELS)


def test_hidden_files_are_left_out(place: Path) -> None:
    (place / "images" / "._a.png").write_bytes(b"left by a system")
    (place / "images" / ".checkpoints").mkdir()
    (place / "images" / ".checkpoints" / "a.png").write_bytes(png(PIXELS[0]))
    assert len(open_user_samples(["images"])[0]) == 5


def test_absolute_patterns(place: Path) -> None:
    assert len(open_user_samples([f"{place}/images/*.png"])[0]) == 3


def test_unreadable_images_are_said_and_the_rest_is_read(place: Path) -> None:
    (place / "images" / "a.png").write_bytes(b"no png")
    pq.write_table(pa.table({"image": [b"no png", None, png(PIXELS[0])]}), place / "bad.parquet")
    found = [image for source in open_user_samples(["images", "bad.parquet"]) for image in source]
    assert [image.raw is None for image in found] == [True, False, False, False, False, True, True, False]
    assert ["cannot be decoded" in image.error for image in found][:6] == [True, False, False, False, False, True]
    assert found[6].error == "row 1 of data file bad.parquet has a missing value in column 'image'"


def test_a_file_of_another_kind_is_told_what_files_of_samples_end_in(place: Path) -> None:
    np.save(place / "rows.npy", PIXELS)
    (place / "no.png").write_bytes(b"no png")
    found = [image.error for image in open_user_samples(["rows.npy", "no.png"])[0]]
    endings = "; files of other samples than images end in .npz, .csv, .tsv, .parquet, .pq"
    assert [error.endswith(endings) for error in found] == [True, False]
    assert found[0].startswith("rows.npy cannot be decoded: ")


def write_npz(name: str, **arrays: np.ndarray) -> None:
    np.savez(name, **arrays)


def parquet_of(column: str) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({column: [b"x"]}).replace_schema_metadata(None), stream, store_schema=False)
    return stream.getvalue()


BAD = {
    "an empty name": (lambda: write_npz("x.npz", images=np.zeros((2, 8, 8), np.uint8)), [""], "'': an empty name"),
    "a pipe of a table": (lambda: os.mkfifo("x.csv"), ["x.csv"], "x.csv: a pipe or a device, wanted a file"),
    "a pipe by its kind": (lambda: os.mkfifo("x"), ["csv:x"], "x is a pipe or a device, wanted a file"),
    "nothing there": (lambda: None, ["nope.png"], "nope.png: no such file or folder"),
    "a pattern that matches nothing": (lambda: None, ["*.gif"], r"\*.gif: no image in it"),
    "an empty folder": (lambda: Path("empty").mkdir(), ["empty"], "empty: no image in it"),
    "an npz without samples": (lambda: write_npz("x.npz", labels=np.arange(3)), ["x.npz"], "no array of samples"),
    "no npz": (lambda: Path("x.npz").write_text("x"), ["x.npz"], "cannot be read"),
    "no Parquet": (lambda: Path("x.parquet").write_text("x"), ["x.parquet"], "wanted a Parquet file"),
    "a name that is no text": (
        lambda: Path("x.parquet").write_bytes(parquet_of("image").replace(b"image", b"im\xffge")),
        ["x.parquet"],
        "wanted a Parquet file",
    ),
    "a name given twice": (
        lambda: Path("x.csv").write_text("a, b,a\n1,2,3\n"), ["x.csv"], "two columns are called 'a'"
    ),
    "a name given twice in Parquet": (
        lambda: pq.write_table(pa.Table.from_arrays([pa.array([1.0])] * 2, names=["a", "a"]), "x.parquet"),
        ["x.parquet"],
        "two columns are called 'a'",
    ),
    "two columns": (
        lambda: pq.write_table(pa.table({"a": [b""], "b": [b""]}), "x.parquet"), ["x.parquet"], "which columns"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "samples", "message"), BAD.values(), ids=BAD)
@pytest.mark.usefixtures("place")
def test_bad_input(make, samples: list[str], message: str) -> None:
    make()
    with pytest.raises(DataError, match=message):
        open_user_samples(samples)


VALUES = {
    "float images": (lambda: write_npz("x.npz", images=PIXELS * 0.5), "x.npz", PIXELS[2] * 0.5),
    "Fortran order": (
        lambda: write_npz("x.npz", images=np.asfortranarray(PIXELS)), "x.npz", PIXELS[2][..., None]
    ),
    "channels first": (
        lambda: write_npz("x.npz", images=np.stack([PIXELS] * 3, 1)), "x.npz", np.stack([PIXELS[2]] * 3, -1)
    ),
    "another array": (lambda: write_npz("x.npz", other=PIXELS[:, 0] * 0.25), "x.npz", PIXELS[2, 0] * 0.25),
    "columns of numbers": (
        lambda: pq.write_table(pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]}), "x.parquet"),
        "x.parquet",
        np.array([3, 2.5]),
    ),
    "text in Parquet": (lambda: pq.write_table(pa.table({"note": list("abc")}), "x.parquet"), "x.parquet", "c"),
    "a table as text": (lambda: Path("x.csv").write_text("a,b\n1,2\n3,4\n5,6.5\n"), "x.csv", np.array([5, 6.5])),
    "a named source": (lambda: Path("x.txt").write_text("a,b\n1,2\n3,4\n5,6.5\n"), "csv:x.txt", np.array([5, 6.5])),
}  # fmt: skip


@pytest.mark.parametrize(("make", "name", "wanted"), VALUES.values(), ids=VALUES)
@pytest.mark.usefixtures("place")
def test_numbers_are_samples_as_they_are(make, name: str, wanted: np.ndarray) -> None:
    make()
    found = list(open_user_samples([name])[0])[2]
    np.testing.assert_array_equal(found.raw, wanted)
    assert found.id == f"{name}[2]"


def test_the_column_by_name(place: Path) -> None:
    pq.write_table(pa.table({"a": [b""], "b": [png(PIXELS[3])]}), place / "x.parquet")
    (found,) = open_user_samples(["x.parquet"], options={"column": "b"})[0]
    assert np.array_equal(found.raw[..., 0], PIXELS[3])
    with pytest.raises(DataError, match="no column 'c'"):
        open_user_samples(["x.parquet"], options={"column": "c"})


def test_the_column_of_text_that_a_model_was_fitted_with(place: Path) -> None:
    (place / "x.csv").write_text("review,topic\ngood,film\nbad,book\n")
    (place / "other.csv").write_text("said\nso so\n")
    found = [[each.raw for each in open_user_samples([name], columns=["review"])[0]] for name in ("x.csv", "other.csv")]
    assert found == [["good", "bad"], ["so so"]]
    with pytest.raises(DataError, match="which columns hold the samples"):
        open_user_samples(["x.csv"], columns=["title"])


@pytest.fixture
def lists(place: Path) -> Path:
    """A folder with lists in it, and images beside it and below it."""
    folder = place / "lists"
    folder.mkdir()
    Image.fromarray(PIXELS[0]).save(folder / "inside.png")
    (folder / "below").mkdir()
    (folder / "link.png").symlink_to(place / "images" / "a.png")
    (folder / "aside").symlink_to(place / "images")
    return folder


def listed(folder: Path, path: str) -> Path:
    pq.write_table(pa.table({"path": ["inside.png", path, "inside.png"]}), folder / "list.parquet")
    return folder / "list.parquet"


OUTSIDE = {
    "dots": "../images/a.png",
    "an absolute path": "{place}/images/a.png",
    "a link to a folder": "aside/a.png",
}


@pytest.mark.parametrize("path", OUTSIDE.values(), ids=OUTSIDE)
def test_paths_leave_the_folder_of_their_list_where_the_user_allows_it(lists: Path, path: str) -> None:
    named = path.format(place=lists.parent)
    found = list(open_user_samples([str(listed(lists, named))])[0])
    assert [image.raw is None for image in found] == [False, True, False]
    refusal = f"row 1 of data file {lists}/list.parquet is refused: {named!r} leads out of {lists}; give --root FOLDER"
    assert found[1].error.startswith(refusal)
    allowed = list(open_user_samples([str(listed(lists, named))], options={"root": lists.parent})[0])
    assert [image.error for image in allowed] == ["", "", ""]


ODD = {
    "a zero byte": ("a\0b", "is no path: 'a.x00b'"),
    "a path without an end": ("a/" * 5000, "File name too long|cannot be decoded"),
    "a folder": (".", "is no file"),
}


@pytest.mark.parametrize(("path", "message"), ODD.values(), ids=ODD)
def test_odd_paths_in_a_list(lists: Path, path: str, message: str) -> None:
    found = list(open_user_samples([str(listed(lists, path))])[0])
    assert [image.raw is None for image in found] == [False, True, False]
    assert re.search(message, found[1].error)


def test_a_pipe_is_not_waited_for(place: Path) -> None:
    os.mkfifo(place / "images" / "pipe.png")
    found = {image.id: image.error for image in open_user_samples(["images"])[0]}
    assert found["images/pipe.png"] == "images/pipe.png is no file"


def test_a_list_that_is_damaged_further_on_names_the_row(place: Path) -> None:
    pq.write_table(pa.table({"path": ["images/a.png"] * 200}), place / "x.parquet", row_group_size=64, compression=None)
    content = bytearray((place / "x.parquet").read_bytes())
    start = pq.ParquetFile(place / "x.parquet").metadata.row_group(2).column(0)
    content[start.dictionary_page_offset : start.dictionary_page_offset + 12] = bytes(12)
    (place / "x.parquet").write_bytes(content)
    images = iter(open_user_samples(["x.parquet"])[0])
    with pytest.raises(DataError, match=r"x\.parquet: damaged from row \d+ on \("):
        list(images)


NAMED = {
    "an array of npz": (lambda: write_npz("x.npz", a=PIXELS * 0.5, b=PIXELS * 0.25), "x.npz", PIXELS[2] * 0.25),
    "numbers in Parquet": (
        lambda: pq.write_table(pa.table({"a": [b"1", b"2", b"3"], "b": [0.5, 1.5, 2.5]}), "x.parquet"),
        "x.parquet",
        [2.5],
    ),
    "a named source": (lambda: Path("x.txt").write_text("a,b\n1,2\n3,4\n5,6.5\n"), "csv:x.txt", [6.5]),
}


@pytest.mark.parametrize(("make", "name", "wanted"), NAMED.values(), ids=NAMED)
@pytest.mark.usefixtures("place")
def test_the_column_of_everything_that_has_any(make, name: str, wanted: np.ndarray) -> None:
    make()
    np.testing.assert_array_equal(list(open_user_samples([name], options={"column": "b"})[0])[2].raw, wanted)


@pytest.mark.parametrize(
    ("sample", "options", "message"),
    [
        ("images", {"column": "b"}, "--column b does not apply"),
        ("plain.npz", {"root": Path("x")}, "--root x does not apply"),
    ],
)
@pytest.mark.usefixtures("place")
def test_options_that_say_nothing_are_refused(sample: str, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=f"{message} to {sample}"):
        open_user_samples([sample], options=options)
