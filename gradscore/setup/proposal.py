"""What a first configuration says, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import FILL_IN
from ..data import NAME_CLASSES
from ..errors import ConfigError
from ..models import read_weights
from ..system import some
from .architectures import Architecture, class_count, input_channels, recognised, shapes_of, wrapper_prefix
from .folders import FACTORIES, Factory, Found, ImageSet, look
from .images import Parts, image_kind, parts_of
from .label_tables import with_tables
from .other_data import refuse_other_data
from .saved_classifiers import SavedClassifier, saved_classifier, text_sets


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What samples are called, where they lie, and what auxiliary sets are made of them by."""

    noun: str
    source: str
    auxiliary: Sequence[str]


IMAGES = _Kind(noun="images", source="folder", auxiliary=("mixup", "jigsaw"))
TEXTS = _Kind(noun="texts", source="csv", auxiliary=("shuffled_tokens", "swapped_fields"))


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


def propose(places: Sequence[Path], *, base: Path, progress: Callable[[str], None] | None = None) -> Proposal:
    """Looks at folders and checkpoints, and says what a configuration of them may say.

    Args:
        places: folders of images, of code and of weights, and files of weights.
        base: the folder of the configuration.
        progress: told what is being looked at.

    Returns:
        The settings, with what is still missing.

    Raises:
        ConfigError: a place does not exist, is a run folder, or holds nothing that is known, or other data than images
            and texts for a classifier of transformers.
        ModelError: a checkpoint that was named cannot be read.
    """
    found = look(places)
    if not (found.checkpoints or found.sets or found.factories or found.tables):
        raise ConfigError(
            f"{some([str(place) for place in places])}: there are no weights, no images, no tables and no Python code "
            "that builds a network; name the folder that has them"
        )
    saved = saved_classifier(found.checkpoints)
    if saved is not None and saved.takes_text:
        return _of_texts(base, found, saved)
    if not any(each.classes for each in found.sets):
        refuse_other_data(found, places)
    sets, remarks = with_tables(found.sets, found.tables, found.lists)
    made = Proposal(base, remarks=remarks)
    if saved is None:
        shapes, architecture = _propose_model(made, found, progress)
        _propose_preprocessing(made, found, shapes, architecture)
    else:
        shapes = _propose_saved(made, found, saved)
        if not (saved.folder / "preprocessor_config.json").is_file():  # which says what becomes of images
            _propose_preprocessing(made, found, shapes, None)
    _propose_data(made, parts_of(sets), IMAGES)
    _propose_features(made, shapes)
    made.put("run", _near(base / "run", base))
    return made


def _of_texts(base: Path, found: Found, saved: SavedClassifier) -> Proposal:
    sets, remarks = text_sets(found.tables, saved)
    made = Proposal(base, remarks=remarks)
    shapes = _propose_saved(made, found, saved)
    _propose_data(made, parts_of(sets), TEXTS)
    if saved.names is None and any(each.classes and not each.classes[0].isdigit() for each in sets):
        made.ask("data.class_names", "names of the network's classes in the order of its outputs; its folder has none")
    _propose_features(made, shapes)
    made.put("run", _near(base / "run", base))
    return made


def _propose_saved(made: Proposal, found: Found, saved: SavedClassifier) -> dict[str, tuple[int, ...]]:
    """Proposes a model that brings its weights, and what makes inputs of samples; returns its shapes."""
    made.put("model.source", f"transformers:{_near(saved.folder, made.base)}", "its folder has a config.json")
    made.put("model.checkpoint", None, "the folder brings its weights")
    made.put("model.num_classes", saved.count, "of its config.json")
    inside, others = (
        [path for path in found.checkpoints if (path.parent == saved.folder) is own] for own in (True, False)
    )
    made.remarks += [f"{len(others)} other checkpoints: {', '.join(map(str, others[:3]))}"] if others else []
    return shapes_of(read_weights(inside[0])) if len(inside) == 1 else {}


def _near(path: Path, base: Path) -> str:
    """A path relative to the folder of the configuration."""
    return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()


def _propose_model(
    made: Proposal, found: Found, progress: Callable[[str], None] | None
) -> tuple[dict[str, tuple[int, ...]], Architecture | None]:
    shapes: dict[str, tuple[int, ...]] = {}
    architecture, checkpoint, prefix = None, None, None
    if found.checkpoints:
        checkpoint, *more = found.checkpoints
        shapes = shapes_of(read_weights(checkpoint))
        prefix = wrapper_prefix(shapes)
        if prefix is not None:
            others = [name for name in shapes if not name.startswith(prefix)]
            shapes = {name.removeprefix(prefix): each for name, each in shapes.items() if name.startswith(prefix)}
        architecture = recognised(shapes, hint=checkpoint.stem, progress=progress)
        made.remarks += [f"{len(more)} other checkpoints: {', '.join(map(str, more[:3]))}"] if more else []
    counted = class_count(shapes)
    _propose_source(made, found.factories, architecture, classes=None if counted is None else counted[1])
    if checkpoint is None:
        made.ask("model.checkpoint", "the file of the trained weights (.pt, .pth, .safetensors)")
    else:
        made.put("model.checkpoint", _near(checkpoint, made.base))
        if prefix is not None:
            made.put("model.prefix", prefix, f"names of the network begin so in the checkpoint; others: {some(others)}")
    if counted is None:
        made.ask("model.num_classes", "how many classes the network tells apart")
    else:
        made.put("model.num_classes", counted[1], f"rows of {counted[0]}, the last weight")
    return shapes, architecture


def _propose_source(
    made: Proposal, factories: Sequence[Factory], architecture: Architecture | None, *, classes: int | None
) -> None:
    if architecture is not None:
        package = architecture.source.partition(":")[0]
        same = "; check: networks with the same parameters may differ in what has none" if package == "timm" else ""
        made.put("model.source", architecture.source, f"its parameters have these names and shapes{same}")
        made.put("model.arguments", {"num_classes": classes})
        return
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
        f"python:{_near(best.path, made.base)}:{best.name}",
        f"one of {len(factories)} functions that may build it; check" if len(factories) > 1 else "needs --trust-code",
    )
    if best.takes_classes and classes is not None:
        made.put("model.arguments", {"num_classes": classes})


def _propose_preprocessing(
    made: Proposal, found: Found, shapes: dict[str, tuple[int, ...]], architecture: Architecture | None
) -> None:
    kind = image_kind([file for each in found.sets for file in each.files])
    channels = input_channels(shapes)
    if channels in (1, 3):
        made.put("preprocessing.channels", channels, "of the first convolution")
    elif channels is None and kind is not None:
        channels = kind.channels
    if architecture is not None and architecture.preprocessing:
        why = f"of {architecture.origin}; check that the network was trained with it"
        for key, value in architecture.preprocessing.items():
            made.put(f"preprocessing.{key}", value, why)
            why = ""
        return
    if kind is None:
        made.remarks.append("no image was found, so preprocessing.resize is left out: images come as they are")
    elif kind.size is not None:
        made.put("preprocessing.resize", list(kind.size), f"all of {kind.looked_at} images have this size")
    else:
        made.ask("preprocessing.resize", f"[height, width]; images are from {kind.smallest} to {kind.largest}")
    for key in ("mean", "std"):
        made.ask(
            f"preprocessing.{key}",
            f"{key} of each channel in training, for values from 0 to 1, such as {[0.5] * (channels or 3)}; leave mean "
            "and std out if there was none",
        )


def _propose_data(made: Proposal, parts: Parts, kind: _Kind) -> None:
    made.remarks += parts.remarks
    for role, wanted in (
        ("fit", f"labelled {kind.noun} that did not train the network"),
        ("test", "others, for the report"),
    ):
        chosen = parts.roles.get(role)
        if chosen is None:
            made.ask(f"data.in_dist.{role}", f"{wanted}", value={"source": f"{kind.source}:{FILL_IN}"})
        else:
            entry = _entry(chosen.of, made.base, half=chosen.half)
            made.put(f"data.in_dist.{role}", entry, _why(chosen.of, chosen.why, kind))
    for role in ("calibration", "bank"):
        chosen = parts.roles.get(role)
        if chosen is not None:
            made.put(f"data.in_dist.{role}", _entry(chosen.of, made.base), _why(chosen.of, chosen.why, kind))
    made.put("data.ood", list(_ood(parts.ood, made.base, kind)))
    labelled = {chosen.of.path: chosen.of.empty for chosen in parts.roles.values()}
    made.remarks += [
        f"{path} has class folders without an image, which count as classes: {some(empty)}; remove those that are none "
        "of the network, or name its classes in their order in data.class_names"
        for path, empty in labelled.items()
        if empty
    ]
    known = parts.roles.get("fit")
    classes = made.settings["model.num_classes"]
    if known is not None and classes != FILL_IN and len(known.of.classes) != classes:
        there = "class folders" if known.of.kind == "folder" else "classes"
        made.remarks.append(
            f"{known.of.path} has {len(known.of.classes)} {there} and the network {classes} classes: {NAME_CLASSES}"
        )


def _propose_features(made: Proposal, shapes: dict[str, tuple[int, ...]]) -> None:
    """Asks for what strong baselines need, where the last weight is that of a linear layer, as far as one sees."""
    counted = class_count(shapes)
    if counted is not None and len(shapes[counted[0]]) == 2:
        made.put(
            "features.penultimate",
            True,
            f"also compare with knn, ViM and others; false if {counted[0]} is not what makes the logits",
        )


def _why(of: ImageSet, why: str, kind: _Kind) -> str:
    return f"{of.count} {kind.noun} of {len(of.classes)} classes{'; ' if why else ''}{why}"


def _entry(of: ImageSet, base: Path, *, half: tuple[float, float] | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": f"{of.kind}:{_near(of.path, base)}"}
    if of.arguments:
        entry["arguments"] = dict(of.arguments)
    return entry if half is None else {**entry, "select": {"hash": list(half)}}


def _ood(sets: Sequence[ImageSet], base: Path, kind: _Kind) -> Iterator[dict[str, Any]]:
    names: set[str] = set()
    for each in sets:
        called = each.path.name if each.arguments is None else each.path.stem
        name = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in called).strip("_") or "ood"
        while name in names:
            name += "_2"
        names.add(name)
        yield {"name": name, **_entry(each, base)}
    for made_by in kind.auxiliary:
        yield {"name": f"made_by_{made_by}", "source": f"synthetic:{made_by}", "auxiliary": True}
