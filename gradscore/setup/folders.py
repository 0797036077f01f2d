"""What lies in a folder: checkpoints, code, and sets of images."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data import FILE_KINDS, IMAGE_SUFFIXES
from ..errors import ConfigError
from ..system import as_address, is_address

CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
"""How files of weights are called."""

TABLE_SUFFIXES = tuple(FILE_KINDS)
"""How files of samples are called that are no image each."""

LIST_SUFFIXES = (".txt", ".json", ".jsonl", ".ndjson", ".lst", ".gz", ".zip", ".xlsx", ".ods")
"""How other files are called that may list images."""

MOST_LISTS = 100
"""Of more files the largest are looked into: where every image has its own, none lists many."""

LARGEST = 1 << 27
"""Files of more bytes are not looked into."""

DEEPEST = 5
"""So many folders below those that are named are looked into."""

FACTORIES = ("build", "build_model", "make_model", "create_model", "get_model", "net", "model")
"""What functions that build a network are called, the likeliest first."""


@dataclass(frozen=True)
class ImageSet:
    """Images of one folder, or those that a table names; or the texts of a table.

    Attributes:
        path: the folder, or the table.
        classes: names of its class folders in order, or of the classes in the table; empty where the images lie in the
            folder itself.
        files: the images; none of texts.
        count: how many there are.
        arguments: how the table is read; None for a folder.
        empty: names of folders beside those of classes that hold no image, which count as classes all the same.
    """

    path: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    count: int
    arguments: Mapping[str, str] | None = None
    empty: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of source that reads them."""
        return "folder" if self.arguments is None else FILE_KINDS[self.path.suffix.lower()]


@dataclass(frozen=True)
class Factory:
    """A function of a Python file that may build the network.

    Attributes:
        path: the file.
        name: the function.
        takes_classes: whether it takes the number of classes as `num_classes`.
    """

    path: Path
    name: str
    takes_classes: bool


@dataclass(frozen=True)
class Found:
    """What lies in the places that were named."""

    checkpoints: tuple[Path, ...]
    sets: tuple[ImageSet, ...]
    factories: tuple[Factory, ...]
    tables: tuple[Path, ...] = ()
    lists: tuple[Path, ...] = ()


def look(places: Sequence[Path]) -> Found:
    """Looks into folders; a file counts as a checkpoint unless its ending says that it holds samples.

    Raises:
        ConfigError: a place does not exist, is an address, or is a run folder.
    """
    for place in places:
        if is_address(place):
            address = as_address(place)
            setting = address if place.suffix.lower() in CHECKPOINT_SUFFIXES else f"folder:{address}"
            raise ConfigError(f"{address}: init looks at local folders; write {setting} into the configuration")
        if not place.exists():
            raise ConfigError(f"{place}: no such file or folder; name folders of images, or files of weights")
        if (place / "manifest.json").is_file() and (place / "config.yaml").is_file():
            raise ConfigError(
                f"{place}: this is a run folder, made with the configuration {place / 'config.yaml'}; name folders of "
                f"images, or files of weights (gradscore runs show {place} says what it holds)"
            )
    folders = [place for place in places if place.is_dir()]
    files = [place for place in places if not place.is_dir()]
    below = [path for folder in folders for path in _files_below(folder)]
    tables = [path for path in (*files, *below) if path.suffix.lower() in TABLE_SUFFIXES]
    tables = _each_once(tables)
    named = [path for path in files if path not in tables]
    checkpoints = named or [path for path in below if path.suffix.lower() in CHECKPOINT_SUFFIXES]
    sets = [found for folder in folders for found in _sets_below(folder, DEEPEST)]
    once = set(_each_once([found.path for found in sets]))
    sets = list({found.path: found for found in sets if found.path in once}.values())
    factories = [found for path in below if path.suffix == ".py" for found in _factories(path)]
    return Found(tuple(checkpoints), tuple(sets), tuple(factories), tuple(tables), tuple(_lists(below)))


def _lists(files: Sequence[Path]) -> list[Path]:
    """Files that may list images, and are no tables."""
    named = [path for path in files if path.suffix.lower() in LIST_SUFFIXES]
    largest = set(sorted(named, key=lambda path: -path.stat().st_size)[:MOST_LISTS])
    return [path for path in named if path in largest]


def _each_once(paths: Sequence[Path]) -> list[Path]:
    """The paths without those that lead by other ways to where an earlier one leads."""
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _files_below(folder: Path) -> Iterator[Path]:
    """Files that are no images, in order; nothing hidden, no pipe, and nothing of run folders."""
    for base, folders, names in os.walk(folder):
        depth = len(Path(base).relative_to(folder).parts)
        is_run = "manifest.json" in names and "config.yaml" in names
        hidden = [name for name in folders if name.startswith((".", "__"))]
        folders[:] = sorted(set(folders) - set(hidden)) if depth < DEEPEST and not is_run else []
        files = (Path(base, name) for name in sorted(names) if Path(name).suffix.lower() not in IMAGE_SUFFIXES)
        yield from (path for path in files if _allowed(path.is_file))


def _sets_below(folder: Path, depth: int) -> Iterator[ImageSet]:
    images = _images(folder)
    if images:
        yield ImageSet(folder, (), tuple(images), len(images))
    folders = [path for path in _inside(folder) if _is_folder(path)]
    of_classes = {path: found for path in folders if (found := _images(path))}
    deeper = [path for path in folders if path not in of_classes and _holds_images(path, depth - 1)]
    if len(of_classes) > 1 and not deeper and not images and not any(map(role_of, of_classes)):
        files = [file for found in of_classes.values() for file in found]
        empty = tuple(path.name for path in folders if path not in of_classes)
        yield ImageSet(folder, tuple(path.name for path in of_classes), tuple(files), len(files), empty=empty)
    elif depth:
        for path in folders:
            yield from _sets_below(path, depth - 1)


def _images(folder: Path) -> list[Path]:
    return [path for path in _inside(folder) if path.suffix.lower() in IMAGE_SUFFIXES and _allowed(path.is_file)]


def _holds_images(folder: Path, depth: int) -> bool:
    if _images(folder):
        return True
    return depth > 0 and any(_holds_images(path, depth - 1) for path in _inside(folder) if _is_folder(path))


def _is_folder(path: Path) -> bool:
    """Whether it is a folder that is looked into: none that is hidden, or that an archive brought."""
    return not path.name.startswith(".") and path.name != "__MACOSX" and _allowed(path.is_dir)


def _allowed(check: Callable[[], bool]) -> bool:
    """What a look at a file says; no where one may not look."""
    try:
        return check()
    except PermissionError:
        return False


def _inside(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing where one may not look."""
    try:
        return sorted(folder.iterdir())
    except PermissionError:
        return []


ROLES = {
    "bank": ("train", "training", "trainval", "bank"),
    "fit": ("fit", "val", "valid", "validation", "dev", "holdout", "heldout", "held_out"),
    "test": ("test", "testing", "eval"),
    "calibration": ("calibration", "calib"),
    "ood": ("ood", "out", "outliers", "unknown", "strange"),
}
"""What folders of a part are called."""


def role_of(path: Path) -> str | None:
    """What the name of a folder says its images are for; None if it says nothing."""
    return _role(path.name.lower())


def role_in_name(name: str) -> str | None:
    """What words in the name of a table or of a folder of images say these are for: `train_labels`.

    "Out" is no such word, since it is one of "held out" and "labels out", too. Of several parts it is that which the
    network is least likely to be new to.

    Not for class folders (`role_of`): a class may well be called `bullet_train`.
    """
    parted = re.sub("(?<=[a-z])(?=[A-Z])", " ", name)  # trainLabels
    parted = re.sub(r"h[eo]ld[^a-z]?out", "holdout", parted.lower())
    words = [word.removesuffix("set") for word in re.findall("[a-z]+", parted) if word != "out"]
    found = {role for word in words if (role := _role(word))}
    return _role(name.lower()) or (found.pop() if len(found) == 1 else "bank" if "bank" in found else None)


def role_of_table(path: Path) -> str | None:
    """What the name of a table says its images are for, or else that of the folder it was found in."""
    folder = re.sub("[^a-z]*(data|images|labels)$", "", path.parent.name.lower())
    return role_in_name(path.stem) or _role(folder)


def _role(name: str) -> str | None:
    return next((role for role, names in ROLES.items() if name in names), None)


def _factories(path: Path) -> Iterator[Factory]:
    """Functions that build something without arguments, or with the number of classes; the file is read, not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args]
        required = [each.arg for each in arguments[: len(arguments) - len(node.args.defaults)]]
        required += [
            each.arg for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if not default
        ]
        known = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        if set(required) <= {"num_classes"}:
            yield Factory(path, node.name, "num_classes" in known)
