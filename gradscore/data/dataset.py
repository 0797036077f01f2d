"""The samples of splits: sources opened, samples selected, and labels made classes of the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..system import closest, sha256, some
from .preprocessing import Preprocessing, PreprocessingConfig
from .samples import SIGNED, SampleDataset, are_signed, content_hash
from .sources import kind_of, open_source
from .sources.columns import ColumnSource, refuse_text
from .sources.files import FileSource
from .sources.raw_samples import UNLABELLED, Raw, SampleSource, UnreadableSampleError, class_names_of, input_columns_of
from .splits import FIT, DataConfig, DatasetConfig, OodConfig, SelectConfig, base_split, planned_splits


def open_splits(
    data: DataConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    seed: int,
    only: Collection[str] | None = None,
    model_names: Sequence[str] | None = None,
) -> dict[str, SampleDataset]:
    """Opens the data of all splits, by name and in order.

    Sets made of in-distribution samples get the raw ones of the split that `base_split` names. Labels with names mean
    the same class in every split, and columns of numbers with names the same input of the model, that of the samples
    to fit on, unless the arguments of a split name its columns.

    Args:
        data: the section of the configuration.
        preprocessing: from raw pixels to model inputs.
        num_classes: K, to check the labels.
        seed: of random choices of the source.
        only: names of the splits that are wanted; all of them if None.
        model_names: what the model calls its classes, if it does.

    Raises:
        DataError: data that cannot be used.
        ModelError: code that is not trusted, not what it should be, or fails when it is imported.
    """
    planned = planned_splits(data)
    wanted = set(planned if only is None else only)
    wanted |= {base for name in wanted if (base := base_split(*planned[name])) is not None}
    tables = {name for name, (_, spec) in planned.items() if (kind := kind_of(spec.source)) and kind.is_table}
    alike: dict[tuple[str, str], SampleSource] = {}

    def opened(name: str) -> SampleSource:
        spec = planned[name][1]
        kind = kind_of(spec.source)
        if kind is not None and kind.is_code:  # which may give other samples every time
            return open_source(spec.source, spec.arguments, seed=seed)
        key = (spec.source, repr(sorted(spec.arguments.items())))
        if key not in alike:
            follows = name != FIT and {name, FIT} <= tables and spec.arguments.get("inputs") is None
            columns = input_columns_of(opened(FIT)) if follows else None
            alike[key] = open_source(spec.source, spec.arguments, seed=seed, columns=columns)
        return alike[key]

    labelled = [name for name, (info, _) in planned.items() if info.kind != "ood"]
    needed = set(wanted)  # sets without labels are opened without a look at those that name the classes
    if data.class_names is None and wanted & set(labelled):
        needed |= set(labelled)
    own = {name: opened(name) for name in planned if name in needed and base_split(*planned[name]) is None}
    named = {name: (planned[name][1], own[name]) for name in labelled if name in own}
    names = name_classes(named, num_classes=num_classes, given=data.class_names, model_names=model_names)
    preprocess = Preprocessing(preprocessing)
    found: dict[str, SampleDataset] = {}
    shares: dict[tuple[int, int], float] = {}
    for name, (info, spec) in planned.items():
        if name in wanted:
            base = base_split(info, spec)
            source = (
                own[name]
                if base is None
                else open_source(spec.source, spec.arguments, base=found[base].source, seed=seed)
            )
            if isinstance(source, ColumnSource) and not preprocess.takes_text:
                refuse_text(source)
            is_ood = info.kind == "ood"
            selected = _selected(spec, source, None if is_ood else names, num_classes, shares)
            found[name] = SampleDataset(selected, preprocess, labelled=not is_ood)
    return {name: each for name, each in found.items() if only is None or name in only}


def open_synthetic(
    entries: Sequence[OodConfig], fit: SampleDataset, *, preprocessing: PreprocessingConfig, seed: int
) -> dict[str, SampleDataset]:
    """Opens synthetic sets, which are made of the samples to fit on, by the name of the split."""
    found = {}
    for each in entries:
        source = open_source(each.source, each.arguments, base=fit.source, seed=seed)
        selected = _selected(each, source, None, 0, {})
        found[f"ood.{each.name}"] = SampleDataset(selected, Preprocessing(preprocessing), labelled=False)
    return found


def _selected(
    spec: DatasetConfig,
    source: SampleSource,
    names: ClassNames | None,
    num_classes: int,
    shares: dict[tuple[int, int], float],
) -> Selected:
    """The samples that a split asks for, with classes of the model as labels; OOD sets, without names, keep theirs."""
    own = class_names_of(source)
    local = names or ClassNames(None if own is None else tuple(own))
    labels = local.aligned(source, spec.source)
    classes = None if spec.select.classes is None else local.chosen(spec.select.classes, source, spec.source)
    places = select(source, spec.select, labels=labels, classes=classes, shares=shares)
    if not len(places):
        chosen = spec.select.model_dump(exclude_defaults=True)
        of_all = f"left of {len(source.ids)} with select {chosen}" if chosen else "in it"
        raise DataError(f"{spec.source} has no sample {of_all}")
    selected = Selected(source, places, None if labels is None else labels[places], own)
    if names is None:
        return selected
    return replace(selected, labels=names.mapped(selected, spec, num_classes), class_names=names.of_model)


def select(
    source: SampleSource,
    spec: SelectConfig,
    *,
    labels: NDArray[np.int64] | None = None,
    classes: Sequence[int] | None = None,
    shares: dict[tuple[int, int], float] | None = None,
) -> NDArray[np.int64]:
    """Positions of the selected samples: by class, content hash and lot, then start and stop, then count.

    A sample that cannot be decoded goes by the hash of its id, so that it is in one part of several, which names it.

    Args:
        source: the samples.
        spec: the selection.
        labels: (N,) of the source; None without.
        classes: the labels that `spec.classes` asks for; None for all.
        shares: hashes that are known, in [0, 1), by the `id` of the source, which has to live on, and the position;
            gets those that are computed, so that each sample is read once, however many splits ask for it.

    Returns:
        Positions in the order of the source.

    Raises:
        DataError: a selection by class without labels.
    """
    places = np.arange(len(source.ids), dtype=np.int64)
    if classes is not None:
        if labels is None:
            raise DataError("select.classes needs labels, and the source has none")
        places = places[np.isin(labels, classes)]
    if spec.hash is not None:
        low, high = spec.hash
        known = {} if shares is None else shares
        unknown = [place for place in places.tolist() if (id(source), place) not in known]
        known |= {(id(source), place): share for place, share in zip(unknown, _shares(source, unknown), strict=True)}
        found = np.array([known[id(source), place] for place in places.tolist()])
        places = places[(found >= low) & (found < high)]
    if spec.lot is not None:
        low, high = spec.lot
        drawn = lots(spec.seed).random(len(source.ids))[places]
        places = places[(drawn >= low) & (drawn < high)]
    places = places[spec.start : spec.stop]
    if spec.count is not None and spec.count < len(places):
        places = np.sort(np.random.default_rng(spec.seed).choice(places, spec.count, replace=False))
    return places


def lots(seed: int) -> np.random.Generator:
    """Generator of the numbers of `lot`.

    With a word in its seed: a program that draws labels, or which of them it changes, with the same seed and nothing
    else would otherwise get a part that depends on them.
    """
    return np.random.default_rng([seed, crc32(b"lot")])


def _shares(source: SampleSource, places: Sequence[int]) -> list[float]:
    """Hashes of samples in [0, 1): those of files at once, since nothing is shared between them."""

    def share(place: int) -> float:
        try:
            digest = content_hash(source.sample(place))
        except UnreadableSampleError:
            digest = sha256(source.ids[place].encode())[:16]
        return int(digest, 16) / 2**64

    if not isinstance(source, FileSource):
        return list(map(share, places))
    with ThreadPoolExecutor() as threads:
        return list(threads.map(share, places))


@dataclass(frozen=True)
class Selected:
    """Source of a selection of the samples of another."""

    base: SampleSource
    places: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    class_names: Sequence[str] | None

    @property
    def ids(self) -> Sequence[str]:
        """See `SampleSource`."""
        ids = self.base.ids  # once: a source may make the list anew every time
        return [ids[place] for place in self.places]

    @property
    def input_columns(self) -> Sequence[str] | None:
        """See `input_columns_of`."""
        return input_columns_of(self.base)

    def sample(self, index: int) -> Raw:
        """See `SampleSource`."""
        return self.base.sample(int(self.places[index]))

    def content(self) -> str:
        """See `SampleSource`."""
        return self.base.content()


NAME_CLASSES = "name all classes of the model in their order in data.class_names, or set label_map"
"""Advice where data have other classes than the model."""

MOST_SHOWN = 20
"""More classes than these are not listed in a message."""


@dataclass(frozen=True)
class ClassNames:
    """Names of classes.

    Attributes:
        of_labels: what the labels 0, 1, ... of sources with names are called, the same in all splits; None if no source
            has names.
        of_model: the classes of the model in the order of its outputs; None where they are not known.
        are_numbers: numbers are names of the classes of the model: `data.class_names` are whole numbers.
        unused: those of `of_labels` that no sample has.
    """

    of_labels: tuple[str, ...] | None
    of_model: tuple[str, ...] | None = None
    are_numbers: bool = False
    unused: tuple[str, ...] = ()

    def aligned(self, source: SampleSource, where: str) -> NDArray[np.int64] | None:
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

    def chosen(self, classes: Sequence[int | str], source: SampleSource, where: str) -> list[int]:
        """The labels that `select.classes` asks for, by number or by name.

        Raises:
            DataError: there is no class of a name, or of a number where the names are numbers.
        """
        names = self.of_labels if class_names_of(source) is not None else None
        found = [label_of(each, names) if names is None or isinstance(each, int) else None for each in classes]
        return [
            _place(str(each), names, f"{where}: select.classes") if label is None else label
            for each, label in zip(classes, found, strict=True)
        ]

    def mapped(self, samples: Selected, spec: DatasetConfig, num_classes: int) -> NDArray[np.int64] | None:
        """The classes of the model that labels, as `aligned` gives them, stand for by `spec.label_map` and by name.

        Raises:
            DataError: a label that nothing is said of, or that is no class of the model.
        """
        labels = samples.labels
        if labels is None:
            return None
        names = None if samples.class_names is None else self.of_labels
        present = [int(label) for label in np.unique(labels)]
        named = {label_of(key, names) for key in spec.label_map or ()}
        if not named and are_signed(present, num_classes):
            raise DataError(f"{spec.source}: {SIGNED}; set label_map: {{-1: 0, 1: 1}}")
        wanted = [label for label in present if label != UNLABELLED or label in named]
        if self.are_numbers and names is None and spec.label_map is None:
            self._refuse_ambiguous(wanted, samples, spec.source)
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
            what_to_do = (
                "use select.classes or label_map, name the classes of the model in data.class_names, or correct "
                "model.num_classes"
            )
            if names is None and spec.label_map is None and min(wanted) > 0 and max(wanted) == num_classes:
                what_to_do = f"they count from 1: set data.class_names: {_from_one(num_classes)}"
            raise DataError(
                f"{spec.source}: sample {samples.ids[first]} has label {found[first]}{name}, and {len(outside)} labels "
                f"are outside the model's classes 0..{num_classes - 1}; {empty if self.unused else ''}{what_to_do}"
            )
        return found

    def _refuse_ambiguous(self, labels: Sequence[int], samples: Selected, where: str) -> None:
        """Refuses numbers of an array that are classes by name and others by position; a table has names."""
        names = list(self.of_model or ())
        differing = [label for label in labels if label_of(label, names) != label]
        are_both = all(label < len(names) and label_of(label, names) is not None for label in labels)
        if isinstance(samples.base, ColumnSource) or not differing or not are_both:
            return
        first, other = differing[0], names[differing[0]]
        raise DataError(
            f"{where}: its labels are numbers, and data.class_names are {some(names)}, so label {first} may be the "
            f"class of that name or output {first}, '{other}'; say for all labels which, label_map: "
            f"{{{first}: '{first}', ...}} or {{{first}: '{other}', ...}}"
        )

    def _class_of(self, label: int, spec: DatasetConfig, names: Sequence[str] | None) -> int | None:
        known = names or (() if self.are_numbers else self.of_model) or ()
        name = known[label] if 0 <= label < len(known) else None
        if spec.label_map is not None:
            own = [] if name is None or name not in spec.label_map else [name]
            keys = own + [key for key in spec.label_map if label_of(key, names) == label]
            if not keys:
                return None
            return self._output_of(spec.label_map[keys[0]], f"{spec.source}: label_map")
        if names is None or name is None or self.of_model is None:
            return self._output_of(label, spec.source)
        return _place(name, self.of_model, spec.source)

    def _output_of(self, named: int | str, where: str) -> int:
        if isinstance(named, str) or self.are_numbers:
            place = label_of(named, self.of_model) if isinstance(named, int) else None
            return _place(str(named), self.of_model, where) if place is None else place
        return named


def _from_one(count: int) -> str:
    """The classes 1 to `count` as YAML; all of them only where they are few, which can be copied."""
    shown = range(1, count + 1) if count <= MOST_SHOWN else (1, 2, "...", count)
    return f"[{', '.join(map(str, shown))}]"


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


def are_whole_numbers(names: Sequence[int | str]) -> bool:
    """Whether all classes have names, and these are numbers."""
    return all(isinstance(name, str) and _number(name) is not None for name in names)


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.removeprefix("-").isdigit() else None


def name_classes(
    sources: Mapping[str, tuple[DatasetConfig, SampleSource]],
    *,
    num_classes: int,
    given: Sequence[str] | Path | None,
    model_names: Sequence[str] | None,
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
    named = [(names, source) for _, source in sources.values() if (names := class_names_of(source)) is not None]
    of_labels = _joined([tuple(names) for names, _ in named])
    wanted = None if given is None else _given(given, num_classes)
    if wanted is None and model_names is not None and (of_labels is None or set(of_labels) <= set(model_names)):
        wanted = tuple(model_names)
    if wanted is None and of_labels is not None:
        wanted = _of_sources(of_labels, sources, num_classes)
    if given is None:
        _check_numbers(wanted or of_labels or (), sources)
    used = {
        names[label]
        for names, source in named
        for label in np.unique([] if source.labels is None else source.labels).astype(int).tolist()
        if 0 <= label < len(names)
    }
    are_numbers = given is not None and are_whole_numbers(wanted or ())
    return ClassNames(of_labels, wanted, are_numbers, tuple(name for name in of_labels or () if name not in used))


def _given(given: Sequence[str] | Path, num_classes: int) -> tuple[str, ...]:
    """The names of `data.class_names`; a file has one a line, or in JSON a list or a mapping from class to name."""
    names = given if not isinstance(given, Path) else _in_file(given)
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if len(names) != num_classes or twice is not None:
        got = f"{len(names)} names" if twice is None else f"{twice!r} twice"
        raise DataError(
            f"data.class_names: wanted one name for each of the {num_classes} classes of the model, got {got}"
        )
    return tuple(names)


def _in_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else [line.strip() for line in text.splitlines()]
        if isinstance(found, dict):
            if sorted(map(int, found)) != list(range(len(found))):
                raise ValueError(f"its keys are not the outputs 0 to {len(found) - 1}, but {some(list(found))}")
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
    if any(_number(name) is None for name in union):
        longest = max(lists, key=len)
        return longest if set(longest) == union else tuple(sorted(union))
    names = tuple(sorted(sorted(union), key=int))
    for name, after in pairwise(names):
        if int(name) == int(after):
            raise DataError(
                f"the classes {name!r} and {after!r} have one number in two spellings; wanted one name for each class: "
                "rename one of them, in all splits"
            )
    return names


def _check_numbers(names: Sequence[str], sources: Mapping[str, tuple[DatasetConfig, SampleSource]]) -> None:
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
    of_labels: tuple[str, ...], sources: Mapping[str, tuple[DatasetConfig, SampleSource]], num_classes: int
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
