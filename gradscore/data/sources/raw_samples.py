"""What a source of raw samples is: each with an id and, where there is one, a label.

Images are uint8 arrays (H, W, C), which are decoded here. Other samples are arrays of numbers as the model takes them,
several of these by name, or text. Labels are numbers or names.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ...errors import DataError
from ...notices import storable
from ...system import LFS_POINTER, OF_LFS, IntArray

Pixels = NDArray[np.uint8]
"""An image, (H, W, 1 or 3) uint8."""

Values = NDArray[Any]
"""Numbers as a model takes them: floats, whole numbers such as token ids, or truth values such as masks."""

Raw = Pixels | Values | Mapping[str, Values] | str
"""A sample before preprocessing."""

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

EIGHT_BIT_MODES = ("1", "CMYK", "HSV", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "YCbCr")
SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")
"""Formats that Pillow may open as 32 bits though they hold 16."""

READ_WHOLE = 64
"""Files of a source that are read whole, to see whether a run is of its samples."""

LABEL_NAMES = ("label", "labels", "class", "target", "targets", "y")
"""Usual names of columns, arrays and entries of mappings of labels; the first of these that is there counts."""

UNLABELLED = -1
"""Stands for no class."""

_ORIENTATION = 0x0112
"""The EXIF tag that says how an image is turned."""

DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""Errors that Pillow raises for damaged files."""


class UnreadableSampleError(DataError):
    """One sample cannot be read; `empty` are the columns of a table in which its value is missing."""

    def __init__(self, message: str, *, empty: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.empty = tuple(empty)


class SampleSource(Protocol):
    """Raw samples by position: images, numbers, or text.

    A source whose labels have names has them in `class_names`, in the order of the labels.
    """

    @property
    def ids(self) -> Sequence[str]:
        """Stable names."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """(N,), or None without labels; -1 for a sample without one."""

    def sample(self, index: int) -> Raw:
        """An image (H, W, C) uint8, or what else the samples are.

        Raises:
            UnreadableSampleError: it cannot be decoded.
        """

    def content(self) -> str:
        """What tells whether the samples changed, as far as that is cheap to say."""


def content_of_files(paths: Sequence[Path | None]) -> str:
    """A hash of the sizes of files, and of some whole, as uncompressed images have one size; None is no file."""
    there = [path if path is not None and path.is_file() else None for path in paths]
    found = hashlib.sha256(" ".join(str(-1 if path is None else path.stat().st_size) for path in there).encode())
    for path in there[:: -(-len(there) // READ_WHOLE) or 1]:
        found.update(b"" if path is None else path.read_bytes())
    return found.hexdigest()


def class_names_of(source: SampleSource) -> Sequence[str] | None:
    """Names of the labels 0, 1, ... of a source; None where they have no names."""
    names: Sequence[str] | None = getattr(source, "class_names", None)
    return names


def input_columns_of(source: SampleSource) -> Sequence[str] | None:
    """Names of the columns of a sample: of its numbers in their order, or the one of its text; None for others."""
    names: Sequence[str] | None = getattr(source, "input_columns", None)
    return names


@dataclass(frozen=True)
class ArraySource:
    """Samples in memory.

    Attributes:
        values: (N, H, W, C) uint8, or numbers of another type or shape (N, ...), or several such arrays by name, which
            are keyword arguments of the model.
        ids: N names.
        labels: (N,) or None.
        class_names: of the labels, or None.
    """

    values: Values | Mapping[str, Values]
    ids: Sequence[str]
    labels: NDArray[np.int64] | None
    class_names: Sequence[str] | None = None

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        if isinstance(self.values, Mapping):
            return {name: array[index] for name, array in self.values.items()}
        found: Values = self.values[index]
        return found

    def content(self) -> str:
        """See `SampleSource`: a hash of all values."""
        if not isinstance(self.values, Mapping):
            return hashlib.sha256(np.ascontiguousarray(self.values).data).hexdigest()
        digest = hashlib.sha256()
        for name, array in self.values.items():
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def as_texts(names: Sequence[str], *, where: str) -> list[str]:
    """Names of files as text that tables and pages can hold: bytes that are no UTF-8 stand as escapes.

    Args:
        names: as Python has them.
        where: names the place in messages.

    Raises:
        DataError: two names become one.
    """
    texts = [storable(name) for name in names]
    twice = next((text for text, count in Counter(texts).items() if count > 1), None) if texts != names else None
    if twice is not None:
        raise DataError(f"{where}: two names are {twice} once bytes that are no UTF-8 are escaped; rename one of them")
    return texts


def is_image(raw: Raw) -> TypeGuard[Pixels]:
    """Whether a sample is an image, (H, W, 1 or 3) uint8."""
    return isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and raw.ndim == 3 and raw.shape[2] in (1, 3)


def is_pixels(given: object) -> TypeGuard[NDArray[np.uint8]]:
    """Whether an array is the pixels of one image as people have them: (H, W) or (H, W, C) uint8."""
    return isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim in (2, 3)


def channels_last(array: Values, *, torch_first: bool = False) -> Values:
    """Bytes (N, H, W), (N, H, W, C) or (N, C, H, W), as torch has images, as (N, H, W, C); other arrays as they are.

    Args:
        array: has 1 or 3 channels.
        torch_first: what could be both is (N, C, H, W).
    """
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return array
    if array.ndim == 3:
        return array[..., None]
    first, last = (array.shape[place] in (1, 3) for place in (1, 3))
    is_torch = first or not last if torch_first else first and not last
    return array.transpose(0, 2, 3, 1) if is_torch else array


def describe_raw(raw: Raw) -> str:
    """Description of a sample, for messages."""
    if isinstance(raw, str):
        return "text"
    if isinstance(raw, Mapping):
        return ", ".join(f"{name} {describe_raw(values)}" for name, values in raw.items())
    return f"{raw.dtype} of shape {raw.shape}"


def wanted_image(raw: Raw, *, where: str) -> Pixels:
    """The sample, which is an image.

    Raises:
        DataError: it is something else.
    """
    if is_image(raw):
        return raw
    raise DataError(f"{where} is for images, 8 bits (H, W, 1 or 3); the samples are {describe_raw(raw)}")


_LOW = (
    "its values of 16 bits go {most}, so that the upper 8 bits, which are read, would be a black image; save it with 8 "
    "bits, or with values up to 65535"
)


def as_pixels(image: Image.Image) -> Pixels:
    """A PIL image as (H, W, 1) if it is grey, (H, W, 3) otherwise, turned upright as its EXIF orientation says.

    Palettes, CMYK and transparency become RGB; what is transparent shows its own colour. Of 16 bits per channel the
    upper 8 are kept. Of an animation it is the frame that the image is at, the first one when it is opened.

    Args:
        image: of 8 or 16 bits per channel.

    Raises:
        ValueError: other depths, which have no known scale, or values of 16 bits that only fill the lower 12, as those
            of many cameras and scanners do: the image would be black, or nearly.
    """
    cut = any(";16" in str(part[3]) for part in getattr(image, "tile", ()))  # Pillow reads the upper 8 bits of colours
    turned = image.getexif().get(_ORIENTATION, 1) != 1
    upright = ImageOps.exif_transpose(image) if turned else image
    wide = image.mode in SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in SIXTEEN_BIT_FORMATS)
    if wide:
        values = np.asarray(upright).astype(np.int64)
        if 0 < values.max() < 4096:
            raise ValueError(_LOW.format(most=f"up to {values.max()} alone"))
        return (values >> 8).astype(np.uint8)[..., None]
    if image.mode not in EIGHT_BIT_MODES:
        raise ValueError(f"wanted 8 or 16 bits per channel, got Pillow mode {image.mode}")
    grey = image.mode in ("1", "L")
    array = np.asarray(upright.convert("L" if grey else "RGB"))
    if cut and 0 < array.max() < 16:
        raise ValueError(_LOW.format(most="up to less than 4096"))
    return array[..., None] if grey else array


def decoded(content: Path | bytes, *, name: str) -> Pixels:
    """The image in a file or in bytes.

    Raises:
        UnreadableSampleError: there is none, or it is damaged.
    """
    try:
        if isinstance(content, Path) and content.exists() and not content.is_file():
            raise UnreadableSampleError(f"{name} is no file")  # opening a pipe would wait for who writes to it
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return as_pixels(image)
    except DECODING_ERRORS as error:
        what = OF_LFS if _is_pointer(content) else error
        raise UnreadableSampleError(f"{name} cannot be decoded: {what}") from error


def _is_pointer(content: Path | bytes) -> bool:
    """Whether a file, or what was read of one, stands for another in the storage of Git LFS."""
    if isinstance(content, bytes):
        return content.startswith(LFS_POINTER)
    with suppress(OSError), content.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) == LFS_POINTER
    return False


def as_labels(
    found: Sequence[Any], *, where: str, names: Sequence[str] | None
) -> tuple[IntArray, tuple[str, ...] | None]:
    """Whole numbers as they are; text, and truth values by their names, as classes in alphabetical order.

    Args:
        found: a label for each sample; None, NaN or empty text for none.
        where: names the labels in messages.
        names: of the classes, where the data say them; text is looked up among them.

    Returns:
        (N,) classes, -1 for none; and the names of the classes 0, 1, ..., None where the labels are plain numbers.

    Raises:
        DataError: labels of other kinds, of two kinds, or text that is none of the names.
    """
    plain = [_plain(label) for label in found]
    texts = sorted({label for label in plain if isinstance(label, str)})
    others = [label for label in plain if label is not None and not isinstance(label, str | int)]
    if others or (texts and any(isinstance(label, int) for label in plain)):
        shown = others[0] if others else texts[0]
        raise DataError(
            f"{where}: wanted one class for each sample, all whole numbers or all names; got {shown!r} "
            f"({type(shown).__name__}) among them"
        )
    if not texts:
        largest = max((label for label in plain if isinstance(label, int)), default=0, key=abs)
        if abs(largest) > np.iinfo(np.int64).max:
            raise DataError(f"{where}: label {largest} is too large for a class; labels are counted from 0")
        numbers = np.array([UNLABELLED if label is None else label for label in plain], dtype=np.int64)
        return numbers, None if names is None else tuple(names)
    known = list(names or texts)
    unknown = [label for label in texts if label not in known]
    if unknown:
        raise DataError(f"{where}: label {unknown[0]!r} is none of the classes {', '.join(known)}")
    places = {name: place for place, name in enumerate(known)}
    numbers = np.array([UNLABELLED if label is None else places[str(label)] for label in plain], dtype=np.int64)
    return numbers, tuple(known)


def _plain(label: Any) -> Any:
    """A label as int or str; None for none; anything else as it is."""
    value = label.item() if hasattr(label, "item") and np.asarray(label).size == 1 else label
    if value is None or value == "" or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, bool) else value


@dataclass(frozen=True, kw_only=True)
class Request:
    """Arguments of a source, and what else it may need to open.

    Attributes:
        source: as it is written, `<kind>:<name>`.
        name: what follows the kind.
        arguments: settings beside it.
        base: the in-distribution samples that a source made of others is made of; None for other kinds.
        seed: of random choices.
        columns: names of the numbers that the model takes, in its order, which a table is to give; None where they are
            not known.
    """

    source: str
    name: str
    arguments: Mapping[str, Any]
    base: SampleSource | None = None
    seed: int = 0
    columns: Sequence[str] | None


def file_of(request: Request) -> Path:
    """The file that is named.

    Raises:
        DataError: there is none.
    """
    path = Path(request.name)
    if path.is_file():
        return path
    other = "is a pipe or a device, wanted a file" if path.exists() else "does not exist"
    raise DataError(f"data file {path} {'is a folder, wanted a file' if path.is_dir() else other}")


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of data source: what `data.*.source` may say before the colon.

    Attributes:
        open: from a request to the samples; raises `DataError` where they cannot be used.
        form: how it is written.
        summary: what it is, on one line.
        is_path: what follows the colon is a path, relative to the configuration file.
        arguments: names of the arguments it takes; None for any.
        made_of_others: it is made of in-distribution samples: those of the fit split among the OOD sets, those of the
            test split among the shifted ones.
        same_classes: its samples belong to classes of the model, so they are no OOD set.
        is_code: what follows the colon is code of the user's, `<file.py or module>:<function>`.
        endings: of the names of files that it reads, which `score` goes by.
        is_table: its samples may be rows of numbers whose columns have names, and it heeds `Request.columns`.
    """

    open: Callable[[Request], SampleSource]
    form: str
    summary: str
    is_path: bool = False
    arguments: tuple[str, ...] | None = ()
    made_of_others: bool = False
    same_classes: bool = False
    is_code: bool = False
    endings: tuple[str, ...] = ()
    is_table: bool = False
