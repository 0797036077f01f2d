"""What lies in folders: checkpoints, classifiers that transformers saved, code that builds a network, and samples."""

from __future__ import annotations

import ast
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..data import (
    DECODING_ERRORS,
    ID_NAMES,
    IMAGE_SUFFIXES,
    ImageSource,
    class_names_of,
    describe_raw,
    file_kinds,
    input_columns_of,
    is_image,
    open_source,
    text_columns,
)
from ..errors import ConfigError, DataError, GradscoreError
from ..models import OTHER_MODELS, ModelConfig, class_names
from ..system import as_address, is_address, some

CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
"""How files of weights are called."""

PROGRAM_SUFFIX = ".pt2"
"""How programs of `torch.export` are called."""

DEEPEST = 5
"""So many folders below those that are named are looked into."""

OPENED = 50
"""So many images are opened to see what they have in common."""

FACTORIES = ("build", "build_model", "make_model", "create_model", "get_model", "net", "model")
"""What functions that build a network are called, the likeliest first."""

CLASSES = "num_classes"
"""What the argument of these is called that is the number of classes."""

ROLES = {
    "bank": ("train", "training", "trainval", "trainset", "bank"),
    "fit": ("fit", "val", "valid", "validation", "dev", "holdout", "heldout", "held_out"),
    "test": ("test", "testing", "testset", "eval"),
    "calibration": ("calibration", "calib"),
    "ood": ("ood", "out", "outliers", "unknown", "strange"),
}
"""What folders and tables of a part are called."""

TASKS = {"ForSequenceClassification": "texts", "ForImageClassification": "images"}
"""What the names of classifiers have in them, and what these take."""

LARGEST = 1 << 27
"""Tables of more bytes are not looked into."""

TITLE = b"<title>gradscore: "
"""Pages of gradscore have it."""

FEW = 4
"""A column of text has classes where it has so many times as many rows as values."""

FORM = "say which columns hold what under data: {source: csv:..., arguments: {inputs: COLUMN, labels: COLUMN}}"
"""What to do where the names of columns do not say it."""


@dataclass(frozen=True)
class SampleSet:
    """The images of a folder, or the samples of a table.

    Attributes:
        path: the folder or the table.
        classes: names of its classes; empty where samples have none.
        files: the images of a folder.
        count: how many samples there are.
        empty: names of folders beside those of classes that hold no image, which count as classes all the same.
        columns: of a table, by what they are taken to hold, `labels` or `ids`, though their names do not say so.
    """

    path: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    count: int
    empty: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_table(self) -> bool:
        """Whether it is a file of samples."""
        return not self.files

    @property
    def source(self) -> str:
        """The kind of source that reads it."""
        return file_kinds()[self.path.suffix.lower()] if self.is_table else "folder"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.path.stem if self.is_table else self.path.name

    @property
    def role(self) -> str | None:
        """What its name says that its samples are for; None if it says nothing."""
        return role_of(self.name)

    @property
    def is_called_so(self) -> bool:
        """Whether its whole name says what its samples are for, not a word of it."""
        return any(self.name.lower() in words for words in ROLES.values())

    @property
    def by_class(self) -> list[SampleSet]:
        """The images in folders of classes as a set for each, without a class."""
        found = {name: tuple(file for file in self.files if file.parent.name == name) for name in self.classes}
        return [SampleSet(self.path / name, (), files, len(files)) for name, files in found.items()]


@dataclass(frozen=True)
class Factory:
    """A function or class of a Python file that may build the network.

    Attributes:
        path: the file.
        name: the function or class.
        takes_classes: whether it takes the number of classes as `num_classes`.
        required: names of other arguments that a class has to be given.
        parts: what a class calls its layers; empty for a function.
    """

    path: Path
    name: str
    takes_classes: bool
    required: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """What lies in the places that were named."""

    checkpoints: tuple[Path, ...]
    images: tuple[SampleSet, ...]
    factories: tuple[Factory, ...]
    tables: tuple[Path, ...]
    programs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Inside:
    """The names of folders, and of files that are images or others, in one folder."""

    folders: tuple[Path, ...]
    images: tuple[Path, ...]
    others: tuple[Path, ...]


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
        if _is_run(place):
            raise ConfigError(
                f"{place}: this is a run folder, made with the configuration {place / 'config.yaml'}; name folders of "
                "images, or files of weights"
            )
    trees = {place: _tree(place) for place in places if place.is_dir()}
    files = [place for place in places if not place.is_dir()]
    below = [path for tree in trees.values() for inside in tree.values() for path in inside.others]
    endings = file_kinds()
    tables = [path for path in (*files, *below) if path.suffix.lower() in endings]
    programs = [path for path in (*files, *below) if path.suffix.lower() == PROGRAM_SUFFIX]
    checkpoints = [path for path in files if path not in (*tables, *programs)]
    checkpoints = checkpoints or [path for path in below if path.suffix.lower() in CHECKPOINT_SUFFIXES]
    images = {
        os.path.realpath(each.path): each
        for place, tree in trees.items()
        for each in _sets(place, tree, _above_images(tree))
    }
    return Found(
        checkpoints=tuple(checkpoints),
        images=tuple(images.values()),
        factories=tuple(found for path in below if path.suffix == ".py" for found in _factories(path)),
        tables=tuple({os.path.realpath(path): path for path in tables}.values()),
        programs=tuple(programs),
    )


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "config.yaml").is_file()


def _has_page(folder: Path) -> bool:
    """Whether there is a page of gradscore, whose figures are no samples."""
    return any(TITLE in page.read_bytes()[:1024] for page in folder.glob("*.html") if page.is_file())


def _tree(root: Path) -> dict[Path, _Inside]:
    """What lies in a folder and in those below; nothing hidden, and nothing of what gradscore wrote."""
    found: dict[Path, _Inside] = {}
    for base, folders, names in os.walk(root, followlinks=True):
        place = Path(base)
        is_ours = _is_run(place) or (place != root and _has_page(place))
        goes_on = len(place.relative_to(root).parts) < DEEPEST and not is_ours
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__"))) if goes_on else []
        names = [] if is_ours else sorted(name for name in names if not name.startswith("."))
        files = [path for name in names if (path := place / name).is_file()]  # no pipe, no broken link
        images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
        others = [path for path in files if path.suffix.lower() not in IMAGE_SUFFIXES]
        found[place] = _Inside(tuple(place / name for name in folders), tuple(images), tuple(others))
    return found


def _above_images(tree: Mapping[Path, _Inside]) -> set[Path]:
    return {parent for path, inside in tree.items() if inside.images for parent in path.parents}


def _sets(folder: Path, tree: Mapping[Path, _Inside], above: set[Path]) -> Iterator[SampleSet]:
    """Sets of images: those in one folder, or in folders of classes, which lie beside nothing else.

    Args:
        folder: what is looked into.
        tree: what lies in it and in those below.
        above: the folders below which there are images.
    """
    inside = tree[folder]
    if inside.images:
        yield SampleSet(folder, (), inside.images, len(inside.images))
    classes = [path for path in inside.folders if tree[path].images]
    deeper = any(path in above and not tree[path].images for path in inside.folders)
    # Words in longer names do not count here, as in a class `bullet_train`.
    are_parts = any(path.name.lower() in names for path in classes for names in ROLES.values())
    if len(classes) > 1 and not (inside.images or deeper or are_parts):
        files = tuple(file for path in classes for file in tree[path].images)
        empty = tuple(path.name for path in inside.folders if not tree[path].images)
        yield SampleSet(folder, tuple(path.name for path in classes), files, len(files), empty)
    else:
        for path in inside.folders:
            yield from _sets(path, tree, above)


def role_of(name: str) -> str | None:
    """What the name of a table or of a folder of images says these are for.

    The whole name counts, or else the only word in it that is one of `ROLES`, but for "out" ("held out"). Of several it
    is that which the network is least likely to be new to.

    Example:
        >>> role_of("val"), role_of("train_labels"), role_of("photos")
        ('fit', 'bank', None)
    """
    roles = {word: role for role, words in ROLES.items() for word in words}
    if name.lower() in roles:
        return roles[name.lower()]
    words = re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower())
    found = {roles[word] for word in words if word in roles and word != "out"}
    return "bank" if "bank" in found else found.pop() if len(found) == 1 else None


def _factories(path: Path) -> Iterator[Factory]:
    """Functions and modules that may be the network, or build it; the file is read, not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            takes_classes, required = _arguments(node.args, first=0)
            if not required:
                yield Factory(path, node.name, takes_classes)
        elif isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).endswith(("Module", "Sequential")) for base in node.bases
        ):
            made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            parts = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            }
            parts |= {
                str(place)  # what nn.Sequential calls its layers
                for each in ast.walk(node)
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "super().__init__"
                for place in range(len(each.args))
            }
            arguments = _arguments(made[0].args, first=1) if made else (False, ())
            yield Factory(path, node.name, *arguments, frozenset(parts))


def _arguments(of: ast.arguments, *, first: int) -> tuple[bool, tuple[str, ...]]:
    """Whether the number of classes is among the arguments from `first` on, and which others have to be given."""
    plain = [each.arg for each in (*of.posonlyargs, *of.args)]
    named = zip(of.kwonlyargs, of.kw_defaults, strict=True)
    required = [
        *plain[first : len(plain) - len(of.defaults)],
        *(each.arg for each, default in named if default is None),
    ]
    takes_classes = CLASSES in (*plain, *(each.arg for each in of.kwonlyargs))
    return takes_classes, tuple(each for each in required if each != CLASSES)


def image_sizes(files: Sequence[Path]) -> list[tuple[int, int]]:
    """(height, width) of images spread evenly over `files`, the smallest first; those that do not open are left out."""
    sizes: list[tuple[int, int]] = []
    for path in files[:: max(1, len(files) // OPENED)][:OPENED]:
        with suppress(*DECODING_ERRORS), Image.open(path) as image:
            sizes.append((image.height, image.width))
    return sorted(sizes, key=lambda size: size[0] * size[1])


@dataclass(frozen=True)
class SavedClassifier:
    """A folder that `save_pretrained` wrote.

    Attributes:
        folder: where it is.
        takes: what samples it takes.
        count: of its classes.
        names: of its classes in their order; None where it does not name them.
    """

    folder: Path
    takes: str
    count: int
    names: Sequence[str] | None


def saved_classifier(checkpoints: Sequence[Path]) -> SavedClassifier | None:
    """The classifier of transformers that a checkpoint is of, the one in the outermost folder; None where none is.

    Raises:
        ConfigError: it is no classifier of text or images.
    """
    for folder in sorted({path.parent for path in checkpoints}, key=lambda folder: len(folder.parts)):
        settings: Any = {}
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(settings, dict) or "model_type" not in settings:  # which other packages do not write
            continue
        kinds = [str(each) for each in settings.get("architectures") or ()]
        task = next((task for task in TASKS if any(task in kind for kind in kinds)), None)
        if task is None:
            raise ConfigError(
                f"{folder}: this is {some(kinds) if kinds else 'a model'} of transformers, and init knows those with "
                f"{' or '.join(TASKS)} in their names; {OTHER_MODELS}"
            )
        named = settings.get("id2label")
        count = len(named) if isinstance(named, dict) else int(settings.get("num_labels", 2))
        config = ModelConfig.model_validate({"source": f"transformers:{folder}", "num_classes": count})
        return SavedClassifier(folder, TASKS[task], count, class_names(config))
    return None


@dataclass(frozen=True)
class Tables:
    """What tables hold.

    Attributes:
        sets: those of images, texts and rows of numbers, by this word.
        unused: why others are not used, in a sentence each, by path.
        widths: how many numbers a row has, by path.
    """

    sets: dict[str, list[SampleSet]] = field(default_factory=dict)
    unused: dict[Path, str] = field(default_factory=dict)
    widths: dict[Path, int] = field(default_factory=dict)


def look_at_tables(paths: Sequence[Path], *, names: Sequence[str] | None = None, texts: bool = True) -> Tables:
    """Reads tables as `extract` reads them where a configuration gives no arguments, or says which column has labels.

    Args:
        paths: of the tables.
        names: of the classes of the network, if they are known.
        texts: whether the network may take texts.
    """
    found = Tables()
    for path in paths:
        kind = file_kinds()[path.suffix.lower()]
        try:
            if kind not in ("csv", "parquet") or path.stat().st_size > LARGEST:
                raise DataError(
                    "init reads .csv, .tsv and .parquet of less than 128 MiB; gradscore docs data has other kinds"
                )
            source, columns = _opened(kind, path, names, texts=texts)
            first = source.sample(0)
            if isinstance(first, np.ndarray) and first.ndim == 1:
                noun, found.widths[path] = "rows", len(first)
            elif isinstance(first, str) or is_image(first):
                noun = "texts" if isinstance(first, str) else "images"
            else:
                raise DataError(f"wanted images, texts or rows of numbers, got {describe_raw(first)}; {FORM}")
            samples = replace(_set_of(path, source), columns=columns)
            found.sets.setdefault(noun, []).append(samples)
        except (GradscoreError, OSError) as error:
            found.unused[path] = f"{path}: not used: {str(error).splitlines()[0]}"
    return found


def _opened(kind: str, path: Path, names: Sequence[str] | None, *, texts: bool) -> tuple[ImageSource, dict[str, str]]:
    """The samples of a table, and the columns of their classes and names where these are not called so."""
    if not texts:
        with suppress(DataError):
            source, columns = _labelled(kind, path, names, {"ids": _id_column(path)})
            if isinstance(source.sample(0), np.ndarray) and not {*ID_NAMES} & {*(input_columns_of(source) or ())}:
                return source, columns
    return _labelled(kind, path, names, {})


def _labelled(
    kind: str, path: Path, names: Sequence[str] | None, columns: dict[str, str]
) -> tuple[ImageSource, dict[str, str]]:
    try:
        source, problem = open_source(f"{kind}:{path}", columns), None
    except DataError as error:
        source, problem = None, error
    if source is None or source.labels is None:
        with suppress(DataError):  # then the file is damaged, or the column holds the samples
            column = _class_column(path, names)
            if column is not None:
                columns = {**columns, "labels": column}
                return open_source(f"{kind}:{path}", columns), columns
    if source is None:
        assert problem is not None
        raise problem
    return source, columns


def _id_column(path: Path) -> str:
    """The only column of text that has another word in each row, and no name of a file.

    Raises:
        DataError: there is none.
    """
    found = [
        name
        for name, values in text_columns(path).items()
        if len(set(values)) == len(values)
        and not any(value is None or " " in value or (path.parent / value).is_file() for value in values)
    ]
    if len(found) != 1:
        raise DataError(f"{path}: no column names the samples")
    return found[0]


def _class_column(path: Path, names: Sequence[str] | None) -> str | None:
    """The only column of text of which each value is there several times, or is the name of a class."""

    def are_classes(values: Sequence[str | None]) -> bool:
        counts = Counter(values)
        return len(counts) > 1 and (set(counts) <= set(names or ()) or len(counts) <= len(values) / FEW)

    found = [name for name, values in text_columns(path).items() if are_classes(values)]
    return found[0] if len(found) == 1 else None


def _set_of(path: Path, source: ImageSource) -> SampleSet:
    if source.labels is None:
        return SampleSet(path, (), (), len(source.ids))
    numbers = np.unique(source.labels[source.labels >= 0]).tolist()
    names = class_names_of(source)
    if len(numbers) < 2:
        raise DataError(f"its samples have {len(numbers)} classes, wanted two at least; {FORM}")
    return SampleSet(path, tuple(str(each) if names is None else names[each] for each in numbers), (), len(source.ids))
