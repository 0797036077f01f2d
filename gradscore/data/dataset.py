"""The samples of splits: sources opened, samples selected, and labels made classes of the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..system import closest, sha256, some
from .preprocessing import Preprocessing, PreprocessingConfig
from .samples import SampleDataset, content_hash
from .sources import kind_of, open_source
from .sources.columns import refuse_text
from .sources.raw_samples import UNLABELLED, ImageSource, Raw, UnreadableImageError, class_names_of, input_columns_of
from .splits import FIT, DataConfig, DatasetConfig, SelectConfig, SplitInfo, base_split, planned_splits


class HashShares:
    """Numbers in [0, 1) for the samples of sources, by content alone (by id where there is no content to be had).

    Each sample is read once, however many splits ask for it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ImageSource, dict[int, float]]] = {}

    def of(self, source: ImageSource, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those of the samples at some places."""
        # The source is kept, so that no other has its id.
        _, known = self._known.setdefault(id(source), (source, {}))
        for place in places.tolist():
            if place not in known:
                known[place] = _share(source, place)
        return np.array([known[place] for place in places.tolist()])


def select(
    source: ImageSource,
    spec: SelectConfig,
    *,
    labels: NDArray[np.int64] | None = None,
    classes: Sequence[int] | None = None,
    shares: HashShares | None = None,
) -> NDArray[np.int64]:
    """Positions of the selected samples: by class, then content hash, then start and stop, then count.

    A sample that cannot be decoded goes by the hash of its id, so that it is in one part of several, which names it.

    Args:
        source: the samples.
        spec: the selection.
        labels: (N,) of the source; None without.
        classes: the labels that `spec.classes` asks for; None for all.
        shares: what is known of the contents of sources, which may be those of other splits too.

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
        found = (shares or HashShares()).of(source, places)
        places = places[(found >= low) & (found < high)]
    places = places[spec.start : spec.stop]
    if spec.count is not None and spec.count < len(places):
        places = np.sort(np.random.default_rng(spec.seed).choice(places, spec.count, replace=False))
    return places


def _share(source: ImageSource, place: int) -> float:
    try:
        digest = content_hash(source.image(place))
    except UnreadableImageError:
        digest = sha256(source.ids[place].encode())[:16]
    return int(digest, 16) / 2**64


@dataclass(frozen=True)
class Selected:
    """Some samples of a source, as a source."""

    base: ImageSource
    places: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    class_names: Sequence[str] | None = None

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        ids = self.base.ids  # once: a source may make the list anew every time
        return [ids[place] for place in self.places]

    @property
    def input_columns(self) -> Sequence[str] | None:
        """See `input_columns_of`."""
        return input_columns_of(self.base)

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        return self.base.image(int(self.places[index]))

    def content(self) -> str:
        """See `ImageSource`."""
        return self.base.content()


def open_split(
    spec: DatasetConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    labelled: bool,
    made_of: ImageSource | None,
    seed: int,
) -> SampleDataset:
    """Opens the data of a split by itself.

    Args:
        spec: source, selection and label map.
        preprocessing: from raw samples to model inputs.
        num_classes: K, to check the labels.
        labelled: whether labels count; False for OOD sets.
        made_of: the raw in-distribution samples that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The samples.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    images = open_images(spec, num_classes=num_classes if labelled else None, made_of=made_of, seed=seed)
    return SampleDataset(images, Preprocessing(preprocessing), labelled=labelled)


def open_images(spec: DatasetConfig, *, num_classes: int | None, made_of: ImageSource | None, seed: int) -> Selected:
    """Opens the raw samples of a split by itself: names of classes are those of its own source.

    Args:
        spec: source, selection and label map.
        num_classes: K, of the model whose classes the labels become; None for OOD sets, which keep those of the source.
        made_of: the raw in-distribution samples that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The selected samples.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    source = open_source(spec.source, spec.arguments, base=made_of, seed=seed)
    names = None if num_classes is None else decide({spec.source: (spec, source)}, num_classes=num_classes)
    return _selected(spec, source, names, num_classes, HashShares())


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

    Sets made of in-distribution images get the raw ones of the split that `base_split` names. Labels with names mean
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

    alike: dict[tuple[str, str], ImageSource] = {}

    def opened(name: str, base: ImageSource | None = None) -> ImageSource:
        spec = planned[name][1]
        if base is None and not _is_code(spec.source):
            key = (spec.source, repr(sorted(spec.arguments.items())))
            if key not in alike:
                columns = None if name == FIT else known_columns(spec)
                alike[key] = open_source(spec.source, spec.arguments, base=None, seed=seed, columns=columns)
            return alike[key]
        return open_source(spec.source, spec.arguments, base=base, seed=seed)

    def known_columns(spec: DatasetConfig) -> Sequence[str] | None:
        is_told = spec.arguments.get("inputs") is not None or not _is_table(spec.source)
        return None if is_told or not _is_table(data.in_dist.fit.source) else input_columns_of(opened(FIT))

    are_named = data.class_names is None and any(planned[name][0].kind != "ood" for name in wanted)
    needed = {*wanted, *_labelled(planned)} if are_named else wanted
    own = {name: opened(name) for name in planned if name in needed and base_split(*planned[name]) is None}
    labelled = {name: (planned[name][1], own[name]) for name in _labelled(planned) if name in own}
    # Sets without labels are opened without a look at those that name the classes.
    names = decide(labelled, num_classes=num_classes, given=data.class_names, model_names=model_names)
    preprocess = Preprocessing(preprocessing)
    found: dict[str, SampleDataset] = {}
    shares = HashShares()
    for name, (info, spec) in planned.items():
        if name in wanted:
            base, is_ood = base_split(info, spec), info.kind == "ood"
            source = own[name] if base is None else opened(name, found[base].images)
            if not preprocess.takes_text:
                refuse_text(source)
            images = _selected(spec, source, None if is_ood else names, num_classes, shares)
            found[name] = SampleDataset(images, preprocess, labelled=not is_ood)
    return {name: each for name, each in found.items() if only is None or name in only}


def _is_code(source: str) -> bool:
    """Whether a source is code of the user's, which may give other samples every time."""
    kind = kind_of(source)
    return kind is not None and kind.is_code


def _is_table(source: str) -> bool:
    kind = kind_of(source)
    return kind is not None and kind.is_table


def _labelled(planned: Mapping[str, tuple[SplitInfo, DatasetConfig]]) -> list[str]:
    """The splits whose labels are classes of the model."""
    return [name for name, (info, _) in planned.items() if info.kind != "ood"]


def _selected(
    spec: DatasetConfig, source: ImageSource, names: ClassNames | None, num_classes: int | None, shares: HashShares
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
    images = Selected(source, places, None if labels is None else labels[places], own)
    if names is None or num_classes is None:
        return images
    mapped = images.labels
    if mapped is not None:
        mapped = names.mapped(mapped, spec, is_named=own is not None, ids=images.ids, num_classes=num_classes)
    return Selected(source, places, mapped, names.of_model)


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
