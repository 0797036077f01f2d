"""What a first configuration says, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from ..config import as_flow, load_config
from ..data import FILL_IN, HOLDOUT, NAME_CLASSES
from ..errors import ConfigError, ModelError
from ..models import WEIGHT_SUFFIXES, StateDict, read_weights
from ..notices import Notice
from ..system import followed, some, write_text
from .architectures import (
    Architecture,
    class_count,
    input_channels,
    input_numbers,
    layers_of,
    recognised,
    shapes_of,
    unwrapped,
)
from .folders import (
    CLASSES,
    FACTORIES,
    TO_DECIDE,
    Factory,
    Found,
    SampleSet,
    SavedClassifier,
    image_sizes,
    labelled_alike,
    look,
    look_at_tables,
    saved_classifier,
)

Shapes = Mapping[str, tuple[int, ...]]

SOURCE = {"images": "folder", "texts": "csv", "rows": "csv", "arrays": "npz"}
"""Kind of source of samples, as far as their place is not known."""

WANTED = {
    "rows": "labelled rows (with arguments: {labels: COLUMN}, unless the column of labels is called label)",
    "arrays": "labelled arrays under the names of the parameters of forward",
    "samples": "labelled samples (folder:DIR of images, csv:FILE or npz:FILE; see gradscore docs data)",
}
"""Samples to ask for, where the noun alone does not say it."""

COLUMN = 48
"""Comments begin here where there is room."""

WIDEST = 120
"""Longer lines have their comment above them."""

HEAD = """# Written by gradscore init. gradscore docs configuration explains every key; paths are relative to this file.
"""

FEWEST_HELD_OUT = 80
"""Fewer than these are not held out; the samples to test set the thresholds instead."""

MOST_SETS = 20
"""More folders than this in one that is called OOD are the classes of one set."""

EXPLAINED = {
    "model": "the classifier",
    "preprocessing": "from a sample to what the network takes",
    "data": "sets of samples",
    "features": "what is computed of each sample",
}


@dataclass
class Proposal:
    """Settings of a first configuration.

    Attributes:
        base: the folder of the configuration, which its paths are relative to.
        settings: values by dotted key, in the order of the file; `FILL_IN` where a value is missing.
        reasons: why a value is what it is, by key.
        missing: what could not be found out, and what is wanted, by key.
        remarks: what the reader should know beside.
    """

    base: Path
    settings: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, why: str = "") -> None:
        """Sets a value, which is missing no longer, and why it is this one."""
        self.settings[key] = value
        self.missing.pop(key, None)
        if why:
            self.reasons[key] = why

    def ask(self, key: str, wanted: str, *, value: Any = FILL_IN) -> None:
        """Marks what could not be found out; `value` stands there until somebody says."""
        self.settings[key] = value
        self.missing[key] = wanted

    def near(self, path: Path) -> str:
        """A path relative to the folder of the configuration."""
        return Path(os.path.relpath(path.resolve(), self.base.resolve())).as_posix()


def propose(places: Sequence[Path], *, base: Path, progress: Callable[[str], None] | None = None) -> Proposal:
    """Looks at folders and checkpoints, and says what a configuration of them may say.

    Args:
        places: folders of images, of code and of weights, and files of weights.
        base: the folder of the configuration.
        progress: told what is being looked at.

    Returns:
        The settings, with what is still missing.

    Raises:
        ConfigError: a place does not exist, is a run folder, or holds nothing that is known.
        ModelError: no checkpoint can be read.
    """
    found = look(places)
    saved = saved_classifier(found.checkpoints)
    names = None if saved is None else saved.names
    tables, unused = look_at_tables(found.tables, names=names, texts=saved is not None)
    if saved is not None:
        noun = saved.takes
    else:
        there = {"images": found.images, **tables}
        noun = next((kind for kind in ("images", "rows", "arrays") if there.get(kind)), "samples")
    sets = [*(found.images if noun == "images" else ()), *tables.get(noun, ())]
    for kind, others in tables.items():
        why = f"the network is taken to be one for {noun}"
        if kind == "texts" and saved is None:
            why = (
                "no classifier of transformers is there; to a network of your own python:data.py:rows brings token ids "
                "(gradscore docs tutorial-text)"
            )
        unused += [f"{each.path}: not used: it holds {kind}, and {why}" for each in others if kind != noun]
    if not (found.checkpoints or found.programs or found.factories or sets):
        raise ConfigError(
            "; ".join(unused)
            or f"{some([str(place) for place in places])}: nothing to go by; wanted folders with the weights of a "
            f"network ({', '.join(WEIGHT_SUFFIXES)}, or what save_pretrained wrote), the Python code that builds "
            "it, and samples: images in folders of classes, tables (.csv, .parquet) of texts or numbers and labels, or "
            f"archives (.npz) of arrays{_of_pickle(found)}"
        )
    made = Proposal(base, remarks=unused)
    shapes: Shapes = {}
    architecture: Architecture | None = None
    class_names: tuple[str, ...] = ()
    likely = {len(_class_folders(each)) for each in sets if each.classes and each.role != "ood"}
    if saved is None and found.programs and not found.checkpoints:
        _propose_program(made, found.programs, likely)
    elif saved is None:
        shapes, architecture, class_names = _propose_model(made, found, likely, progress)
    else:
        shapes = _propose_saved(made, found, saved)
    if (count := made.settings["model.num_classes"]) != FILL_IN:
        sets = labelled_alike(sets, count)
    if noun == "samples":
        noun = _noun(shapes, found.tables, tables)
    if noun == "images" and not (saved and (saved.folder / "preprocessor_config.json").is_file()):
        _propose_preprocessing(made, found, sets, shapes, architecture)
    elif noun in ("rows", "samples"):
        _propose_levels(made, f"of each {'column' if noun == 'rows' else 'channel or column'} in training, a list")
    archives = {each.path for others in tables.values() for each in others if each.source == "npz"}
    _propose_data(made, sets, noun, class_names, [path for path in found.tables if path not in archives])
    if noun == "rows":
        _note_columns(made, sets, shapes)
    are_named = any(each.classes and not each.classes[0].isdigit() for each in sets)
    if noun == "texts" and saved and saved.names is None and are_named:
        made.ask("data.class_names", "names of the network's classes in the order of its outputs")
    made.put("run", made.near(base / "run"))
    return made


def _noun(shapes: Shapes, paths: Sequence[Path], tables: Mapping[str, object]) -> str:
    """Noun of what to ask for where no samples can be used: what the files there hold, else what the network takes."""
    if tables:
        return next(iter(tables))
    if paths:
        return "arrays" if all(path.suffix.lower() == ".npz" for path in paths) else "rows"
    return "images" if input_channels(shapes) in (1, 3) else "samples"


def _propose_saved(made: Proposal, found: Found, saved: SavedClassifier) -> Shapes:
    """Proposes a model that brings its weights, and what makes inputs of samples; returns its shapes."""
    made.put("model.source", f"transformers:{made.near(saved.folder)}", "its folder has a config.json")
    made.put("model.checkpoint", None, "the folder brings its weights")
    made.put("model.num_classes", saved.count, "of its config.json")
    inside = [path for path in found.checkpoints if path.parent == saved.folder]
    _note_others(made, saved.folder, [*(path for path in found.checkpoints if path not in inside), *found.programs])
    return shapes_of(read_weights(inside[0]).tensors) if len(inside) == 1 else {}


def _propose_program(made: Proposal, programs: Sequence[Path], likely: Collection[int]) -> None:
    """Proposes a program that brings its weights, with as many classes as samples have: it is not read."""
    made.put("model.source", f"program:{made.near(programs[0])}", "needs --trust-code")
    _note_others(made, programs[0], programs[1:])
    made.put("model.checkpoint", None, "the program brings its weights")
    _propose_classes(made, _only(likely), "of the samples; check")


def _only(likely: Collection[int]) -> int | None:
    """Number of classes, where all labelled sets have as many and a network may tell them apart."""
    return min(likely) if len(likely) == 1 and min(likely) > 1 else None


def _propose_classes(made: Proposal, classes: int | None, why: str) -> None:
    if classes is None:
        made.ask("model.num_classes", "how many classes the network tells apart")
    else:
        two = "; one logit for two classes: a regression is not supported" if classes == 1 else ""
        made.put("model.num_classes", classes, f"{why}{two}")


def _of_pickle(found: Found) -> str:
    return "".join(
        f"; {path} may hold the weights: load it as you do in training, and torch.save(network.state_dict(), "
        f"'{path.stem}.pt')"
        for path in found.pickles[:1]
    )


def _note_others(made: Proposal, taken: Path, others: Sequence[Path]) -> None:
    if others:
        made.remarks.append(f"weights: {taken} was taken, not {some([str(path) for path in others])}")


def _read_one(made: Proposal, path: Path, *others: Path, programs: Sequence[Path]) -> tuple[Path, StateDict]:
    """The first checkpoint that can be read, and what it holds; remarks say which could not, or were not."""
    try:
        weights = read_weights(path)
    except ModelError as error:
        if not others:
            raise
        made.remarks.append(f"passed over: {str(error).partition('; ')[0]}")
        return _read_one(made, *others, programs=programs)
    _note_others(made, path, [*others, *programs])
    return path, weights


def _propose_model(
    made: Proposal, found: Found, likely: Collection[int], progress: Callable[[str], None] | None
) -> tuple[Shapes, Architecture | None, tuple[str, ...]]:
    """Proposes the network and its weights; returns its shapes, what it is of a package, and names of its classes."""
    shapes: Shapes = {}
    own: list[Factory] = []
    names: tuple[str, ...] = ()
    architecture, checkpoint = None, None
    prefixes: tuple[str, ...] = ()
    if found.checkpoints:
        checkpoint, weights = _read_one(made, *found.checkpoints, programs=found.programs)
        names, state = weights.class_names or (), shapes_of(weights.tensors)
        shapes, prefixes = unwrapped(state, parts=[each.parts for each in found.factories])
        layers = layers_of(shapes if prefixes else state)
        own = [each for each in found.factories if layers <= each.parts]
        if shapes != state or all(each.required for each in own):  # else the network is code that is here
            architecture = recognised(shapes, hint=checkpoint.stem, progress=progress)
    counted = (architecture and architecture.logits) or class_count(shapes, likely=[len(names)] if names else likely)
    classes, why = (
        (_only(likely), "of the samples; check") if counted is None else (counted[1], f"rows of {counted[0]}")
    )
    if architecture is not None:
        check = "; check: others have the same, see above" if architecture.others else ""
        made.put("model.source", architecture.source, f"its parameters have these names and shapes{check}")
        if architecture.others:
            said = (
                f"model.source: check that it is {architecture.source}: parameters of the same names and shapes are in "
                f"{some(architecture.others)}, which may want another mean and std, or pad otherwise"
            )
            made.remarks.append(Notice(said, "caution"))
        made.put("model.arguments", {"num_classes": classes})
    else:
        _propose_code(made, found.factories, own, classes)
    if checkpoint is None:
        made.ask("model.checkpoint", f"the file of the trained weights (.pt, .pth, .safetensors){_of_pickle(found)}")
    else:
        made.put("model.checkpoint", made.near(checkpoint))
        if len(prefixes) == 1:
            made.put(
                "model.prefix",
                prefixes[0],
                "names of the network begin so in the checkpoint, others are of the training",
            )
        elif prefixes:
            named = " or ".join(map(repr, prefixes))
            made.ask("model.prefix", f"what names of the network begin with in the checkpoint, {named}")
    _propose_classes(made, classes, why)
    return shapes, architecture, names if len(names) == classes else ()


def _propose_code(
    made: Proposal, factories: Sequence[Factory], fitting: Sequence[Factory], classes: int | None
) -> None:
    """Proposes one of the classes that call their layers as the weights are called; else what takes no arguments."""
    possible = fitting or [each for each in factories if not each.required]
    if not possible:
        made.ask(
            "model.source",
            "python:FILE.py:NAME of a class or function that makes the network; none of torchvision or timm has these "
            "parameters",
        )
        return
    order = {name: place for place, name in enumerate(FACTORIES)}
    best = min(possible, key=lambda each: (order.get(each.name, len(order)), bool(each.parts)))
    why = "its layers are called as the weights are; " if fitting else ""
    doubt = f"one of {len(possible)} functions and classes that may build it; check; " if len(possible) > 1 else ""
    made.put("model.source", f"python:{made.near(best.path)}:{best.name}", f"{why}{doubt}needs --trust-code")
    if best.required:
        made.ask(
            "model.arguments",
            f"what {best.name} is made with, {{{', '.join(f'{each}: ...' for each in best.required)}}}",
        )
    elif best.takes_classes and classes is not None:
        made.put("model.arguments", {CLASSES: classes})


def _propose_preprocessing(
    made: Proposal, found: Found, sets: Sequence[SampleSet], shapes: Shapes, architecture: Architecture | None
) -> None:
    channels = input_channels(shapes)
    if channels in (1, 3):
        made.put("preprocessing.channels", channels, "of the first convolution")
    if architecture is not None and architecture.preprocessing:
        why = f"of {architecture.origin}; {TRAINED_SO}"
        for key, value in architecture.preprocessing.items():
            made.put(f"preprocessing.{key}", value, why)
            why = ""
        return
    sizes = image_sizes([file for each in found.images for file in each.files])
    if not (sizes or sets):
        made.remarks.append("no image was found, so preprocessing.resize is left out: images come as they are")
    elif len(set(sizes)) == 1:
        made.put("preprocessing.resize", list(sizes[0]), f"all of {len(sizes)} images have this size; {TRAINED_SO}")
    elif sizes:
        smallest, largest = (f"{height} x {width}" for height, width in (sizes[0], sizes[-1]))
        made.ask("preprocessing.resize", f"[height, width]; images are from {smallest} to {largest}")
    _propose_levels(made, f"of each channel in training, for values from 0 to 1, such as {[0.5] * (channels or 1)}")


def _propose_levels(made: Proposal, of_what: str) -> None:
    for key in ("mean", "std"):
        made.ask(f"preprocessing.{key}", f"{key} {of_what}; null if there was none")


def _propose_data(
    made: Proposal, sets: Sequence[SampleSet], noun: str, class_names: Collection[str], tables: Sequence[Path]
) -> None:
    """Deals sets out to parts.

    The known classes are those the checkpoint names, where a labelled set has no others; else those of one of the
    labelled sets with as many classes as the network (`_main`), and those that it lacks (`_lacking`). Sets without
    others are in-distribution, and what their names do not say of their part goes to `fit` and `test`. Sets without any
    of them are out of distribution, unless they are called as a part is.
    """
    called = "samples" if noun == "arrays" else noun
    labelled = [each for each in sets if each.classes and each.role != "ood"]
    are_named = any(set(each.classes) <= set(class_names) for each in labelled)
    fitting = [each for each in labelled if len(each.classes) == made.settings["model.num_classes"]]
    known = set(class_names if are_named else _main(fitting or labelled).classes) if labelled else set()
    if not are_named:
        known |= _lacking(labelled, known, made.settings["model.num_classes"])
    in_dist = [each for each in labelled if known.issuperset(each.classes)]
    above = {each.path: _above(each, tables) for each in sets}
    numbered = [each for each in sets if each not in in_dist and _may_number(each, known)]
    ood = [
        each for each in sets if each not in (*in_dist, *numbered) and _is_ood(each, known) and above[each.path] is None
    ]
    parts = _dealt(in_dist)
    for each in sets:
        if each not in ood and all(each is not part.samples for part in parts.values()):
            lacking = "it has other classes" if each.classes else f"its {called} have no classes"
            if each.may_label:
                lacking += f", unless {some(list(each.may_label))} holds them: then {NAME_LABELS}"
            lacking = f"{table} may hold their labels" if (table := above[each.path]) else lacking
            lacking = f"its classes are numbers, which {MAY_NUMBER}" if each in numbered else lacking
            lacking = SCORED if each.name.lower() in TO_DECIDE else lacking
            why = "another set is for the same part" if each in in_dist else lacking
            made.remarks.append(f"{each.path}: not used, since {why}; {NAME_AS_OOD}")
    asked, kind = WANTED.get(noun, f"labelled {noun}"), SOURCE.get(noun)
    if noun == "texts" and not str(made.settings["model.source"]).startswith("transformers:"):
        asked, kind = "token ids of labelled texts, from code of yours (gradscore docs tutorial-text)", "python"
    wanted = {"fit": f"{asked} that did not train the network", "test": "others, for the report"}
    for role in ("fit", "test", "calibration", "bank"):
        key = f"data.in_dist.{role}"
        if role in parts:
            part = parts[role]
            guess = "".join(
                f"; {text} column {name!r}, check"
                for what, text in MEANT.items()
                if (name := part.samples.columns.get(what))
            )
            select = {"select": part.select} if part.select else {}
            why = f"{part.samples.count} {called} of {len(part.samples.classes)} classes{part.why}{guess}"
            made.put(key, {**_entry(made, part.samples, is_first=role == "fit"), **select}, why)
        elif role in wanted:
            made.ask(key, wanted[role], value={"source": FILL_IN if kind is None else f"{kind}:{FILL_IN}"})
    if are_named:
        made.put("data.class_names", list(class_names), "of the checkpoint, in the order of the outputs")
    elif labelled and labelled[0].is_table and known == {str(number) for number in range(1, len(known) + 1)}:
        made.put("data.class_names", sorted(map(int, known)), "labels count from 1")
    ood = [part for each in ood for part in (each.by_class if _holds_sets(each, known) else [each])]
    counts = ", ".join(f"{each.count} {called}" for each in ood)
    made.put("data.ood", list(_ood(made, ood)), f"{counts}; check that they are of none of the classes" if ood else "")
    made.put(
        "data.auxiliary", "auto", f"OOD sets made of the {called} to fit on, fitted on and not reported; [] for none"
    )
    if "fit" in parts and (left_out := parts["fit"].samples.left_out):
        made.remarks.append(f"{parts['fit'].samples.path}: left out of the rows: {some(list(left_out))}; {BY_CODE}")
    if not are_named:
        for samples in {part.samples.path: part.samples for part in parts.values()}.values():
            _note_empty(made, samples)
        if "fit" in parts:
            _note_classes(made, parts["fit"].samples, [part.samples for part in parts.values()], class_names)


@dataclass(frozen=True)
class _Part:
    """Samples of a set that are for one part: which of them, and why."""

    samples: SampleSet
    why: str = ""
    select: dict[str, list[float]] = field(default_factory=dict)


def _dealt(in_dist: Sequence[SampleSet]) -> dict[str, _Part]:
    """In-distribution sets by the part that they are for; one that has to be for several is divided."""
    sets = {each.role: each for each in reversed(in_dist) if each.role is not None}
    rest = [each for each in in_dist if each.role is None]
    for role in ("fit", "test"):
        if role not in sets and rest:
            sets[role] = rest.pop(0)
    parts = {role: _Part(each) for role, each in sets.items()}
    if "fit" in sets and "test" in sets:
        parts["fit"] = _Part(sets["fit"], f"; {NOT_TRAINED}")
    elif only := next((sets[role] for role in ("fit", "test", "bank") if role in sets), None):
        why = "it trained the network, so figures are too good: give others" if only.role == "bank" else NOT_TRAINED
        parts["fit"] = _Part(only, f"; one half by content; {why}", {"hash": [0.0, 0.5]})
        parts["test"] = _Part(only, f"; the other; {why}", {"hash": [0.5, 1.0]})
    if "fit" in parts and "calibration" not in parts:
        parts |= _held_out(parts["fit"])
    if "calibration" not in parts and "test" in parts:
        why = f"{parts['test'].why}; sets thresholds as well, since few are to fit on"
        parts["test"] = replace(parts["test"], why=why)
    return parts


def _held_out(fit: _Part) -> dict[str, _Part]:
    """Has a share of the samples to fit on set thresholds, as `Detector.fit` does, where it is large enough to."""
    low, high = fit.select.get("hash", (0.0, 1.0))
    if fit.samples.count * (high - low) * HOLDOUT < FEWEST_HELD_OUT:
        return {}
    whole = "the half to fit on" if fit.select else "them"
    fits, calibrates = {**fit.select, "lot": [0.0, 1 - HOLDOUT]}, {**fit.select, "lot": [1 - HOLDOUT, 1.0]}
    return {
        "fit": _Part(fit.samples, f"; three quarters of {whole}, at random{fit.why}", fits),
        "calibration": _Part(fit.samples, f"; the other quarter of {whole}, sets thresholds", calibrates),
    }


FEW_COLUMNS = 3
"""A network that takes so many more numbers than a row has, or fewer, is one for such rows."""

MOST_COLUMNS = 30
"""So many columns are named."""

BY_CODE = "python:data.py:rows brings rows that need code of your own, see gradscore docs data"

MEANT = {"labels": "classes of", "ids": "names of samples of"}

TRAINED_SO = "check that the network was trained with it"

NOT_TRAINED = "must not have trained the network"

SCORED = "by its name it holds samples to decide, which gradscore score does"

MAY_NUMBER = "may be those of the network's classes; name it in data.in_dist if they are"

NAME_LABELS = "name it in data.in_dist with arguments: {labels: COLUMN}"

NAME_AS_OOD = "name it in data.ood if its samples are of none of the network's classes"


def _main(sets: Sequence[SampleSet]) -> SampleSet:
    """The set that has the known classes: others have no more than its, and its name says what it is for."""

    def rank(of: SampleSet) -> tuple[int, bool, int]:
        within = sum(set(each.classes) <= set(of.classes) for each in sets)
        return within, of.role is not None, of.count

    return max(sets, key=rank)


def _lacking(labelled: Sequence[SampleSet], known: Collection[str], count: int | str) -> set[str]:
    """Classes of sets that are called as a part is and have most classes in common with the known ones.

    A split may have no sample of a class. There are none where all together are more than the network's.
    """
    alike = [each for each in labelled if each.role and 2 * len({*each.classes} & {*known}) > len(each.classes)]
    found = {name for each in alike for name in each.classes} - {*known}
    return found if isinstance(count, str) or len(known) + len(found) <= count else set()


def _is_ood(of: SampleSet, known: Collection[str]) -> bool:
    """Whether a set that is not in-distribution is taken as out of distribution, by its name and its classes."""
    if of.name.lower() in TO_DECIDE:
        return False
    return of.role == "ood" if of.role is not None or not known else not set(of.classes) & set(known)


def _above(of: SampleSet, tables: Sequence[Path]) -> Path | None:
    """A table beside or above images without classes: it may say theirs, which the network may then know."""
    if of.is_table or of.classes or of.role == "ood":
        return None
    return next((table for table in tables if of.path.resolve().is_relative_to(table.parent.resolve())), None)


def _may_number(of: SampleSet, known: Collection[str]) -> bool:
    """Whether the classes of a file of samples are numbers that may be those of known classes that have names."""
    numbers = {str(place) for place in range(len(known))}
    return of.is_table and of.role != "ood" and of.classes != () and {*of.classes} <= numbers


def _holds_sets(of: SampleSet, known: Collection[str]) -> bool:
    """Whether the folders in one that is called OOD are sets of their own, not classes of one set."""
    is_split = of.role == "ood" and not of.is_table and 0 < len(of.classes) <= MOST_SETS
    return is_split and not {*of.classes} & {*known}


def _class_folders(of: SampleSet) -> set[str]:
    """Names of the classes of a set, as its source has them: those of folders without an image are among them."""
    names = set() if of.is_table else {path.name for path in of.path.iterdir() if path.is_dir()}
    return {*of.classes, *(name for name in names if not name.startswith("."))}


def _note_empty(made: Proposal, of: SampleSet) -> None:
    if empty := sorted(_class_folders(of) - {*of.classes}):
        made.remarks.append(
            f"{of.path} has class folders without an image, which count as classes: {some(empty)}; remove those that "
            "are none of the network's, or name its classes in their order in data.class_names"
        )


def _note_classes(made: Proposal, fit: SampleSet, parts: Sequence[SampleSet], class_names: Collection[str]) -> None:
    """Says where the classes of in-distribution samples are not those of the network, or may be in another order."""
    classes = made.settings["model.num_classes"]
    names = {name for each in parts for name in _class_folders(each)}
    paths = dict.fromkeys(str(each.path) for each in parts)
    have = f"{fit.path} has" if names == _class_folders(fit) else f"{' and '.join(paths)} have"
    if classes != FILL_IN and len(names) != max(classes, 2):
        made.remarks.append(
            f"{have} {len(names)} {'classes' if fit.is_table else 'class folders'} and the network {classes} classes: "
            f"{NAME_CLASSES}"
        )
    elif class_names and not all(name.isdigit() for name in fit.classes):
        made.remarks.append(
            f"the checkpoint names the classes {some(list(class_names))}, and {fit.path} has "
            f"{some(list(fit.classes))}: {NAME_CLASSES}"
        )


def _note_columns(made: Proposal, sets: Sequence[SampleSet], shapes: Shapes) -> None:
    """Says where rows have a few numbers more or fewer than the first weight takes, as with weights of the samples."""
    first = input_numbers(shapes)
    of = next((each for each in sets if each.inputs), None)
    if first is not None and of is not None and 0 < abs(len(of.inputs) - first[1]) <= FEW_COLUMNS:
        (name, taken), columns = first, some(list(of.inputs), MOST_COLUMNS)
        made.remarks.append(
            f"{of.path} has {len(of.inputs)} columns of numbers ({columns}), and {name} takes {taken}: name those that "
            "the network takes, in order, by arguments: {inputs: [COLUMN, ...]} of data.in_dist.fit"
        )


def _entry(made: Proposal, of: SampleSet, *, is_first: bool = False) -> dict[str, Any]:
    """The source of a set; in the one to fit on, which is read first, the columns that all others are to have."""
    columns = {what: name for what, name in of.columns.items() if is_first or what != "inputs"}
    return {"source": f"{of.source}:{made.near(of.path)}", **({"arguments": columns} if columns else {})}


def _ood(made: Proposal, sets: Sequence[SampleSet]) -> Iterator[dict[str, Any]]:
    names: set[str] = set()
    for each in sets:
        name = re.sub("[^A-Za-z0-9]", "_", each.name).strip("_") or "ood"
        while name in names:
            name += "_2"
        names.add(name)
        yield {"name": name, **_entry(made, each)}


def as_yaml(proposal: Proposal) -> str:
    """The text of the configuration, with reasons as comments, and what is missing marked."""
    lines = [HEAD, *(f"{_line('', remark).strip()}\n" for remark in proposal.remarks)]
    above: list[str] = []
    for key, value in proposal.settings.items():
        *sections, name = key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(_line(f"{'  ' * depth}{section}:", EXPLAINED.get(".".join(sections[: depth + 1]), "")))
        above = sections
        indent = "  " * len(sections)
        missing = proposal.missing.get(key)
        comment = proposal.reasons.get(key, "") if missing is None else f"FILL IN: {missing}"
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(_line(f"{indent}{name}:", comment))
            lines += [f"{indent}  - {as_flow(entry)}\n" for entry in value]
        else:
            lines.append(_line(f"{indent}{name}: {as_flow(value)}", comment))
    return "".join(lines)


def write_proposal(proposal: Proposal, path: Path) -> None:
    """Writes the configuration.

    Raises:
        OutputError: it cannot be written.
        ConfigError: nothing is missing, and the settings do not fit together.
    """
    write_text(followed(path), as_yaml(proposal))
    if not proposal.missing:
        load_config(path)


def _line(text: str, comment: str) -> str:
    comment = " ".join(comment.split())  # names of files may have line breaks, which would end it
    line = f"{text:<{COLUMN}} # {comment}"
    if len(line) <= WIDEST:
        return f"{line}\n" if comment else f"{text}\n"
    indent = text[: len(text) - len(text.lstrip())]
    return f"{fill(comment, WIDEST, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# ')}\n{text}\n"
