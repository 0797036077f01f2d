"""Raw images: every source against what was put into it, and sources that cannot be used."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from gradscore.data import SOURCES, SourceKind, name_user_files, open_source
from gradscore.data.sources.raw_samples import UnreadableSampleError
from gradscore.errors import ConfigError, DataError

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (5, 4, 6), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)


def save_images(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(COLOUR[number]).save(root / name)


def test_digits_are_stretched_to_the_whole_range() -> None:
    source = open_source("sklearn:digits", {})
    digits = load_digits()
    assert (len(source.ids), source.labels.tolist()) == (1797, digits.target.tolist())
    assert (source.sample(3).shape, source.sample(3).dtype) == ((8, 8, 1), np.uint8)
    np.testing.assert_allclose(source.sample(3)[..., 0] / 255.0, digits.images[3] / 16, atol=0.002)


@pytest.mark.parametrize("images", [GREY, COLOUR], ids=["grey", "colour"])
def test_npz_holds_images_and_labels(tmp_path: Path, images: np.ndarray) -> None:
    np.savez(tmp_path / "set.npz", images=images, labels=np.array([3, 1, 0, 0, 2], dtype=np.int16))
    source = open_source(f"npz:{tmp_path / 'set.npz'}", {})
    assert (list(source.ids), source.labels.tolist()) == (["0", "1", "2", "3", "4"], [3, 1, 0, 0, 2])
    np.testing.assert_array_equal(source.sample(4), images[4].reshape(4, 6, -1))


BAD_ARRAYS = {
    "no samples": ({"labels": np.arange(5)}, "no array of samples, only labels"),
    "text": ({"images": np.array(list("abcde"))}, "wanted numbers for 5 samples in array 'images', got <U1"),
    "arrays of several lengths": ({"ids": np.ones((5, 2)), "mask": np.ones((4, 2))}, "for 5 samples in array 'mask'"),
    "too few labels": ({"images": GREY, "labels": np.arange(4)}, r"labels must be integers or names of shape \(5,\)"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_npz_with_unusable_arrays(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=message):
        open_source(f"npz:{tmp_path / 'set.npz'}", {})


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def save_damaged(path: Path) -> None:
    np.savez_compressed(path, images=GREY)
    content = path.read_bytes()
    path.write_bytes(content[:120] + bytes(8) + content[128:])


BAD_FILES = {
    "damaged": save_damaged,
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Payload(path.parent / "ran"))),
    "objects": lambda path: np.savez(path, images=np.array([Payload(path.parent / "ran")], dtype=object)),
}


@pytest.mark.parametrize("save", BAD_FILES.values(), ids=BAD_FILES)
def test_unreadable_npz(tmp_path: Path, save) -> None:
    save(tmp_path / "set.npz")
    with pytest.raises(DataError, match=r"set\.npz(: array 'images' holds Python objects| cannot be read)"):
        open_source(f"npz:{tmp_path / 'set.npz'}", {})
    assert not (tmp_path / "ran").exists()


def array(shape: tuple[int, ...], content: bytes) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("images.npy", content)
    return stream.getvalue()


def claiming(content: bytes, size: int) -> bytes:
    """The archive with another size after unpacking in its directory."""
    archive = bytearray(zipped(content))
    place = archive.rindex(b"PK\x01\x02")
    archive[place + 24 : place + 28] = size.to_bytes(4, "little")
    return bytes(archive)


PROMISE = array((2**31 - 1000, 1, 1), b"")

BOMBS = {
    "more images than there are": zipped(array((10**12, 4, 6), GREY.tobytes())),
    "fewer images than there are": zipped(array((2, 4, 6), GREY.tobytes())),
    "images without pixels": zipped(array((10**12, 0, 5), b"")),
    "a negative size": zipped(array((-5, -4, 6), GREY.tobytes())),
    "a false size in the directory": claiming(PROMISE, len(PROMISE) + 2**31 - 1000),
    "another compression": zipped(array((5, 4, 6), GREY.tobytes()), zipfile.ZIP_LZMA),
    "a header without an end": zipped(b"\x93NUMPY\x01\x00\xff\xff{" + b"(" * 9000),
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_bombs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz.*(cannot be read|must be uint8)"):
        open_source(f"npz:{tmp_path}/x.npz")


OBJECTS = {
    "objects": np.array([{"a": 1}, None], dtype=object),
    "objects in a field": np.zeros(2, dtype=[("x", "f4"), ("y", object)]),
}


@pytest.mark.parametrize("values", OBJECTS.values(), ids=OBJECTS)
def test_pickled_objects_are_called_so(tmp_path: Path, values) -> None:
    np.savez(tmp_path / "x.npz", images=values)
    with pytest.raises(DataError, match=r"x\.npz: array 'images' holds Python objects, which are pickled .* save"):
        open_source(f"npz:{tmp_path}/x.npz")


def test_constant_images_pack_as_far_as_deflate_can(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(zipped(array((1000, 32, 32, 3), bytes(3_072_000))))
    assert len(open_source(f"npz:{tmp_path / 'x.npz'}", {}).ids) == 1000


def test_folder_of_classes(tmp_path: Path) -> None:
    save_images(
        tmp_path, "zebra/b.png", "ant/c.png", "zebra/deep/a.PNG", ".cache/x.png", "ant/.ipynb_checkpoints/c.png"
    )
    (tmp_path / "ant/notes.txt").write_text("no image")
    (tmp_path / "ant/._c.png").write_bytes(b"left by a system")
    source = open_source(f"folder:{tmp_path}", {})
    assert list(source.ids) == ["ant/c.png", "zebra/b.png", "zebra/deep/a.PNG"]
    assert source.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(source.sample(0), COLOUR[1])
    np.testing.assert_array_equal(source.sample(1), COLOUR[0])


def test_flat_folder_has_no_labels_and_tells_changes(tmp_path: Path) -> None:
    save_images(tmp_path, "b.png", "a.bmp")
    source = open_source(f"folder:{tmp_path}", {})
    assert (list(source.ids), source.labels) == (["a.bmp", "b.png"], None)
    assert open_source(f"folder:{tmp_path}", {}).content() == source.content()
    before = source.content()
    Image.fromarray(GREY[0]).save(tmp_path / "b.png")
    assert open_source(f"folder:{tmp_path}", {}).content() != before


def test_other_images_of_one_size_are_noticed(tmp_path: Path) -> None:
    """Uncompressed ones all have it."""
    names = [f"{number}.bmp" for number in range(70)]
    found = []
    for shade in (GREY[0], 255 - GREY[0]):
        for name in names:
            Image.fromarray(shade).save(tmp_path / name)
        (tmp_path / "list.csv").write_text("\n".join(["file", *names]))
        found.append(
            [open_source(source, {}).content() for source in (f"folder:{tmp_path}", f"csv:{tmp_path}/list.csv")]
        )
    assert (tmp_path / names[0]).stat().st_size == (tmp_path / names[-1]).stat().st_size
    assert [before != after for before, after in zip(*found, strict=True)] == [True, True]


MODES = {"1": 1, "L": 1, "P": 3, "RGB": 3, "CMYK": 3}


@pytest.mark.parametrize(("mode", "channels"), MODES.items(), ids=MODES)
def test_image_modes_become_grey_or_colour(tmp_path: Path, mode: str, channels: int) -> None:
    Image.fromarray(COLOUR[0]).convert(mode).save(tmp_path / "a.tiff")
    pixels = open_source(f"folder:{tmp_path}", {}).sample(0)
    assert (pixels.shape, pixels.dtype) == ((4, 6, channels), np.uint8)


def save_half_image(path: Path) -> None:
    Image.fromarray(RANDOM.integers(0, 256, (40, 40), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BAD_IMAGES = {
    "a pointer": (
        "a.png",
        lambda path: path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"),
        r"a\.png cannot be decoded: a pointer of Git LFS .*: git lfs pull$",
    ),
    "empty": ("a.png", lambda path: path.write_bytes(b""), "cannot identify"),
    "truncated png": ("a.png", save_half_image, r"a\.png cannot be decoded"),
    "floats": (
        "a.tiff",
        lambda path: Image.fromarray(GREY[0].astype(np.float32)).save(path),
        "wanted 8 or 16 bits per channel, got Pillow mode F",
    ),
}


@pytest.mark.parametrize(("name", "save", "message"), BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_image_that_does_not_decode(tmp_path: Path, name: str, save, message: str) -> None:
    save(tmp_path / name)
    with pytest.raises(UnreadableSampleError, match=message):
        open_source(f"folder:{tmp_path}", {}).sample(0)


def test_folder_with_images_and_classes(tmp_path: Path) -> None:
    save_images(tmp_path, "a.png", "ant/b.png")
    with pytest.raises(DataError, match=r"both images \(a\.png, \.\.\.\) and sub-folders \(ant, \.\.\.\)"):
        open_source(f"folder:{tmp_path}", {})


def test_torchvision_data_set(tmp_path: Path) -> None:
    save_images(tmp_path, "ant/b.png", "zebra/a.png")
    source = open_source("torchvision:ImageFolder", {"root": str(tmp_path)})
    assert list(source.ids) == ["0", "1"]
    assert source.labels.tolist() == [0, 1]
    np.testing.assert_array_equal(source.sample(1), COLOUR[1])
    (tmp_path / "zebra/a.png").write_bytes(b"")
    with pytest.raises(UnreadableSampleError, match="sample 1 of torchvision:ImageFolder cannot be decoded"):
        source.sample(1)


BAD_SOURCES = {
    "unknown sklearn set": ("sklearn:iris", {}, "data source 'sklearn:iris': wanted sklearn:digits"),
    "missing folder": ("folder:/nowhere", {}, "/nowhere does not exist"),
    "arguments nobody takes": ("sklearn:digits", {"split": "test"}, "takes no arguments, got split"),
    "unknown torchvision set": ("torchvision:CIFAR11", {}, "did you mean .CIFAR10"),
    "unknown torchvision argument": ("torchvision:CIFAR10", {"rot": "."}, "unexpected keyword argument 'rot'"),
    "missing torchvision data": ("torchvision:CIFAR10", {"root": "/nowhere"}, "not found or corrupted"),
}


@pytest.mark.parametrize(("source", "arguments", "message"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_unusable_source(source: str, arguments: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(source, arguments)


def test_unknown_kind() -> None:
    with pytest.raises(ConfigError, match=r"'foldr:images': no data source 'foldr'; did you mean 'folder'\?"):
        open_source("foldr:images")


@pytest.fixture
def odd_names(tmp_path: Path) -> Path:
    """Images, two of them in a class folder, whose names are no UTF-8."""
    root = tmp_path / "odd"
    save_images(
        root,
        "cat/0.png",
        os.fsdecode(b"cat/\xff.png"),
        os.fsdecode(b"\xe9 owl/0.png"),
        os.fsdecode(b"\xe9 owl/\xfe.png"),
    )
    return root


def test_names_that_are_no_utf_8_are_escaped(odd_names: Path) -> None:
    source = open_source(f"folder:{odd_names}", {})
    assert list(source.ids) == ["cat/0.png", r"cat/\udcff.png", r"\udce9 owl/0.png", r"\udce9 owl/\udcfe.png"]
    assert list(source.class_names) == ["cat", r"\udce9 owl"]
    assert [np.array_equal(source.sample(place), COLOUR[place]) for place in range(4)] == [True] * 4
    assert len(source.content()) == 64


def test_two_names_that_are_one_once_escaped_are_refused(odd_names: Path) -> None:
    save_images(odd_names, r"cat/\udcff.png")
    with pytest.raises(DataError, match=r"two names are cat/\\udcff.png once bytes that are no UTF-8 are escaped"):
        open_source(f"folder:{odd_names}", {})


def test_class_folders_may_be_called_anything(tmp_path: Path) -> None:
    names = ["*", "NA", "None", "[ab]"]
    save_images(tmp_path, *(f"{name}/0.png" for name in names))
    source = open_source(f"folder:{tmp_path}", {})
    assert (list(source.ids), list(source.class_names)) == ([f"{name}/0.png" for name in names], names)


def test_files_of_a_source_of_ones_own_are_found_by_their_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SOURCES, "_entries", dict(SOURCES._entries))
    SOURCES.add("raw", SourceKind(open=lambda request: None, form="raw:<file>", summary="", endings=(".raw",)))
    (tmp_path / "a.RAW").touch()
    assert [(file.kind, file.file) for file in name_user_files([str(tmp_path)])] == [("raw", tmp_path / "a.RAW")]
