"""Every row of docs/data.md, on files made by the library that people make them with."""

import io
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import webdataset
from PIL import Image

from gradscore.data import ImageSource, UnreadableImageError, open_source
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


def csv_of_paths(folder: Path) -> str:
    frame = pd.DataFrame({"path": save_images(folder), "label": [NAMES[label] for label in LABELS]})
    frame.to_csv(folder / "t.csv", index=False)
    return f"csv:{folder}/t.csv"


def parquet_of_paths(folder: Path) -> str:
    pd.DataFrame({"path": save_images(folder), "label": LABELS}).to_parquet(folder / "t.parquet")
    return f"parquet:{folder}/t.parquet"


def parquet_of_bytes(folder: Path) -> str:
    pd.DataFrame({"image": [png(each) for each in COLOUR], "y": LABELS}).to_parquet(folder / "t.parquet")
    return f"parquet:{folder}/t.parquet"


def hf_set(_folder: Path, **columns: object) -> datasets.Dataset:
    features = {"label": datasets.ClassLabel(names=NAMES)}
    if "image" in columns:
        features["image"] = datasets.Image()
    found = datasets.Dataset.from_dict({**columns, "label": LABELS})
    return found.cast(datasets.Features({**found.features, **features}))


def hf_of_images(folder: Path) -> str:
    images = [{"bytes": png(each), "path": None} for each in COLOUR]
    hf_set(folder, image=images).save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


def hf_dictionary(folder: Path) -> str:
    images = [{"bytes": png(each), "path": None} for each in COLOUR]
    found = datasets.DatasetDict({"train": hf_set(folder, image=images[:1] * 4), "test": hf_set(folder, image=images)})
    found.save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


def hf_in_shards(folder: Path) -> str:
    images = [{"bytes": png(each), "path": None} for each in COLOUR]
    hf_set(folder, image=images).save_to_disk(folder / "saved", num_shards=3)
    return f"hf:{folder}/saved"


def hf_parquet(folder: Path) -> str:
    images = [{"bytes": png(each), "path": None} for each in COLOUR]
    (folder / "data").mkdir()
    hf_set(folder, image=images).to_parquet(folder / "data/test-00000-of-00001.parquet")
    return f"hf:{folder}"


def shards(folder: Path, name: str = "shard") -> str:
    with webdataset.ShardWriter(f"{folder}/{name}-%02d.tar", maxcount=2, verbose=0) as writer:
        for place, (pixels, label) in enumerate(zip(COLOUR, LABELS, strict=True)):
            writer.write({"__key__": f"sample{place}", "png": pixels, "cls": label})
    return f"wds:{folder}/{name}-{{00..01}}.tar"


def shards_with_names(folder: Path) -> str:
    with webdataset.TarWriter(f"{folder}/set.tar") as writer:
        for place, (pixels, label) in enumerate(zip(COLOUR, LABELS, strict=True)):
            writer.write({"__key__": f"a/{place}", "png": pixels, "cls": NAMES[label].encode()})
    return f"wds:{folder}/set.tar"


def npz_channels_first(folder: Path) -> str:
    np.savez(folder / "t.npz", images=COLOUR.transpose(0, 3, 1, 2), labels=LABELS)
    return f"npz:{folder}/t.npz"


IMAGES: dict[str, tuple[Callable[[Path], str], dict, list[str] | None]] = {
    "csv of paths": (csv_of_paths, {}, NAMES),
    "Parquet of paths": (parquet_of_paths, {}, None),
    "Parquet of encoded images": (parquet_of_bytes, {}, None),
    "save_to_disk": (hf_of_images, {}, NAMES),
    "save_to_disk of several splits": (hf_dictionary, {"split": "test"}, NAMES),
    "save_to_disk in shards": (hf_in_shards, {}, NAMES),
    "Parquet of datasets": (hf_parquet, {}, NAMES),
    "tar shards by a pattern": (shards, {}, None),
    "tar shards with names": (shards_with_names, {}, NAMES),
    "npz, channels first": (npz_channels_first, {}, None),
}


@pytest.mark.parametrize(("make", "arguments", "names"), IMAGES.values(), ids=IMAGES)
def test_images(tmp_path: Path, make, arguments: dict, names: list[str] | None) -> None:
    name = make(tmp_path)
    source = open_source(name, arguments)
    assert len(source.ids) == len(set(source.ids)) == 4
    assert source.labels.tolist() == LABELS
    assert (None if source.class_names is None else list(source.class_names)) == names
    np.testing.assert_array_equal(np.stack([source.image(place) for place in range(4)]), COLOUR)
    assert source.content() == open_source(name, arguments).content()


@pytest.mark.parametrize(("column", "names"), [("path", list("abcd")), ("key", [0, 1, 2, 3])])
def test_names_of_images_without_their_folder_and_ending(tmp_path: Path, column: str, names: list) -> None:
    for path, name in zip(save_images(tmp_path), names, strict=True):
        (tmp_path / path).rename(tmp_path / "pictures" / f"{name}.png")
    pd.DataFrame({column: names, "label": LABELS}).to_csv(tmp_path / "t.csv", index=False)
    arguments = {"inputs": column, "folder": "pictures", "suffix": ".png"}
    source = open_source(f"csv:{tmp_path}/t.csv", arguments)
    np.testing.assert_array_equal(np.stack([source.image(place) for place in range(4)]), COLOUR)
    content = source.content()
    pd.DataFrame({column: names, "label": LABELS}).to_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(open_source(f"parquet:{tmp_path}/t.parquet", arguments).image(0), COLOUR[0])
    (tmp_path / "pictures" / f"{names[0]}.png").write_bytes(b"another")
    assert open_source(f"csv:{tmp_path}/t.csv", arguments).content() != content


def test_a_folder_is_text(tmp_path: Path) -> None:
    csv_of_paths(tmp_path)
    with pytest.raises(DataError, match=r"arguments.folder: wanted text, got 3"):
        open_source(f"csv:{tmp_path}/t.csv", {"folder": 3})


def test_paths_may_name_the_samples_as_well(tmp_path: Path) -> None:
    source = open_source(csv_of_paths(tmp_path), {"ids": "path"})
    assert list(source.ids) == pd.read_csv(tmp_path / "t.csv")["path"].tolist()
    np.testing.assert_array_equal(source.image(1), COLOUR[1])


def columns_of_numbers(folder: Path) -> str:
    frame = pd.DataFrame(VECTORS, columns=["a", "b", "c"]).assign(label=LABELS)
    frame.to_csv(folder / "t.csv", index=False)
    return f"csv:{folder}/t.csv"


def hf_of_lists(folder: Path) -> str:
    hf_set(folder, values=VECTORS.tolist()).save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


def npz_of_floats(folder: Path) -> str:
    np.savez(folder / "t.npz", x=VECTORS, y=LABELS)
    return f"npz:{folder}/t.npz"


def shards_of_arrays(folder: Path) -> str:
    with webdataset.TarWriter(f"{folder}/set.tar") as writer:
        for place, (values, label) in enumerate(zip(VECTORS, LABELS, strict=True)):
            writer.write({"__key__": str(place), "npy": values, "cls": label})
    return f"wds:{folder}/set.tar"


def npz_of_tokens(folder: Path) -> str:
    np.savez(folder / "t.npz", input_ids=TOKENS, attention_mask=MASKS, labels=LABELS)
    return f"npz:{folder}/t.npz"


def shards_of_tokens(folder: Path) -> str:
    with webdataset.TarWriter(f"{folder}/set.tar") as writer:
        for place in range(4):
            arrays = {"input_ids.npy": TOKENS[place], "attention_mask.npy": MASKS[place]}
            writer.write({"__key__": str(place), **arrays, "cls": LABELS[place]})
    return f"wds:{folder}/set.tar"


def csv_of_text(folder: Path) -> str:
    pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv(folder / "t.csv", index=False)
    return f"csv:{folder}/t.csv"


def shards_of_text(folder: Path) -> str:
    with webdataset.TarWriter(f"{folder}/set.tar") as writer:
        for place in range(4):
            writer.write({"__key__": str(place), "txt": TEXTS[place], "cls": LABELS[place]})
    return f"wds:{folder}/set.tar"


FLOATS = list(VECTORS)
ARRAYS = [{"input_ids": ids, "attention_mask": mask} for ids, mask in zip(TOKENS, MASKS, strict=True)]
OTHERS: dict[str, tuple[Callable[[Path], str], list]] = {
    "csv of columns": (columns_of_numbers, FLOATS),
    "save_to_disk of lists": (hf_of_lists, FLOATS),
    "npz of vectors": (npz_of_floats, FLOATS),
    "tar shards of arrays": (shards_of_arrays, FLOATS),
    "npz of several arrays": (npz_of_tokens, ARRAYS),
    "tar shards of several arrays": (shards_of_tokens, ARRAYS),
    "csv of text": (csv_of_text, TEXTS),
    "tar shards of text": (shards_of_text, TEXTS),
}


@pytest.mark.parametrize(("make", "wanted"), OTHERS.values(), ids=OTHERS)
def test_vectors_keyword_inputs_and_text(tmp_path: Path, make, wanted: list) -> None:
    source = open_source(make(tmp_path))
    np.testing.assert_equal([source.image(place) for place in range(4)], wanted)
    assert source.labels.tolist() == LABELS


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


def pictures():
    return Pictures()


def stream():
    return Stream()


def arrays(count=4):
    return [(COLOUR[place], ["cat", "dog"][LABELS[place]]) for place in range(count)]


def tensors():
    return TensorDataset(torch.tensor(COLOUR), torch.tensor(LABELS))


def tokens():
    for place in range(4):
        yield {"input_ids": TOKENS[place], "attention_mask": torch.tensor(MASKS[place]), "labels": LABELS[place]}


def without_labels():
    return list(COLOUR)


def nothing():
    return []


def no_data():
    return 3


def broken():
    raise RuntimeError("no disk")


def leaving():
    raise SystemExit(0)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(CODE)
    beside = {"COLOUR": COLOUR, "LABELS": LABELS, "MASKS": MASKS, "TOKENS": TOKENS}
    lines = [f"{name} = np.array({np.asarray(value).tolist()})" for name, value in beside.items()]
    text = "\n".join(["import numpy as np", *lines, "COLOUR = COLOUR.astype(np.uint8)", "LABELS = LABELS.tolist()"])
    (tmp_path / "beside.py").write_text(text)
    return tmp_path / "data.py"


PICTURES = {"pictures": NAMES, "stream": None, "arrays": NAMES, "tensors": None}


@pytest.mark.parametrize(("function", "names"), PICTURES.items(), ids=PICTURES)
@trusting_code()
def test_images_of_a_function(code: Path, function: str, names: list[str] | None) -> None:
    source = open_source(f"python:{code}:{function}")
    assert source.labels.tolist() == LABELS
    assert (None if source.class_names is None else list(source.class_names)) == names
    np.testing.assert_array_equal(np.stack([source.image(place) for place in range(4)]), COLOUR)


@trusting_code()
def test_a_function_is_given_the_arguments(code: Path) -> None:
    assert len(open_source(f"python:{code}:arrays", {"count": 3}).ids) == 3


@trusting_code()
def test_dictionaries_of_a_function_are_keyword_inputs(code: Path) -> None:
    source = open_source(f"python:{code}:tokens")
    assert source.labels.tolist() == LABELS
    np.testing.assert_array_equal(source.image(2)["attention_mask"], MASKS[2])
    np.testing.assert_array_equal(source.image(2)["input_ids"], TOKENS[2])


@trusting_code()
def test_a_function_without_labels(code: Path) -> None:
    assert open_source(f"python:{code}:without_labels").labels is None


BAD_CODE = {
    "nothing": (DataError, "has no sample"),
    "no_data": (DataError, "returned int, wanted a Dataset or an iterable"),
    "broken": (DataError, "failed: RuntimeError: no disk"),
    "leaving": (DataError, "failed: SystemExit: 0"),
    "missing": (ModelError, "no function 'missing'"),
}


@pytest.mark.parametrize(("function", "wanted"), BAD_CODE.items(), ids=BAD_CODE)
@trusting_code()
def test_functions_that_give_no_data(code: Path, function: str, wanted: tuple) -> None:
    with pytest.raises(wanted[0], match=wanted[1]):
        open_source(f"python:{code}:{function}")


def test_code_does_not_run_without_trust(code: Path) -> None:
    with pytest.raises(ModelError, match=r"data source 'python:.*data\.py:pictures' runs the code .*--trust-code"):
        open_source(f"python:{code}:pictures")


def table(folder: Path, *paths: str, **arguments: object) -> ImageSource:
    pd.DataFrame({"path": paths}).to_csv(folder / "t.csv", index=False)
    return open_source(f"csv:{folder}/t.csv", arguments)


def test_a_path_that_leads_out_of_the_folder_of_its_table_is_allowed_by_a_root(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    Image.fromarray(COLOUR[0]).save(tmp_path / "secret.png")
    with pytest.raises(UnreadableImageError, match=r"row 0 of .* is refused: .* leads out of .*arguments: \{root"):
        table(tmp_path / "inner", "../secret.png").image(0)
    allowed = table(tmp_path / "inner", "../secret.png", root=str(tmp_path))
    np.testing.assert_array_equal(allowed.image(0), COLOUR[0])


DAMAGED: dict[str, tuple[Callable[[Path], object], str, dict, str]] = {
    "a Parquet file that is none": (
        lambda folder: (folder / "t.parquet").write_text("no"),
        "parquet:{}/t.parquet",
        {},
        "cannot be read: .*wanted a Parquet file",
    ),
    "a file for a folder": (
        lambda folder: (folder / "x").write_text(""),
        "folder:{}/x",
        {},
        "is a file, wanted a fold",
    ),
    "a missing column": (csv_of_paths, "csv:{}/t.csv", {"inputs": "pth"}, "no column 'pth' .*did you mean 'path'"),
    "no split named": (hf_dictionary, "hf:{}/saved", {}, "which split.*one of train, test"),
    "no shards": (lambda _folder: None, "wds:{}", {}, "has no .tar file"),
    "a missing shard": (shards, "wds:{}/shard-{{00..02}}.tar", {}, "shard-02.tar does not exist"),
    "a shard cut off": (
        lambda folder: (shards(folder), _cut(folder / "shard-01.tar")),
        "wds:{}",
        {},
        "shard-01.tar cannot be read: .*complete .tar file",
    ),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


@pytest.mark.parametrize(("make", "name", "arguments", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_cannot_be_used_is_named(tmp_path: Path, make, name: str, arguments: dict, message: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        open_source(name.format(tmp_path), arguments)


def test_a_row_without_a_number_is_one_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n1,2,0\n3,,1\n")
    source = open_source(f"csv:{tmp_path}/t.csv")
    with pytest.raises(UnreadableImageError, match=r"row 1 of .* has nothing in column 'b'"):
        source.image(1)
    np.testing.assert_array_equal(source.image(0), [1, 2])


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
    np.testing.assert_array_equal(open_source(f"folder:{tmp_path}").image(0), wanted)
