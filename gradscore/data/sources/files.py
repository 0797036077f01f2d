"""Image files in folders, NumPy archives, and tar files as webdataset makes them."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...system import IntArray, closest
from .raw_samples import (
    IMAGE_SUFFIXES,
    ArraySource,
    Pixels,
    Raw,
    Request,
    UnreadableImageError,
    Values,
    as_labels,
    as_texts,
    channels_last,
    decoded,
    no_file,
)


@dataclass(frozen=True)
class FileSource:
    """Image files below a folder.

    Attributes:
        root: the folder.
        paths: of the files, relative to it, as the system has them.
        ids: the same as text, what is no UTF-8 as escapes.
        labels: (N,) or None.
        class_names: of the labels: the names of the sub-folders.
    """

    root: Path
    paths: Sequence[str]
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None = None

    def sample(self, index: int) -> Pixels:
        """See `ImageSource`."""
        path = self.root / self.paths[index]
        return decoded(path, name=str(path))

    def content(self) -> str:
        """See `ImageSource`: sizes of the files."""
        sizes = [str((self.root / name).stat().st_size) for name in self.paths]
        return hashlib.sha256(" ".join(sizes).encode()).hexdigest()


def folder_source(request: Request) -> FileSource:
    """Image files in class sub-folders (classes in alphabetical order), or flat and without labels.

    A class is a folder right below the root; images of it lie in that folder at any depth.
    """
    root = Path(request.name)
    if not root.is_dir():
        raise DataError(f"data folder {root} {'is a file, wanted a folder' if root.exists() else 'does not exist'}")
    where = f"data folder {root}"
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    flat = _images_below(root, "*", root)
    if classes and flat:
        raise DataError(f"{where} holds both images ({flat[0]}, ...) and sub-folders ({classes[0]}, ...)")
    if not classes:
        return FileSource(root, _some(flat, root), as_texts(flat, where=where), None)
    found = [(path, label) for label, name in enumerate(classes) for path in _images_below(root / name, "**/*", root)]
    labels = np.array([label for _, label in found], dtype=np.int64)
    paths = _some([path for path, _ in found], root)
    return FileSource(root, paths, as_texts(paths, where=where), labels, as_texts(classes, where=where))


def _some(paths: list[str], root: Path) -> list[str]:
    if not paths:
        raise DataError(f"data folder {root} has no image in it: wanted files that end in {', '.join(IMAGE_SUFFIXES)}")
    return paths


def _images_below(folder: Path, pattern: str, root: Path) -> list[str]:
    files = [path for path in folder.glob(pattern) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return sorted(path.relative_to(root).as_posix() for path in files)


IMAGES = "images"

LABEL_ARRAYS = ("labels", "label", "y", "targets", "target")

CLASS_NAMES = "class_names"

READING_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, RecursionError, NotImplementedError),
    *(RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError, OverflowError),
)
"""What reading a damaged archive raises."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DEFLATE_LIMIT = 1032
"""Deflate packs no bytes into less than one of so many.

Source: zlib, "zlib Technical Details", maximum compression factor.
"""

_OVERHEAD = 64


def npz_source(request: Request) -> ArraySource:
    """The array `images`, or all arrays but those of labels; several of these are keyword arguments of the model.

    Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W); anything else goes to the model as it is. `labels` are
    numbers, or names. The arguments `inputs` (a name or several) and `labels` name other arrays.
    """
    path = Path(request.name)
    if not path.is_file():
        raise DataError(f"data file {path} {no_file(path)}")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            for name in names:
                _check_array(archive, name, path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            arrays: dict[str, Values] = {name: loaded[name] for name in names}
    except READING_ERRORS as error:
        raise DataError(f"data file {path} cannot be read: {error}; is it a complete .npz file?") from error
    if not arrays:
        raise DataError(f"data file {path} has no array in it")
    label = request.arguments.get("labels", next((name for name in LABEL_ARRAYS if name in arrays), None))
    chosen: Any = request.arguments.get("inputs")
    if chosen is None:
        others = [name for name in arrays if name not in (label, CLASS_NAMES)]
        chosen = [IMAGES] if IMAGES in arrays else others
    chosen = [chosen] if isinstance(chosen, str) else list(chosen)
    if not chosen:
        raise DataError(f"data file {path} has no array of samples, only {', '.join(arrays)}")
    for argument, wanted in (("inputs", chosen), ("labels", [] if label is None else [label])):
        for name in wanted:
            if name not in arrays:
                raise DataError(
                    f"data file {path}: no array {name!r} (arguments.{argument}); {closest(str(name), arrays)}"
                )
    count = len(arrays[chosen[0]]) if arrays[chosen[0]].ndim else 0
    for name in chosen:
        if arrays[name].ndim == 0 or len(arrays[name]) != count or arrays[name].dtype.kind not in "fiub":
            raise DataError(
                f"data file {path}: wanted numbers for {count} samples in array '{name}', got {arrays[name].dtype} "
                f"{arrays[name].shape}; name the arrays that the model takes in arguments: {{inputs: ...}}"
            )
    labels = class_names = None
    if label is not None:
        found = arrays[label]
        if found.shape != (count,) or found.dtype.kind not in "iubUS":
            raise DataError(
                f"data file {path}: {label} must be integers or names of shape ({count},), got {found.dtype} "
                f"{found.shape}"
            )
        known = [str(name) for name in arrays[CLASS_NAMES]] if CLASS_NAMES in arrays else None
        labels, class_names = as_labels(found.tolist(), where=f"data file {path}: {label}", names=known)
    samples = channels_last(arrays[chosen[0]]) if len(chosen) == 1 else {name: arrays[name] for name in chosen}
    return ArraySource(samples, [str(place) for place in range(count)], labels, class_names)


def _check_array(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Refuses an array of Python objects, or one that claims to be larger than what is there can unpack to."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in _METHODS:
        raise ValueError(f"array '{name}' is compressed in a way that NumPy does not use")
    with archive.open(info) as stream:
        is_old = np.lib.format.read_magic(stream) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        size = math.prod(shape) * dtype.itemsize + stream.tell()
    if dtype.hasobject:
        raise DataError(
            f"data file {path}: array '{name}' holds Python objects, which are pickled and could run code, so it is "
            "not read; save numbers or text as such, np.asarray(values, dtype=np.float32) or dtype=str, say"
        )
    packed = min(info.compress_size, path.stat().st_size)
    possible = min(shape, default=1) >= 0 and 0 not in shape[1:]
    if not possible or size != info.file_size or size > _DEFLATE_LIMIT * packed + _OVERHEAD:
        raise ValueError(f"array '{name}' of shape {shape} does not fit what the archive holds of it")


LABEL_ENDINGS = ("cls", "label", "label.txt", "class")

TEXTS = ("txt", "text")

_BRACES = re.compile(r"\{([^{}]*)\}")

_WHOLE = re.compile("-?[0-9]+")

_RANGE = re.compile(r"(\d+)\.\.(\d+)")

_MOST_SHARDS = 10**6


@dataclass(frozen=True)
class Member:
    """A file in a tar file: where its bytes are."""

    shard: Path
    start: int
    size: int

    def read(self) -> bytes:
        """Its bytes."""
        with self.shard.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.size)


@dataclass(frozen=True)
class TarSource:
    """The samples of tar files, read by position, as the readers of webdataset cannot, which go from end to end.

    Members of one name up to its first dot belong together.

    Attributes:
        inputs: of each sample, by the names that follow the dot: one image or text, or arrays.
        ids: N names.
        labels: (N,) or None.
        class_names: of the labels, or None.
        where: names the files in messages.
    """

    inputs: Sequence[Mapping[str, Member]]
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None
    where: str

    def sample(self, index: int) -> Raw:
        """See `ImageSource`."""
        found = self.inputs[index]
        name = f"sample {self.ids[index]} of {self.where}"
        if not found:
            raise UnreadableImageError(f"{name} has no image, text or array")
        if len(found) == 1:
            ending, member = next(iter(found.items()))
            return _value(ending, member, name=name)
        return {ending.removesuffix(".npy"): _member_array(member, name=name) for ending, member in found.items()}

    def content(self) -> str:
        """See `ImageSource`: names and sizes of the members."""
        lines = [
            f"{name} {ending} {member.size}"
            for name, members in zip(self.ids, self.inputs, strict=True)
            for ending, member in members.items()
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def wds_source(request: Request) -> TarSource:
    """Tar files: one, a folder of them, or a pattern such as `shards-{000..012}.tar`.

    A sample has an image (`.jpg`, `.png`, ...), text (`.txt`) or arrays (`.npy`), and its class in `.cls`, a number or
    a name; the arguments `inputs` and `labels` name other endings.
    """
    shards = _shards(request.name)
    members: dict[str, dict[str, Member]] = {}
    for shard in shards:
        for name, member in _members(shard):
            key, _, ending = name.rpartition("/")[2].partition(".")
            entry = members.setdefault(f"{name.rpartition('/')[0]}/{key}".removeprefix("/"), {})
            if ending in entry:
                raise DataError(
                    f"data file {shard}: sample {key} has two members .{ending}; give each a name of its own"
                )
            entry[ending] = member
    if not members:
        raise DataError(f"{request.source}: no sample in {len(shards)} tar files")
    endings = dict.fromkeys(ending for entry in members.values() for ending in entry)
    label = request.arguments.get("labels", next((ending for ending in LABEL_ENDINGS if ending in endings), None))
    chosen = _chosen_endings(request, list(endings), label)
    labels = class_names = None
    if label is not None:
        texts = [_label(entry.get(label)) for entry in members.values()]
        labels, class_names = as_labels(texts, where=f"{request.source}: .{label}")
    return TarSource(
        inputs=[{ending: entry[ending] for ending in chosen if ending in entry} for entry in members.values()],
        ids=as_texts(list(members), where=request.source),
        labels=labels,
        class_names=class_names,
        where=request.source,
    )


def expanded(pattern: str) -> list[str]:
    """The names that braces stand for.

    Example:
        >>> expanded("a-{08..10}.tar"), expanded("{x,y}.tar")
        (['a-08.tar', 'a-09.tar', 'a-10.tar'], ['x.tar', 'y.tar'])
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    inner = found[1]
    limits = _RANGE.fullmatch(inner)
    if limits is None:
        parts = inner.split(",")
    else:
        low, high = int(limits[1]), int(limits[2])
        if high - low >= _MOST_SHARDS:
            raise DataError(f"wds:{pattern}: {{{inner}}} stands for more than {_MOST_SHARDS} files")
        parts = [str(number).zfill(len(limits[1])) for number in range(low, high + 1)]
    return [name for part in parts for name in expanded(pattern[: found.start()] + part + pattern[found.end() :])]


def _shards(name: str) -> list[Path]:
    root = Path(name)
    if root.is_dir():
        found = sorted(root.glob("*.tar"))
        if not found:
            raise DataError(f"data folder {root} has no .tar file in it")
        return found
    found = [Path(each) for each in expanded(name)]
    missing = [path for path in found if not path.is_file()]
    if missing or not found:
        lost = missing[0] if missing else Path(name)
        raise DataError(f"data file {lost} {no_file(lost)} (wds:{name})")
    return found


def _members(shard: Path) -> Iterator[tuple[str, Member]]:
    try:
        with tarfile.open(shard, "r:") as archive:
            for info in archive:
                if info.isfile() and not Path(info.name).name.startswith("."):
                    yield info.name.removeprefix("./"), Member(shard, info.offset_data, info.size)
            if shard.stat().st_size < archive.offset:
                raise tarfile.ReadError("it ends too early")
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataError(
            f"data file {shard} cannot be read: {error}; wanted a complete .tar file that is not compressed"
        ) from None


def _chosen_endings(request: Request, endings: list[str], label: str | None) -> list[str]:
    wanted = request.arguments.get("inputs")
    if wanted is not None:
        chosen = [wanted] if isinstance(wanted, str) else list(wanted)
        unknown = [ending for ending in chosen if ending not in endings]
        if unknown or not chosen:
            raise DataError(
                f"{request.source}: no sample has a member .{(unknown or [''])[0]}, only {_dotted(endings)}"
            )
        return chosen
    images = [ending for ending in endings if f".{ending.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES]
    arrays = [ending for ending in endings if ending.endswith("npy") and ending != label]
    texts = [ending for ending in endings if ending in TEXTS and ending != label]
    found = images or arrays or texts
    if not found:
        raise DataError(
            f"{request.source}: no image, array or text among {_dotted(endings)}; name what the samples are in "
            "arguments: {inputs: ...}"
        )
    if len(images) > 1 and any("." in ending for ending in images):  # and not .jpg in one sample and .png in another
        raise DataError(
            f"{request.source}: which of {_dotted(images)} is the image? Name it in arguments: {{inputs: ...}}"
        )
    return found


def _label(member: Member | None) -> str | int | None:
    if member is None:
        return None
    text = member.read().decode("utf-8", "backslashreplace").strip()  # so that two names stay two
    return int(text) if _WHOLE.fullmatch(text) else text


def _value(ending: str, member: Member, *, name: str) -> Raw:
    last = ending.rpartition(".")[2].lower()
    if last == "npy":
        return _member_array(member, name=name)
    if f".{last}" in IMAGE_SUFFIXES:
        return decoded(member.read(), name=name)
    try:
        text = member.read().decode("utf-8")
        return np.asarray(json.loads(text)) if last == "json" else text
    except ValueError as error:
        raise UnreadableImageError(f"{name}: .{ending} cannot be read: {error}") from None


def _member_array(member: Member, *, name: str) -> Values:
    try:
        found: Values = np.load(io.BytesIO(member.read()), allow_pickle=False)
    except READING_ERRORS as error:
        raise UnreadableImageError(f"{name} cannot be read: {error}") from None
    return found


def _dotted(endings: Sequence[str]) -> str:
    return ", ".join(f".{ending}" for ending in endings)
