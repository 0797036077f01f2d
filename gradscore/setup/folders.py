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
from zipfile import is_zipfile

import numpy as np
import pyarrow as pa
from PIL import Image

from ..data import (
    DECODING_ERRORS,
    ID_NAMES,
    IMAGE_SUFFIXES,
    LABEL_NAMES,
    Raw,
    SampleSource,
    class_names_of,
    file_kinds,
    input_columns_of,
    is_image,
    is_number,
    is_row_index,
    is_text,
    open_source,
    table_columns,
)
from ..errors import ConfigError, DataError, GradscoreError
from ..models import OTHER_MODELS, WEIGHT_SUFFIXES, ModelConfig, class_names
from ..store import CONFIG, MANIFEST
from ..system import as_address, is_address, some

PICKLE_SUFFIXES = (".joblib", ".pkl", ".pickle")
"""Suffixes of files that Python pickled, a network among other things, unless `torch.save` wrote them."""

PROGRAM_SUFFIX = ".pt2"
"""Suffix of programs of `torch.export`."""

JSON_LINES, ARROW = ".jsonl", ".arrow"
"""Suffix of files of samples that no kind of source reads."""

DEEPEST = 5
"""So many folders below those that are named are looked into."""

OPENED = 50
"""So many images are opened to see what they have in common."""

FACTORIES = ("build", "build_model", "make_model", "create_model", "get_model", "net", "model")
"""Usual names of functions that build a network, the likeliest first."""

CLASSES = "num_classes"
"""Name of the argument of these that is the number of classes."""

ROLES = {
    "bank": ("train", "training", "trainval", "trainset", "bank"),
    "fit": ("fit", "val", "valid", "validation", "dev", "holdout", "heldout", "held_out"),
    "test": ("test", "testing", "testset", "eval"),
    "calibration": ("calibration", "calib"),
    "ood": ("ood", "out", "outliers", "unknown", "strange"),
}
"""Usual names of folders and tables, by the part they have."""

TO_DECIDE = ("new", "inbox", "incoming", "unlabelled", "unlabeled")
"""Names of folders of new samples, which `gradscore score` is to decide on."""

TASKS = {"ForSequenceClassification": "texts", "ForImageClassification": "images"}
"""Parts of the names of classifiers, and what these take."""

TITLE = b"<title>gradscore: "
"""Pages of gradscore have it."""

FEW = 4
"""A column of text has classes where it has so many times as many rows as values."""

FORM = "say which columns hold what under data: {source: csv:..., arguments: {inputs: COLUMN, labels: COLUMN}}"
"""Advice where the names of columns do not say what they hold."""

_CALLED_ID = re.compile(r"(?:^|_|\W)id$|[a-z]I[dD]$|^ID$", re.ASCII)


@dataclass(frozen=True)
class SampleSet:
    """The images of a folder, or the samples of a table.

    Attributes:
        path: the folder or the table.
        classes: names of its classes; empty where samples have none.
        files: the images of a folder.
        count: how many samples there are.
        columns: of a table, by what they are taken to hold, `labels`, `ids` or `inputs`, though their names do not say
            so.
        left_out: other columns of it, with their types.
        may_label: of a table without classes the columns of whole numbers that may be classes, with how many there are.
        inputs: names of the numbers of a row.
    """

    path: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    count: int
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)
    left_out: Sequence[str] = ()
    may_label: Mapping[str, int] = field(default_factory=dict, hash=False)
    inputs: Sequence[str] = ()

    @property
    def is_table(self) -> bool:
        """Whether the set is a file of samples."""
        return not self.files

    @property
    def source(self) -> str:
        """The kind of source that reads it."""
        return file_kinds()[self.path.suffix.lower()] if self.is_table else "folder"

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.path.stem if self.is_table else self.path.name

    @property
    def role(self) -> str | None:
        """Part that its name says the samples are for; None if it says nothing."""
        return next((role for role, names in ROLES.items() if self.name.lower() in names), None)

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
    """Content of the places that were named."""

    checkpoints: tuple[Path, ...]
    images: tuple[SampleSet, ...]
    factories: tuple[Factory, ...]
    tables: tuple[Path, ...]
    programs: tuple[Path, ...] = ()
    pickles: tuple[Path, ...] = ()


def look(places: Sequence[Path]) -> Found:
    """Looks into folders; a file counts as a checkpoint unless its ending says that it holds samples or code.

    Raises:
        ConfigError: a place does not exist, is an address, or is a run folder.
    """
    for place in places:
        if is_address(place):
            address = as_address(place)
            setting = address if place.name.lower().endswith(WEIGHT_SUFFIXES) else f"folder:{address}"
            raise ConfigError(f"{address}: init looks at local folders; write {setting} into the configuration")
        if not place.exists():
            raise ConfigError(f"{place}: no such file or folder; name folders of images, or files of weights")
        if _is_run(place):
            raise ConfigError(
                f"{place}: this is a run folder, made with the configuration {place / CONFIG}; name folders of "
                "images, or files of weights"
            )
    trees = {place: _tree(place) for place in places if place.is_dir()}
    named = [place for place in places if not place.is_dir()]
    below = [path for tree in trees.values() for files in tree.values() for path in files]
    endings = {*file_kinds(), JSON_LINES, ARROW}
    tables = [path for path in (*named, *below) if path.suffix.lower() in endings]
    programs = [path for path in (*named, *below) if path.suffix.lower() == PROGRAM_SUFFIX]
    codes = [path for path in (*named, *below) if path.suffix == ".py"]
    pickles = [path for path in (*named, *below) if path.suffix in PICKLE_SUFFIXES and not is_zipfile(path)]
    checkpoints = [path for path in named if path not in (*tables, *programs, *codes, *pickles)]
    checkpoints = checkpoints or [path for path in below if path.name.lower().endswith(WEIGHT_SUFFIXES)]
    images = {os.path.realpath(each.path): each for place, tree in trees.items() for each in _sets(place, tree)}
    return Found(
        checkpoints=tuple(checkpoints),
        images=tuple(images.values()),
        factories=tuple(found for path in codes for found in _factories(path)),
        tables=tuple({os.path.realpath(path): path for path in tables}.values()),
        programs=tuple(programs),
        pickles=tuple(pickles),
    )


def _is_run(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and (folder / CONFIG).is_file()


def _has_page(folder: Path) -> bool:
    """Whether there is a page of gradscore, whose figures are no samples."""
    return any(TITLE in page.read_bytes()[:1024] for page in folder.glob("*.html") if page.is_file())


def _tree(root: Path) -> dict[Path, list[Path]]:
    """The files of a folder and of those below; nothing hidden, and nothing of what gradscore wrote."""
    found: dict[Path, list[Path]] = {}
    for base, folders, names in os.walk(root, followlinks=True):
        place = Path(base)
        is_ours = _is_run(place) or (place != root and _has_page(place))
        goes_on = len(place.relative_to(root).parts) < DEEPEST and not is_ours
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__"))) if goes_on else []
        paths = (place / name for name in sorted(names) if not name.startswith(".") and not is_ours)
        found[place] = [path for path in paths if path.is_file()]  # no pipe, no broken link
    return found


def _sets(root: Path, tree: Mapping[Path, Sequence[Path]]) -> Iterator[SampleSet]:
    """Sets of images: those in one folder, or in folders of classes, which lie beside nothing else."""
    images = {
        path: tuple(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES) for path, files in tree.items()
    }
    above = {parent for path, files in images.items() if files for parent in path.parents}
    below: dict[Path, list[Path]] = {path: [] for path in tree}
    for path in tree:
        if path != root:
            below[path.parent].append(path)

    def within(folder: Path) -> Iterator[SampleSet]:
        if images[folder]:
            yield SampleSet(folder, (), images[folder], len(images[folder]))
        classes = [path for path in below[folder] if images[path]]
        deeper = any(path in above and not images[path] for path in below[folder])
        are_parts = any(path.name.lower() in names for path in classes for names in ROLES.values())
        if len(classes) > 1 and not (images[folder] or deeper or are_parts):
            together = tuple(file for path in classes for file in images[path])
            yield SampleSet(folder, tuple(path.name for path in classes), together, len(together))
        else:
            for path in below[folder]:
                yield from within(path)

    yield from within(root)


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


def look_at_tables(
    paths: Sequence[Path], *, names: Sequence[str] | None, texts: bool
) -> tuple[dict[str, list[SampleSet]], list[str]]:
    """Reads files of samples as `extract` does where a configuration gives no arguments, or says what columns hold.

    Args:
        paths: of tables and archives.
        names: of the classes of the network, if they are known.
        texts: whether the network may take texts.

    Returns:
        Sets of images, texts, rows of numbers and arrays, by this word; and why other files are not used, in a sentence
        for each reason.
    """
    found: dict[str, list[SampleSet]] = {}
    unused: dict[str, list[str]] = {}
    for path in paths:
        kind = file_kinds().get(path.suffix.lower())
        try:
            if path.suffix.lower() == ARROW:
                raise DataError(
                    "a data set of datasets; give the folder that save_to_disk wrote by hand, as source: hf:<folder> "
                    "and, where it has several splits, arguments: {split: <name>}"
                )
            if kind is None:
                raise DataError(
                    "JSON Lines are not read; make a .csv or .parquet of them (pandas.read_json, lines=True)"
                )
            if kind not in ("csv", "parquet", "npz"):
                raise DataError("init reads .csv, .tsv, .parquet and .npz; gradscore docs data has other kinds")
            if kind == "csv" and {"sample_id", "decision", "reason"} <= {*table_columns(path).column_names}:
                raise DataError("it holds decisions of gradscore score, and no samples")
            source, columns, left_out = _opened(f"{kind}:{path}", path, names, texts=texts)
            first = _first(source)
            if isinstance(first, str):
                noun = "texts"
            elif is_image(first):
                noun = "images"
            elif isinstance(first, np.ndarray) and first.ndim == 1 and first.dtype.kind == "f":
                noun = "rows"
            else:
                noun = "arrays"
            made = _set_of(path, source, columns, left_out)
            if source.labels is None and kind != "npz":
                made = replace(made, may_label=_may_label(table_columns(path)))
            found.setdefault(noun, []).append(made)
        except (GradscoreError, OSError) as error:
            reason = str(error).splitlines()[0].removeprefix(f"data file {path}: ")
            unused.setdefault(reason, []).append(str(path))
    return found, [f"{some(files)}: not used: {reason}" for reason, files in unused.items()]


def labelled_alike(sets: Sequence[SampleSet], count: int) -> list[SampleSet]:
    """Takes the one column of whole numbers with as many of them as the network has classes as the labels.

    Args:
        sets: of one network; where one has classes, or several columns may hold them, nothing is taken.
        count: of the classes of the network.

    Returns:
        The sets; those with that column have classes.
    """
    columns = {name for each in sets for name, there in each.may_label.items() if there == count}
    if len(columns) != 1 or any(each.classes for each in sets):
        return list(sets)
    return [_labelled(each, *columns) if each.is_table else each for each in sets]


def _labelled(of: SampleSet, column: str) -> SampleSet:
    """The samples of a table with a column as their labels; as they are where that cannot be."""
    with suppress(DataError):
        table = table_columns(of.path)
        if column in table.column_names:
            columns, left_out = {"labels": column}, of.left_out
            if of.columns or left_out:
                beside, left_out = _rows(table, columns)
                columns |= beside
            return _set_of(of.path, open_source(f"{of.source}:{of.path}", columns), columns, left_out)
    return of


def _first(source: SampleSource) -> Raw:
    """The first sample that can be read."""
    for place in range(min(OPENED, len(source.ids))):
        with suppress(DataError):
            return source.sample(place)
    return source.sample(0)


def _opened(
    source: str, path: Path, names: Sequence[str] | None, *, texts: bool
) -> tuple[SampleSource, dict[str, Any], Sequence[str]]:
    """The samples of a file; which columns of a table hold what, where that has to be said; those that are left out."""
    found: SampleSource | None = None
    table: pa.Table | None = None
    columns: dict[str, Any] = {}
    with suppress(DataError):
        found = open_source(source)
    if path.suffix.lower() != ".npz" and (found is None or found.labels is None or not texts):
        with suppress(DataError):  # of a damaged file, which opening says
            table = table_columns(path)
    if table is not None and (found is None or found.labels is None):
        with suppress(DataError):  # then the column holds the samples
            if (column := _class_column(table, names)) is not None:
                columns = {"labels": column}
                found = open_source(source, columns)
    if table is not None and not texts and (found is None or input_columns_of(found) is not None):
        with suppress(DataError):
            beside, left_out = _rows(table, columns)
            return open_source(source, {**columns, **beside}), {**columns, **beside}, left_out
    return found or open_source(source, columns), columns, ()


def _rows(table: pa.Table, columns: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The column that names the rows of a table of numbers, those of the numbers if they have to be said, and others.

    Names differ in each row. They are words, or the first column counts the rows, or the column is called an id.

    Raises:
        DataError: most of its columns are no numbers.
    """
    taken = {*columns.values(), next((name for name in LABEL_NAMES if name in table.column_names), None)}
    free = {field.name: field.type for field in table.schema if field.name not in taken and field.name not in ID_NAMES}
    numbers = [name for name, kind in free.items() if is_number(kind)]
    if 2 * len(numbers) <= len(free):
        raise DataError("most columns hold no numbers")

    def are_names(name: str) -> bool:
        values = table.column(name)
        is_whole = name == table.column_names[0] and pa.types.is_integer(free[name]) and not values.null_count
        is_counted = is_whole and bool((np.diff(np.sort(values.to_numpy())) == 1).all())
        if not (is_text(free[name]) or is_counted or _CALLED_ID.search(name) or is_row_index(name)):
            return False
        is_phrase = is_text(free[name]) and any(" " in str(each) for each in values.to_pylist())
        return not (is_phrase or values.null_count) and len(values.unique()) == len(values)

    names = [name for name in free if are_names(name)]
    inputs = [name for name in numbers if name not in names and not is_row_index(name)]
    left_out = [name for name in free if name not in (*inputs, *names[:1])]
    found: dict[str, Any] = {"ids": names[0]} if names else {}
    return found | ({"inputs": inputs} if left_out else {}), [
        f"{name} ({'text' if is_text(free[name]) else free[name]})" for name in left_out
    ]


def _class_column(table: pa.Table, names: Sequence[str] | None) -> str | None:
    """The column of text of which each value is there several times, or is the name of a class.

    Of several it is the last column of the table, or none. None, too, where one is called as labels are.
    """

    def are_classes(name: str) -> bool:
        counts = Counter(table.column(name).to_pylist())
        return len(counts) > 1 and (set(counts) <= set(names or ()) or len(counts) <= table.num_rows / FEW)

    if any(name in table.column_names and are_classes(name) for name in LABEL_NAMES):
        return None
    found = [field.name for field in table.schema if is_text(field.type) and are_classes(field.name)]
    return found[-1] if len(found) == 1 or (found and found[-1] == table.column_names[-1]) else None


def _may_label(table: pa.Table) -> dict[str, int]:
    """The columns that hold the whole numbers from 0 or 1 on, or truth values, several times, and how many of them."""
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)]
    there = {name: set(table.column(name).to_pylist()) for name in whole}
    return {
        name: len(numbers)
        for name, numbers in there.items()
        if 1 < len(numbers) <= table.num_rows / FEW
        and numbers in ({*range(len(numbers))}, {*range(1, len(numbers) + 1)})
    }


def _set_of(path: Path, source: SampleSource, columns: Mapping[str, Any], left_out: Sequence[str]) -> SampleSet:
    inputs = input_columns_of(source) or ()
    if source.labels is None:
        return SampleSet(path, (), (), len(source.ids), columns, left_out, inputs=inputs)
    numbers = np.unique(source.labels[source.labels >= 0]).tolist()
    names = class_names_of(source)
    if len(numbers) < 2:
        raise DataError(f"its samples have {len(numbers)} classes, wanted two at least; {FORM}")
    classes = tuple(str(each) if names is None else names[each] for each in numbers)
    return SampleSet(path, classes, (), len(source.ids), columns, left_out, inputs=inputs)
