"""Archives that claim more than they hold are refused before anything is made as large as they say."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gradscore.data import open_source
from gradscore.errors import DataError

PIXELS = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)


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
    "more images than there are": zipped(array((10**12, 4, 5), PIXELS.tobytes())),
    "fewer images than there are": zipped(array((2, 4, 5), PIXELS.tobytes())),
    "images without pixels": zipped(array((10**12, 0, 5), b"")),
    "a negative size": zipped(array((-3, -4, 5), PIXELS.tobytes())),
    "a false size in the directory": claiming(PROMISE, len(PROMISE) + 2**31 - 1000),
    "another compression": zipped(array((3, 4, 5), PIXELS.tobytes()), zipfile.ZIP_LZMA),
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
