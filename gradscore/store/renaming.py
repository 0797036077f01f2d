"""The names of classes that would make a network right: whether there are such, and what to set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import yaml

from ..system import IntArray, some
from .agreement import confusion

EVERYWHERE = " in data.in_dist.fit, data.in_dist.test and every other set with these labels, in place of any there is"
"""Where an advised map belongs if one split speaks for all."""

RELABELLED = 0.8
"""Share of the inputs that the best renaming of the classes must get right to be suggested.

With its pixels inverted, which no renaming repairs, the digits model reaches 0.6; with classes in another order, 0.93.
"""


def renaming_advice(
    labels: IntArray, predictions: IntArray, *, classes: int, label_map: Mapping[int | str, int] | None = None
) -> str:
    """What to set `label_map` to, where the network is right about classes that only have other names.

    Args:
        labels: (N,) of samples that have one, as they are mapped now.
        predictions: (N,).
        classes: K.
        label_map: from the labels of the data to `labels`, as `raw_labels` gives it; None where they are the same.

    Returns:
        A sentence with the whole map, which says something of every label, but not where it belongs; empty where no
        renaming repairs enough.
    """
    counts = confusion(labels, predictions, classes)
    seen = {label: int(counts[label].argmax()) for label in range(classes) if counts[label].any()}
    distinct = len(set(seen.values())) == len(seen) > 1
    renamed = any(label != found for label, found in seen.items())
    if not distinct or not renamed or counts.max(1).sum() < RELABELLED * len(labels):
        return ""
    own: dict[int | str, int] = dict(label_map) if label_map else {label: label for label in range(classes)}
    return _advice(seen, classes, own)


def raw_labels(
    label_map: Mapping[int | str, int | str] | None, class_names: Sequence[str] | None
) -> dict[int | str, int] | None:
    """From labels as the data have them, by name where they have names, to classes; None where they are the same.

    Args:
        label_map: of the configuration.
        class_names: of the model, in the order of its outputs.
    """
    names = list(class_names or ())
    if label_map is None:
        return {name: place for place, name in enumerate(names)} or None
    known = {
        key: names.index(value) if isinstance(value, str) and value in names else value
        for key, value in label_map.items()
    }
    return {key: value for key, value in known.items() if isinstance(value, int)}


def _advice(seen: Mapping[int, int], classes: int, label_map: Mapping[int | str, int]) -> str:
    named = dict(seen)
    free = [each for each in range(classes) if each not in named.values()]
    unseen = [label for label in range(classes) if label not in named]
    for label in sorted(unseen, key=lambda label: label not in free):
        named[label] = free.pop(free.index(label) if label in free else 0)
    ordered = sorted(label_map.items(), key=_in_order)
    pairs = [f"{_in_yaml(raw)}: {named.get(label, label)}" for raw, label in ordered]
    guessed = [raw for raw, label in ordered if label in unseen]
    doubt = (
        f" (no input had label {some([str(raw) for raw in guessed])}, so check what stands there)" if guessed else ""
    )
    return f"the classes are named otherwise: set label_map to {{{', '.join(pairs)}}}{doubt}"


def _in_yaml(raw: int | str) -> str:
    """A label as YAML reads it back: names that look like something else than text stand in quotes."""
    return str(raw) if isinstance(raw, int) or yaml.safe_load(raw) == raw else json.dumps(raw)


def _in_order(pair: tuple[int | str, int]) -> tuple[int, str]:
    return (pair[0], "") if isinstance(pair[0], int) else (0, pair[0])
