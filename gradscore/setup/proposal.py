"""What a first configuration says, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from ..config import FILL_IN, load_config
from ..data import NAME_CLASSES
from ..errors import ConfigError, OutputError
from ..models import read_weights
from ..system import some, write_text
from .architectures import Architecture, class_count, input_channels, recognised, shapes_of, unwrapped
from .folders import (
    FACTORIES,
    Factory,
    Found,
    SampleSet,
    SavedClassifier,
    image_sizes,
    look,
    look_at_tables,
    saved_classifier,
)

Shapes = Mapping[str, tuple[int, ...]]

AUXILIARY = {"images": ("mixup", "jigsaw"), "texts": ("shuffled_tokens", "swapped_fields")}
"""Auxiliary sets that are made of samples."""

SOURCE = {"images": "folder", "texts": "csv"}
"""Where samples lie, as far as it is not known."""

COLUMN = 48
"""Comments begin here where there is room."""

WIDEST = 120
"""Longer lines have their comment above them."""

HEAD = """# Written by gradscore init. docs/configuration.md explains every key; paths are relative to this file.
"""

EXPLAINED = {
    "model": "the classifier",
    "preprocessing": "from an image to what the network takes",
    "data": "sets of samples",
    "features": "what is computed of each sample",
    "data.ood": "samples that are none of the classes; auxiliary ones are made of those to fit on and not reported",
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
        """Sets a value."""
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
        ModelError: a checkpoint that was named cannot be read.
    """
    found = look(places)
    if not (found.checkpoints or found.images or found.factories or found.tables):
        raise ConfigError(
            f"{some([str(place) for place in places])}: there are no weights, no images, no tables and no Python code "
            "that builds a network; name the folder that has them"
        )
    saved = saved_classifier(found.checkpoints)
    noun = "texts" if saved is not None and saved.takes_text else "images"
    tables = look_at_tables(found.tables, texts=noun == "texts")
    if not (found.checkpoints or found.images or found.factories or tables.sets):
        raise ConfigError("; ".join(tables.unused.values()))
    made = Proposal(base)
    sets = [*found.images, *tables.sets] if noun == "images" else tables.sets
    silent: list[Path] = []
    if noun == "images" and found.images:
        silent = tables.of_numbers  # beside images a history of training is no matter
        naming = [each.path for each in tables.sets] + [path for path in tables.unused if path not in silent]
        sets = [each for each in sets if not _may_be_named(made, each, naming)]
    made.remarks += [reason for path, reason in tables.unused.items() if path not in silent]
    if saved is None:
        shapes, architecture = _propose_model(made, found, progress)
    else:
        shapes, architecture = _propose_saved(made, found, saved), None
    if noun == "images" and not (saved and (saved.folder / "preprocessor_config.json").is_file()):
        _propose_preprocessing(made, found, shapes, architecture)
    _propose_data(made, sets, noun)
    are_named = any(each.classes and not each.classes[0].isdigit() for each in sets)
    if noun == "texts" and saved and saved.names is None and are_named:
        made.ask("data.class_names", "names of the network's classes in the order of its outputs")
    counted = class_count(shapes)
    if counted is not None and len(shapes[counted[0]]) == 2:  # a linear layer, as far as one sees
        made.put(
            "features.penultimate",
            True,
            f"also compare with knn, ViM and others; false if {counted[0]} is not what makes the logits",
        )
    made.put("run", made.near(base / "run"))
    return made


def _may_be_named(made: Proposal, images: SampleSet, tables: Sequence[Path]) -> bool:
    """Whether a table above images without classes may say theirs: then they may well be what the network knows."""
    above = [path for path in tables if images.path.resolve().is_relative_to(path.parent.resolve())]
    if images.is_table or images.classes or images.role == "ood" or not above:
        return False
    made.remarks.append(
        f"{images.path}: not used, since {above[0]} may have the classes of these images; name it in data.ood if they "
        "are of none of the network's classes"
    )
    return True


def _propose_saved(made: Proposal, found: Found, saved: SavedClassifier) -> Shapes:
    """Proposes a model that brings its weights, and what makes inputs of samples; returns its shapes."""
    made.put("model.source", f"transformers:{made.near(saved.folder)}", "its folder has a config.json")
    made.put("model.checkpoint", None, "the folder brings its weights")
    made.put("model.num_classes", saved.count, "of its config.json")
    inside = [path for path in found.checkpoints if path.parent == saved.folder]
    _note_others(made, [path for path in found.checkpoints if path not in inside])
    return shapes_of(read_weights(inside[0])) if len(inside) == 1 else {}


def _note_others(made: Proposal, checkpoints: Sequence[Path]) -> None:
    if checkpoints:
        made.remarks.append(f"{len(checkpoints)} other checkpoints: {some([str(path) for path in checkpoints])}")


def _propose_model(
    made: Proposal, found: Found, progress: Callable[[str], None] | None
) -> tuple[Shapes, Architecture | None]:
    shapes: Shapes = {}
    architecture, checkpoint, prefix = None, None, None
    if found.checkpoints:
        checkpoint = found.checkpoints[0]
        shapes = shapes_of(read_weights(checkpoint))
        shapes, prefix = unwrapped(shapes)
        architecture = recognised(shapes, hint=checkpoint.stem, progress=progress)
        _note_others(made, found.checkpoints[1:])
    counted = class_count(shapes)
    classes = None if counted is None else counted[1]
    if architecture is not None:
        same = "; check: networks with the same parameters may differ in what has none"
        is_timm = architecture.source.startswith("timm:")
        made.put(
            "model.source", architecture.source, f"its parameters have these names and shapes{same if is_timm else ''}"
        )
        made.put("model.arguments", {"num_classes": classes})
    else:
        _propose_code(made, found.factories, classes)
    if checkpoint is None:
        made.ask("model.checkpoint", "the file of the trained weights (.pt, .pth, .safetensors)")
    else:
        made.put("model.checkpoint", made.near(checkpoint))
        if prefix is not None:
            made.put(
                "model.prefix", prefix, "names of the network begin so in the checkpoint, others are of the training"
            )
    if counted is None:
        made.ask("model.num_classes", "how many classes the network tells apart")
    else:
        made.put("model.num_classes", classes, f"rows of {counted[0]}, the last weight")
    return shapes, architecture


def _propose_code(made: Proposal, factories: Sequence[Factory], classes: int | None) -> None:
    if not factories:
        made.ask(
            "model.source",
            "python:FILE.py:FUNCTION that returns the network; no network of torchvision or timm has these parameters",
        )
        return
    order = {name: place for place, name in enumerate(FACTORIES)}
    best = min(factories, key=lambda each: order.get(each.name, len(order)))
    made.put(
        "model.source",
        f"python:{made.near(best.path)}:{best.name}",
        f"one of {len(factories)} functions that may build it; check" if len(factories) > 1 else "needs --trust-code",
    )
    if best.takes_classes and classes is not None:
        made.put("model.arguments", {"num_classes": classes})


def _propose_preprocessing(made: Proposal, found: Found, shapes: Shapes, architecture: Architecture | None) -> None:
    channels = input_channels(shapes)
    if channels in (1, 3):
        made.put("preprocessing.channels", channels, "of the first convolution")
    if architecture is not None and architecture.preprocessing:
        why = f"of {architecture.origin}; check that the network was trained with it"
        for key, value in architecture.preprocessing.items():
            made.put(f"preprocessing.{key}", value, why)
            why = ""
        return
    sizes = image_sizes([file for each in found.images for file in each.files])
    if not sizes:
        made.remarks.append("no image was found, so preprocessing.resize is left out: images come as they are")
    elif len(set(sizes)) == 1:
        made.put("preprocessing.resize", list(sizes[0]), f"all of {len(sizes)} images have this size")
    else:
        smallest, largest = (f"{height} x {width}" for height, width in (sizes[0], sizes[-1]))
        made.ask("preprocessing.resize", f"[height, width]; images are from {smallest} to {largest}")
    for key in ("mean", "std"):
        made.ask(
            f"preprocessing.{key}",
            f"{key} of each channel in training, for values from 0 to 1, such as {[0.5] * (channels or 1)}; leave mean "
            "and std out if there was none",
        )


def _propose_data(made: Proposal, sets: Sequence[SampleSet], noun: str) -> None:
    """Deals sets out to parts.

    The labelled set with most samples has the classes; those with some of these classes are in-distribution, too, and
    what their names do not say of their part goes to `fit` and `test`. Others are out of distribution, unless they are
    called as a part is.
    """
    labelled = [each for each in sets if each.classes and each.role != "ood"]
    known = set(max(labelled, key=lambda each: each.count).classes) if labelled else set()
    in_dist = [each for each in labelled if known & set(each.classes)]
    ood = [each for each in sets if each not in in_dist and (each.role == "ood" or (known and each.role is None))]
    parts: dict[str, SampleSet] = {}
    for each in in_dist:
        parts.setdefault(each.role or "", each)
    parts.pop("", None)
    rest = [each for each in in_dist if each not in parts.values()]
    for role in ("fit", "test"):
        spare = next((each for each in rest if each.role != "bank"), None)
        if role not in parts and spare is not None:
            parts[role] = spare
            rest.remove(spare)
    for each in sets:
        if each in rest:
            made.remarks.append(f"{each.path}: not used; another set is for the same part")
        elif each not in in_dist and each not in ood:
            lacking = "it has other classes" if each.classes and known else f"its {noun} have no classes"
            made.remarks.append(f"{each.path}: not used, since {lacking}")
    entries = {role: (_entry(made, each), "") for role, each in parts.items()}
    if ("fit" in parts) != ("test" in parts) or ("bank" in parts and "fit" not in parts):
        only = next(parts[role] for role in ("fit", "test", "bank") if role in parts)
        why = "it trained the network, so figures are too good: give others" if only.role == "bank" else NOT_TRAINED
        for role, half, which in (("fit", [0.0, 0.5], "one half by content; "), ("test", [0.5, 1.0], "the other; ")):
            parts[role] = only
            entries[role] = ({**_entry(made, only), "select": {"hash": half}}, f"; {which}{why}")
    elif "fit" in parts:
        entries["fit"] = (_entry(made, parts["fit"]), f"; {NOT_TRAINED}")
    wanted = {"fit": f"labelled {noun} that did not train the network", "test": "others, for the report"}
    for role in ("fit", "test", "calibration", "bank"):
        key = f"data.in_dist.{role}"
        if role in parts:
            entry, why = entries[role]
            made.put(key, entry, f"{parts[role].count} {noun} of {len(parts[role].classes)} classes{why}")
        elif role in wanted:
            made.ask(key, wanted[role], value={"source": f"{SOURCE[noun]}:{FILL_IN}"})
    made.put("data.ood", list(_ood(made, ood, noun)))
    _note_classes(made, parts)


NOT_TRAINED = "must not have trained the network"


def _note_classes(made: Proposal, parts: Mapping[str, SampleSet]) -> None:
    for each in dict.fromkeys(parts.values()):
        if each.empty:
            made.remarks.append(
                f"{each.path} has class folders without an image, which count as classes: {some(each.empty)}; remove "
                "those that are none of the network, or name its classes in their order in data.class_names"
            )
    classes = made.settings["model.num_classes"]
    if "fit" in parts and classes != FILL_IN and len(parts["fit"].classes) != classes:
        fit = parts["fit"]
        made.remarks.append(
            f"{fit.path} has {len(fit.classes)} {'classes' if fit.is_table else 'class folders'} and the network "
            f"{classes} classes: {NAME_CLASSES}"
        )


def _entry(made: Proposal, of: SampleSet) -> dict[str, Any]:
    return {"source": f"{of.source}:{made.near(of.path)}"}


def _ood(made: Proposal, sets: Sequence[SampleSet], noun: str) -> Iterator[dict[str, Any]]:
    names: set[str] = set()
    for each in sets:
        called = each.path.stem if each.is_table else each.path.name
        name = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in called).strip("_") or "ood"
        while name in names:
            name += "_2"
        names.add(name)
        yield {"name": name, **_entry(made, each)}
    for kind in AUXILIARY[noun]:
        yield {"name": f"made_by_{kind}", "source": f"synthetic:{kind}", "auxiliary": True}


def as_yaml(proposal: Proposal) -> str:
    """The text of the configuration, with reasons as comments, and what is missing marked."""
    lines = [HEAD, *(_line("", remark).lstrip() for remark in proposal.remarks)]
    above: list[str] = []
    for key, value in proposal.settings.items():
        *sections, name = key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(_line(f"{'  ' * depth}{section}:", EXPLAINED.get(".".join(sections[: depth + 1]), "")))
        above = sections
        indent = "  " * len(sections)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(_line(f"{indent}{name}:", EXPLAINED.get(key, "")))
            lines += [f"{indent}  - {_flow(entry)}\n" for entry in value]
            continue
        missing = proposal.missing.get(key)
        comment = proposal.reasons.get(key, "") if missing is None else f"FILL IN: {missing}"
        lines.append(_line(f"{indent}{name}: {_flow(value)}", comment))
    return "".join(lines)


def write_proposal(proposal: Proposal, path: Path, *, force: bool = False) -> None:
    """Writes the configuration.

    Args:
        proposal: what it says.
        path: the file.
        force: replace a file that is there.

    Raises:
        OutputError: there is a file already, or it cannot be written.
        ConfigError: nothing is missing, and the settings do not fit together.
    """
    if path.exists() and not force:
        raise OutputError(f"{path}: there is a file already; name another with --out, or replace it with --force")
    text = as_yaml(proposal)
    write_text(path, text)
    if not proposal.missing:
        load_config(path)


def _line(text: str, comment: str) -> str:
    comment = " ".join(comment.split())  # names of files may have line breaks, which would end it
    line = f"{text:<{COLUMN}} # {comment}"
    if len(line) <= WIDEST:
        return f"{line}\n" if comment else f"{text}\n"
    indent = text[: len(text) - len(text.lstrip())]
    return f"{fill(comment, WIDEST, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# ')}\n{text}\n"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
