"""Every row of docs/data.md, on files made by the library that people make them with."""

import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from gradscore.data import Preprocessing, PreprocessingConfig, SampleDataset, collate, open_source
from gradscore.data.sources.raw_samples import UnreadableSampleError
from gradscore.errors import DataError, ModelError
from gradscore.models import trusting_code

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
VECTORS = RANDOM.normal(size=(4, 3)).astype(np.float32)
TOKENS = RANDOM.integers(0, 50, (4, 7))
MASKS = np.array([[1] * length + [0] * (7 - length) for length in (7, 5, 3, 6)])
LABELS = [1, 0, 1, 1]
NAMES = ["cat", "dog"]
TEXTS = ["one fine day", "two", "three more", "four"]


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def save_images(folder: Path) -> list[str]:
    (folder / "pictures").mkdir()
    for place, pixels in enumerate(COLOUR):
        Image.fromarray(pixels).save(folder / f"pictures/{place}.png")
    return [f"pictures/{place}.png" for place in range(4)]


def images(folder: Path, **options: object) -> None:
    """Encoded images with names of classes, as `datasets` saves them."""
    hf_set(image=[{"bytes": png(each), "path": None} for each in COLOUR]).save_to_disk(folder / "saved", **options)


def hf_set(**columns: object) -> datasets.Dataset:
    features = {"label": datasets.ClassLabel(names=NAMES)}
    if "image" in columns:
        features["image"] = datasets.Image()
    found = datasets.Dataset.from_dict({**columns, "label": LABELS})
    return found.cast(datasets.Features({**found.features, **features}))


def hf_dictionary(folder: Path) -> None:
    encoded = [{"bytes": png(each), "path": None} for each in COLOUR]
    found = datasets.DatasetDict({"train": hf_set(image=encoded[:1] * 4), "test": hf_set(image=encoded)})
    found.save_to_disk(folder / "saved")


def paths(folder: Path, labels: list) -> pd.DataFrame:
    return pd.DataFrame({"path": save_images(folder), "label": labels})


NAMED = [NAMES[label] for label in LABELS]
FLOATS = list(VECTORS)
ARRAYS = [{"input_ids": ids, "attention_mask": mask} for ids, mask in zip(TOKENS, MASKS, strict=True)]
FORMS: dict[str, tuple[Callable[[Path], object], str, dict, list, list[str] | None]] = {
    "csv of paths": (
        lambda folder: paths(folder, NAMED).to_csv(folder / "t.csv", index=False),
        *("csv:{}/t.csv", {}, list(COLOUR), NAMES),
    ),
    "Parquet of paths": (
        lambda folder: paths(folder, LABELS).to_parquet(folder / "t.parquet"),
        *("parquet:{}/t.parquet", {}, list(COLOUR), None),
    ),
    "Parquet of encoded images": (
        lambda folder: pd.DataFrame({"image": [png(each) for each in COLOUR], "y": LABELS}).to_parquet(folder / "t.pq"),
        *("parquet:{}/t.pq", {}, list(COLOUR), None),
    ),
    "save_to_disk": (images, "hf:{}/saved", {}, list(COLOUR), NAMES),
    "save_to_disk of several splits": (hf_dictionary, "hf:{}/saved", {"split": "test"}, list(COLOUR), NAMES),
    "save_to_disk in shards": (
        lambda folder: images(folder, num_shards=3),
        *("hf:{}/saved", {}, list(COLOUR), NAMES),
    ),
    "Parquet of datasets": (
        lambda folder: hf_set(image=[{"bytes": png(each), "path": None} for each in COLOUR]).to_parquet(
            folder / "test-00000-of-00001.parquet"
        ),
        *("hf:{}", {}, list(COLOUR), NAMES),
    ),
    "npz, channels first": (
        lambda folder: np.savez(folder / "t.npz", images=COLOUR.transpose(0, 3, 1, 2), labels=LABELS),
        *("npz:{}/t.npz", {}, list(COLOUR), None),
    ),
    "csv of columns": (
        lambda folder: pd.DataFrame(VECTORS).assign(label=LABELS).to_csv(folder / "t.csv", index=False),
        *("csv:{}/t.csv", {}, FLOATS, None),
    ),
    "save_to_disk of lists": (
        lambda folder: hf_set(values=VECTORS.tolist()).save_to_disk(folder / "saved"),
        *("hf:{}/saved", {}, FLOATS, NAMES),
    ),
    "npz of vectors": (
        lambda folder: np.savez(folder / "t.npz", x=VECTORS, y=LABELS),
        *("npz:{}/t.npz", {}, FLOATS, None),
    ),
    "npz of several arrays": (
        lambda folder: np.savez(folder / "t.npz", input_ids=TOKENS, attention_mask=MASKS, labels=LABELS),
        *("npz:{}/t.npz", {}, ARRAYS, None),
    ),
    "csv of text": (
        lambda folder: pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv(folder / "t.csv", index=False),
        *("csv:{}/t.csv", {}, TEXTS, None),
    ),
}


@pytest.mark.parametrize(("make", "name", "arguments", "wanted", "names"), FORMS.values(), ids=FORMS)
def test_samples_labels_and_names(
    tmp_path: Path, make, name: str, arguments: dict, wanted: list, names: list[str] | None
) -> None:
    make(tmp_path)
    source = open_source(name.format(tmp_path), arguments)
    found = [source.sample(place) for place in range(4)]
    np.testing.assert_equal([each.astype(np.float32) for each in found] if wanted is FLOATS else found, wanted)
    assert (len(set(source.ids)), source.labels.tolist()) == (4, LABELS)
    assert (None if source.class_names is None else list(source.class_names)) == names
    assert source.content() == open_source(name.format(tmp_path), arguments).content()


@pytest.mark.parametrize(("column", "names"), [("path", list("abcd")), ("key", [0, 1, 2, 3])])
def test_names_of_images_without_their_folder_and_ending(tmp_path: Path, column: str, names: list) -> None:
    for path, name in zip(save_images(tmp_path), names, strict=True):
        (tmp_path / path).rename(tmp_path / "pictures" / f"{name}.png")
    frame = pd.DataFrame({column: names, "label": LABELS})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    arguments = {"inputs": column, "folder": "pictures", "suffix": ".png"}
    source = open_source(f"csv:{tmp_path}/t.csv", arguments)
    np.testing.assert_array_equal(np.stack([source.sample(place) for place in range(4)]), COLOUR)
    np.testing.assert_array_equal(open_source(f"parquet:{tmp_path}/t.parquet", arguments).sample(0), COLOUR[0])
    content = source.content()
    (tmp_path / "pictures" / f"{names[0]}.png").write_bytes(b"another")
    assert open_source(f"csv:{tmp_path}/t.csv", arguments).content() != content


def test_the_index_of_pandas_is_no_input(tmp_path: Path) -> None:
    shuffled = pd.DataFrame({"a": [0.5, 1.5, 2.5], "b": [1, 2, 3], "label": [0, 1, 0]}).iloc[[2, 0, 1]]
    for index, name in ((shuffled.index, "number"), (["x", "y", "z"], "text")):
        shuffled.set_axis(index).to_parquet(tmp_path / f"{name}.parquet")
    for name in ("number", "text"):
        source = open_source(f"parquet:{tmp_path}/{name}.parquet")
        assert "__index_level_0__" in source.table.rows.column_names
        np.testing.assert_array_equal([source.sample(place) for place in range(3)], shuffled[["a", "b"]].to_numpy())
    named = open_source(f"parquet:{tmp_path}/text.parquet", {"ids": "__index_level_0__"})
    assert list(named.ids) == ["x", "y", "z"]


def test_paths_may_name_the_samples_as_well(tmp_path: Path) -> None:
    paths(tmp_path, NAMED).to_csv(tmp_path / "t.csv", index=False)
    source = open_source(f"csv:{tmp_path}/t.csv", {"ids": "path"})
    assert list(source.ids) == [f"pictures/{place}.png" for place in range(4)]
    np.testing.assert_array_equal(source.sample(1), COLOUR[1])


CODE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from beside import COLOUR, LABELS, MASKS, TOKENS


class Pictures(Dataset):
    classes = ["cat", "dog"]

    def __len__(self):
        return 4

    def __getitem__(self, place):
        return Image.fromarray(COLOUR[place]), LABELS[place]


class Stream(IterableDataset):
    def __iter__(self):
        return iter((torch.tensor(COLOUR[place]).permute(2, 0, 1), LABELS[place]) for place in range(4))


def arrays(count=4):
    return [(COLOUR[place], ["cat", "dog"][LABELS[place]]) for place in range(count)]


def tokens():
    for place in range(4):
        yield {"input_ids": TOKENS[place], "attention_mask": torch.tensor(MASKS[place]), "labels": LABELS[place]}


def leaving():
    raise SystemExit(0)


def tensors():
    return TensorDataset(torch.tensor(COLOUR), torch.tensor(LABELS))


def without_labels():
    return list(COLOUR)


def nothing():
    return []


def no_data():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(CODE)
    beside = {"COLOUR": COLOUR, "LABELS": LABELS, "MASKS": MASKS, "TOKENS": TOKENS}
    lines = [f"{name} = np.array({np.asarray(value).tolist()})" for name, value in beside.items()]
    text = "\n".join(["import numpy as np", *lines, "COLOUR = COLOUR.astype(np.uint8)", "LABELS = LABELS.tolist()"])
    (tmp_path / "beside.py").write_text(text)
    return tmp_path / "data.py"


PICTURES = {"Pictures": NAMES, "Stream": None, "arrays": NAMES, "tensors": None}


@pytest.mark.parametrize(("function", "names"), PICTURES.items(), ids=PICTURES)
@trusting_code()
def test_images_of_a_function(code: Path, function: str, names: list[str] | None) -> None:
    source = open_source(f"python:{code}:{function}")
    assert source.labels.tolist() == LABELS
    assert (None if source.class_names is None else list(source.class_names)) == names
    np.testing.assert_array_equal(np.stack([source.sample(place) for place in range(4)]), COLOUR)


@trusting_code()
def test_arguments_keyword_inputs_and_no_labels_of_a_function(code: Path) -> None:
    assert len(open_source(f"python:{code}:arrays", {"count": 3}).ids) == 3
    source = open_source(f"python:{code}:tokens")
    np.testing.assert_equal([source.sample(place) for place in range(4)], ARRAYS)
    assert source.labels.tolist() == LABELS
    assert open_source(f"python:{code}:without_labels").labels is None


BAD_CODE = {
    "nothing": (DataError, "has no sample"),
    "no_data": (DataError, "returned int, wanted a Dataset or an iterable"),
    "leaving": (DataError, "failed: SystemExit: 0"),
    "missing": (ModelError, "no function 'missing'"),
}


@pytest.mark.parametrize(("function", "wanted"), BAD_CODE.items(), ids=BAD_CODE)
@trusting_code()
def test_functions_that_give_no_data(code: Path, function: str, wanted: tuple) -> None:
    with pytest.raises(wanted[0], match=wanted[1]):
        open_source(f"python:{code}:{function}")


PLANS = np.array([2, 0, 1, 1])
WITH_ONE_NUMBER = """
import numpy as np

def rows():
    arrays = np.load({path!r})
    return [{{"numbers": row, "plan": {plan}}} for row, plan in zip(arrays["numbers"], arrays["plan"])]
"""


@pytest.mark.parametrize("plan", ["", "plan", "int(plan)", "np.array(plan)"])
@trusting_code()
def test_one_number_of_a_sample_beside_others_comes_as_from_a_loader(tmp_path: Path, plan: str) -> None:
    np.savez(tmp_path / "rows.npz", numbers=VECTORS, plan=PLANS)
    (tmp_path / "data.py").write_text(WITH_ONE_NUMBER.format(path=str(tmp_path / "rows.npz"), plan=plan))
    source = open_source(f"python:{tmp_path / 'data.py'}:rows" if plan else f"npz:{tmp_path / 'rows.npz'}")
    samples = SampleDataset(source, Preprocessing(PreprocessingConfig()), labelled=False)
    found = collate([samples[place] for place in range(4)]).inputs
    wanted = default_collate([{"numbers": row, "plan": plan} for row, plan in zip(VECTORS, PLANS, strict=True)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_code_does_not_run_without_trust(code: Path) -> None:
    with pytest.raises(ModelError, match=r"data source runs the code in .*data\.py; .*--trust-code"):
        open_source(f"python:{code}:Pictures")


def test_a_path_that_leads_out_of_the_folder_of_its_table_is_allowed_by_a_root(tmp_path: Path) -> None:
    Image.fromarray(COLOUR[0]).save(tmp_path / "secret.png")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/t.csv").write_text("path\n../secret.png\n")
    with pytest.raises(UnreadableSampleError, match=r"row 0 of .* is refused: .* leads out of .*arguments: \{root"):
        open_source(f"csv:{tmp_path}/inner/t.csv").sample(0)
    allowed = open_source(f"csv:{tmp_path}/inner/t.csv", {"root": str(tmp_path)})
    np.testing.assert_array_equal(allowed.sample(0), COLOUR[0])


def csv(folder: Path) -> None:
    (folder / "t.csv").write_text("path\na\n")


DAMAGED: dict[str, tuple[Callable[[Path], object], str, dict, str]] = {
    "no Parquet": (csv, "parquet:{}/t.csv", {}, "cannot be read: .*wanted a Parquet file"),
    "a file for a folder": (csv, "folder:{}/t.csv", {}, "is a file, wanted a folder"),
    "a missing column": (csv, "csv:{}/t.csv", {"inputs": "pth"}, "no column 'pth' .*did you mean 'path'"),
    "no text": (csv, "csv:{}/t.csv", {"folder": 3}, "folder: wanted text, got 3"),
    "no split named": (hf_dictionary, "hf:{}/saved", {}, "which split.*one of train, test"),
}


@pytest.mark.parametrize(("make", "name", "arguments", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_cannot_be_used_is_named(tmp_path: Path, make, name: str, arguments: dict, message: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        open_source(name.format(tmp_path), arguments)


def test_a_row_without_a_number_is_one_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n1,2,0\n3,,1\n")
    source = open_source(f"csv:{tmp_path}/t.csv")
    with pytest.raises(UnreadableSampleError, match=r"row 1 of .* has a missing value in column 'b'"):
        source.sample(1)
    np.testing.assert_array_equal(source.sample(0), [1, 2])


def test_a_row_names_all_columns_of_its_missing_values(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c,d,label\n1,inf,,3,0\n,2,,3,1\n")
    source = open_source(f"csv:{tmp_path}/t.csv")
    found = []
    for row in range(2):
        with pytest.raises(
            UnreadableSampleError, match=r"has (a missing value in column|missing values in columns) '[ac]'"
        ) as raised:
            source.sample(row)
        found.append(raised.value.empty)
    assert found == [("c",), ("a", "c")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("written", ["inf", "-inf", "1e300"])
def test_a_number_that_is_not_finite_makes_a_bad_sample(tmp_path: Path, written: str) -> None:
    (tmp_path / "t.csv").write_text(f"a,b,label\n1,2,0\n3,{written},1\n")
    source = open_source(f"csv:{tmp_path}/t.csv")
    message = rf"row 1 of .* has {re.escape(str(float(written)))} in column 'b', wanted a finite number"
    with pytest.raises(UnreadableSampleError, match=message):
        source.sample(1)
    np.testing.assert_array_equal(source.sample(0), [1, 2])


def exif_rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(COLOUR[0]).copy()).save(path, exif=exif)


def animated(path: Path) -> None:
    frames = [Image.fromarray(COLOUR[place]) for place in range(2)]
    frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)


GREY = COLOUR[0, ..., :1]
FILES: dict[str, tuple[str, Callable[[Path], None], np.ndarray]] = {
    "16 bits": ("a.png", lambda path: Image.fromarray(GREY[..., 0].astype(np.uint16) * 256 + 9).save(path), GREY),
    "16 bits in a TIFF": (
        "a.tiff",
        lambda path: Image.fromarray(GREY[..., 0].astype(np.uint16) * 256 + 9).save(path),
        GREY,
    ),
    "turned by EXIF": ("a.png", exif_rotated, COLOUR[0]),
    "animated": ("a.webp", animated, COLOUR[0]),
}


@pytest.mark.parametrize(("name", "save", "wanted"), FILES.values(), ids=FILES)
def test_kinds_of_images(tmp_path: Path, name: str, save, wanted: np.ndarray) -> None:
    save(tmp_path / name)
    np.testing.assert_array_equal(open_source(f"folder:{tmp_path}").sample(0), wanted)


def png16(path: Path, values: np.ndarray) -> None:
    """Writes (H, W, C) colours of 16 bits, which Pillow reads and does not write."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">2I5B", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("scale", [16, 257], ids=["twelve bits", "sixteen bits"])
def test_fewer_bits_in_colours_of_sixteen_are_refused(tmp_path: Path, scale: int, channels: int) -> None:
    values = np.dstack([*[COLOUR[0][..., 0].astype(np.uint16)] * channels])
    png16(tmp_path / "a.png", values * scale)
    source = open_source(f"folder:{tmp_path}")
    if scale == 257:
        np.testing.assert_array_equal(source.sample(0), np.dstack([values[..., 0]] * 3))
        return
    with pytest.raises(DataError, match=r"a\.png .*16 bits go up to less than 4096.*; save it with 8 bits"):
        source.sample(0)


@pytest.mark.parametrize("scale", [1, 16], ids=["eight bits", "twelve bits"])
def test_fewer_bits_in_a_file_of_sixteen_are_refused(tmp_path: Path, scale: int) -> None:
    """Their upper 8 bits would be a black image, or nearly; a black one has nothing to lose."""
    values = GREY[..., 0].astype(np.uint16) * scale
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(np.zeros((3, 4), dtype=np.uint16)).save(tmp_path / "b.png")
    source = open_source(f"folder:{tmp_path}")
    with pytest.raises(DataError, match=rf"a\.png .*16 bits go up to {values.max()} alone, .* save it with 8 bits"):
        source.sample(0)
    assert not source.sample(1).any()
