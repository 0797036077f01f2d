"""The names of classes that would make a network right: whether there are such, and what to set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..system import IntArray, some

EVERYWHERE = (
    " in data.in_dist.fit, data.in_dist.test and every other set with these labels, in place of the one there is"
)
"""Where an advised map belongs if one split speaks for all."""

RELABELLED = 0.8
"""Share of the inputs that the best renaming of the classes must get right to be suggested.

With its pixels inverted, which no renaming repairs, the digits model reaches 0.6; with classes in another order, 0.93.
"""


def renaming_advice(
    labels: IntArray, predictions: IntArray, *, classes: int, label_map: Mapping[int, int] | None = None
) -> str:
    """What to set `label_map` to, where the network is right about classes that only have other names.

    Args:
        labels: (N,) of samples that have one, as they are mapped now.
        predictions: (N,).
        classes: K.
        label_map: from the labels of the data to `labels`; None where they are the same.

    Returns:
        A sentence with the whole map, which says something of every label, but not where it belongs; empty where no
        renaming repairs enough.
    """
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predictions), 1)
    seen = {label: int(counts[label].argmax()) for label in range(classes) if counts[label].any()}
    distinct = len(set(seen.values())) == len(seen) > 1
    renamed = any(label != found for label, found in seen.items())
    if not distinct or not renamed or counts.max(1).sum() < RELABELLED * len(labels):
        return ""
    own = dict(label_map) if label_map else {label: label for label in range(classes)}
    return _advice(seen, classes, own)


def _advice(seen: Mapping[int, int], classes: int, label_map: Mapping[int, int]) -> str:
    named = dict(seen)
    free = [each for each in range(classes) if each not in named.values()]
    unseen = [label for label in range(classes) if label not in named]
    for label in sorted(unseen, key=lambda label: label not in free):
        named[label] = free.pop(free.index(label) if label in free else 0)
    pairs = [f"{raw}: {named.get(label, label)}" for raw, label in sorted(label_map.items())]
    guessed = [raw for raw, label in sorted(label_map.items()) if label in unseen]
    doubt = (
        f" (no input had label {some([str(raw) for raw in guessed])}, so check what stands there)" if guessed else ""
    )
    return f"the classes are named otherwise: set label_map to {{{', '.join(pairs)}}}{doubt}"
