"""What classes are called, and which class of the model a label of a source is: decided here for all splits at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..system import closest, some
from .settings import DatasetConfig
from .sources import UNLABELLED, ImageSource, class_names_of

NAME_CLASSES = "name all classes of the model in their order in data.class_names, or set label_map"
"""What to do where data have other classes than the model."""


@dataclass(frozen=True)
class ClassNames:
    """Names of classes.

    Attributes:
        of_labels: what the labels 0, 1, ... of sources with names are called, the same in all splits; None if no source
            has names.
        of_model: the classes of the model in the order of its outputs; None where they are not known.
        unused: those of `of_labels` that no sample has.
    """

    of_labels: tuple[str, ...] | None = None
    of_model: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()

    def aligned(self, source: ImageSource, where: str) -> NDArray[np.int64] | None:
        """The labels of a source, those with names as positions in `of_labels`.

        Raises:
            DataError: a label without a name in a source with names.
        """
        names, labels = class_names_of(source), source.labels
        if names is None or labels is None or self.of_labels is None:
            return labels
        outside = labels[(labels < UNLABELLED) | (labels >= len(names))]
        if len(outside):
            raise DataError(f"{where}: label {outside[0]} is none of its {len(names)} classes ({some(list(names))})")
        places = np.array([self.of_labels.index(name) for name in names] + [UNLABELLED], dtype=np.int64)
        return places[labels]

    def chosen(self, classes: Sequence[int | str], source: ImageSource, where: str) -> list[int]:
        """The labels that `select.classes` asks for, by number or by name.

        Raises:
            DataError: there is no class of a name, or of a number where the names are numbers.
        """
        names = self.of_labels if class_names_of(source) is not None else None
        found = [label_of(each, names) if isinstance(each, int) else None for each in classes]
        return [
            _place(str(each), names, f"{where}: select.classes") if label is None else label
            for each, label in zip(classes, found, strict=True)
        ]

    def mapped(
        self, labels: NDArray[np.int64], spec: DatasetConfig, *, is_named: bool, ids: Sequence[str], num_classes: int
    ) -> NDArray[np.int64]:
        """The classes of the model that labels stand for.

        Args:
            labels: (N,) as `aligned` gives them.
            spec: its `label_map` says what they become.
            is_named: whether the source has names.
            ids: of the samples, for messages.
            num_classes: K.

        Raises:
            DataError: a label that nothing is said of, or that is no class of the model.
        """
        names = self.of_labels if is_named else None
        wanted = [int(label) for label in np.unique(labels) if label != UNLABELLED]
        table = {label: self._class_of(label, spec, names) for label in wanted}
        missing = [label if names is None else names[label] for label, place in table.items() if place is None]
        if missing:
            raise DataError(f"{spec.source}: label_map says nothing of the labels {missing}")
        found = np.array([table.get(int(label), UNLABELLED) for label in labels], dtype=np.int64)
        outside = np.flatnonzero((found < UNLABELLED) | (found >= num_classes))
        if len(outside):
            first = int(outside[0])
            name = "" if names is None or spec.label_map is not None else f" ({names[found[first]]})"
            empty = f"no sample is of class {some(self.unused)}, perhaps an empty folder, which counts as a class; "
            raise DataError(
                f"{spec.source}: sample {ids[first]} has label {found[first]}{name}, and {len(outside)} labels are "
                f"outside the model's classes 0..{num_classes - 1}; {empty if self.unused else ''}use select.classes "
                "or label_map, name the classes of the model in data.class_names, or correct model.num_classes"
            )
        return found

    def _class_of(self, label: int, spec: DatasetConfig, names: Sequence[str] | None) -> int | None:
        known = names or self.of_model or ()
        name = known[label] if 0 <= label < len(known) else None
        if spec.label_map is not None:
            own = [] if name is None or name not in spec.label_map else [name]
            keys = own + [key for key in spec.label_map if label_of(key, names) == label]
            if not keys:
                return None
            value = spec.label_map[keys[0]]
            return value if isinstance(value, int) else _place(value, self.of_model, f"{spec.source}: label_map")
        if names is None or name is None or self.of_model is None:
            return label
        return _place(name, self.of_model, spec.source)


def label_of(key: int | str, names: Sequence[str] | None) -> int | None:
    """The label that a key of `label_map` or `select.classes` stands for.

    Args:
        key: a name, or a number: that of the class whose name is this number, otherwise a position.
        names: of the labels 0, 1, ...; None where they have none.

    Returns:
        The label; None where there is none. Where all names are numbers, positions count for nothing.
    """
    if isinstance(key, str) and names is not None and key in names:
        return list(names).index(key)
    number = key if isinstance(key, int) else _number(key)
    numbers = [_number(name) for name in names or ()]
    if number is None or not numbers:
        return number
    if number in numbers:
        return numbers.index(number)
    return number if None in numbers else None


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() else None


def decide(
    sources: Mapping[str, tuple[DatasetConfig, ImageSource]],
    *,
    num_classes: int,
    given: Sequence[str] | Path | None = None,
    model_names: Sequence[str] | None = None,
) -> ClassNames:
    """Decides what classes are called.

    Names come from `data.class_names`, from the model if it has all names of the sources, or from the sources.

    Args:
        sources: of the labelled splits, with what is asked of them, by the name of the split.
        num_classes: K.
        given: `data.class_names`: names, or a file of them.
        model_names: what the model calls its classes, in the order of its outputs.

    Raises:
        DataError: names that do not fit each other or the model.
    """
    lists = [tuple(names) for _, source in sources.values() if (names := class_names_of(source)) is not None]
    of_labels = _joined(lists)
    wanted = _given(given, num_classes)
    if wanted is None and model_names is not None and (of_labels is None or set(of_labels) <= set(model_names)):
        wanted = tuple(model_names)
    if wanted is None and of_labels is not None:
        wanted = _of_sources(of_labels, sources, num_classes)
    if given is None:
        _check_numbers(wanted or of_labels or (), sources)
    return ClassNames(of_labels, wanted, _unused(of_labels or (), [source for _, source in sources.values()]))


def _unused(names: Sequence[str], sources: Sequence[ImageSource]) -> tuple[str, ...]:
    """The names that no sample has."""
    used = {
        own[label]
        for source in sources
        if (own := class_names_of(source)) is not None and source.labels is not None
        for label in np.unique(source.labels).tolist()
        if 0 <= label < len(own)
    }
    return tuple(name for name in names if name not in used)


def _given(given: Sequence[str] | Path | None, num_classes: int) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = _read(given) if isinstance(given, Path) else list(given)
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if len(names) != num_classes or twice is not None:
        got = f"{len(names)} names" if twice is None else f"{twice!r} twice"
        raise DataError(
            f"data.class_names: wanted one name for each of the {num_classes} classes of the model, got {got}"
        )
    return tuple(names)


def _read(path: Path) -> list[str]:
    """Names in a file: one on each line, or in JSON a list, or a mapping from class to name."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else [line.strip() for line in text.splitlines()]
        if isinstance(found, dict):
            found = [found[key] for key in sorted(found, key=int)]
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"data.class_names: {path} cannot be read: {error}") from None
    names = found if isinstance(found, list) else []
    while names and names[-1] == "":
        names.pop()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(
            f"data.class_names: {path}: wanted one name on each line, or a list of names in JSON, in the order of the "
            "outputs of the model"
        )
    return names


def _joined(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """All names: numbers in their order, others in that of the source that has all, otherwise in alphabetical order."""
    if not lists:
        return None
    union = {name for names in lists for name in names}
    numbers = {name: number for name in sorted(union) if (number := _number(name)) is not None}
    if len(numbers) == len(union):
        return _in_numerical_order(numbers)
    longest = max(lists, key=len)
    return longest if set(longest) == union else tuple(sorted(union))


def _in_numerical_order(numbers: Mapping[str, int]) -> tuple[str, ...]:
    names = tuple(sorted(numbers, key=lambda name: numbers[name]))
    for name, after in pairwise(names):
        if numbers[name] == numbers[after]:
            raise DataError(
                f"the classes {name!r} and {after!r} have one number in two spellings; wanted one name for each class: "
                "rename one of them, in all splits"
            )
    return names


def _check_numbers(names: Sequence[str], sources: Mapping[str, tuple[DatasetConfig, ImageSource]]) -> None:
    """Refuses labels without names beside classes called 1, 2, ...: 2 may be the class of that name or output 2."""
    numbers = [_number(name) for name in names]
    if None in numbers or numbers == list(range(len(numbers))):
        return
    plain = [(split, source) for split, (spec, source) in sources.items() if spec.label_map is None]
    named = [split for split, source in plain if class_names_of(source) is not None]
    bare = [split for split, source in plain if class_names_of(source) is None and source.labels is not None]
    if named and bare:
        raise DataError(
            f"{bare[0]}: its labels are numbers, and classes of {named[0]} are called {some(list(names))}, which are "
            f"not 0 to {len(names) - 1}, so it is not known which of them a number means; set label_map of {bare[0]}, "
            "or name all classes of the model in their order in data.class_names"
        )


def _of_sources(
    of_labels: tuple[str, ...], sources: Mapping[str, tuple[DatasetConfig, ImageSource]], num_classes: int
) -> tuple[str, ...] | None:
    """The classes of the model by the names of the sources; None where they say nothing of them."""
    named = {split: spec for split, (spec, source) in sources.items() if class_names_of(source) is not None}
    plain = [split for split, spec in named.items() if spec.label_map is None]
    if not plain:
        return _through_maps(of_labels, list(named.values()), num_classes)
    if len(of_labels) < num_classes:
        raise DataError(
            f"{plain[0]}: its data name {len(of_labels)} classes ({some(list(of_labels))}), and the model has "
            f"{num_classes}, so it is not known which outputs they are; {NAME_CLASSES}"
        )
    return of_labels if len(of_labels) == num_classes and len(plain) == len(named) else None


def _through_maps(
    of_labels: tuple[str, ...], specs: Sequence[DatasetConfig], num_classes: int
) -> tuple[str, ...] | None:
    """The names that label maps give to the classes of the model, if they name all of them, and once each."""
    found: dict[int, str] = {}
    for spec in specs:
        for key, value in (spec.label_map or {}).items():
            label = label_of(key, of_labels)
            name = of_labels[label] if label is not None and 0 <= label < len(of_labels) else None
            if name is None or not isinstance(value, int) or found.setdefault(value, name) != name:
                return None
    complete = sorted(found) == list(range(num_classes))
    return tuple(found[place] for place in range(num_classes)) if complete else None


def _place(name: str, names: Sequence[str] | None, where: str) -> int:
    if names is None:
        raise DataError(f"{where}: {name!r} is a name, and the classes have none; name them in data.class_names")
    if name not in names:
        raise DataError(
            f"{where}: no class {name!r}; name it in data.class_names if the model has it, or say in label_map which "
            f"class it is; {closest(name, names)}"
        )
    return list(names).index(name)
