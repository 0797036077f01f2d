"""Tar files of samples, as webdataset makes them; read without that package."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...system import IntArray
from .base import (
    IMAGE_SUFFIXES,
    Raw,
    Request,
    UnreadableImageError,
    Values,
    as_labels,
    as_texts,
    decoded,
    no_file,
)
from .npz import READING_ERRORS

LABELS = ("cls", "label", "label.txt", "class")
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
    """The samples of tar files: members of one name up to its first dot belong together.

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

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        found = self.inputs[index]
        name = f"sample {self.ids[index]} of {self.where}"
        if not found:
            raise UnreadableImageError(f"{name} has no image, text or array")
        if len(found) == 1:
            ending, member = next(iter(found.items()))
            return _value(ending, member, name=name)
        return {ending.removesuffix(".npy"): _array(member, name=name) for ending, member in found.items()}

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
    label = request.arguments.get("labels", next((ending for ending in LABELS if ending in endings), None))
    chosen = _chosen(request, list(endings), label)
    found = None
    if label is not None:
        texts = [_label(entry.get(label)) for entry in members.values()]
        found = as_labels(texts, where=f"{request.source}: .{label}")
    return TarSource(
        inputs=[{ending: entry[ending] for ending in chosen if ending in entry} for entry in members.values()],
        ids=as_texts(list(members), where=request.source),
        labels=None if found is None else found.numbers,
        class_names=None if found is None else found.names,
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


def _chosen(request: Request, endings: list[str], label: str | None) -> list[str]:
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
        return _array(member, name=name)
    if f".{last}" in IMAGE_SUFFIXES:
        return decoded(member.read(), name=name)
    try:
        text = member.read().decode("utf-8")
        return np.asarray(json.loads(text)) if last == "json" else text
    except ValueError as error:
        raise UnreadableImageError(f"{name}: .{ending} cannot be read: {error}") from None


def _array(member: Member, *, name: str) -> Values:
    try:
        found: Values = np.load(io.BytesIO(member.read()), allow_pickle=False)
    except READING_ERRORS as error:
        raise UnreadableImageError(f"{name} cannot be read: {error}") from None
    return found


def _dotted(endings: Sequence[str]) -> str:
    return ", ".join(f".{ending}" for ending in endings)
