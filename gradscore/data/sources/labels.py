"""Labels as files and data sets have them, numbers or names, as classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError
from ...system import IntArray

UNLABELLED = -1


@dataclass(frozen=True)
class Labels:
    """The labels of N samples.

    Attributes:
        numbers: (N,) classes, -1 for none.
        names: of the classes 0, 1, ...; None where the labels are plain numbers.
    """

    numbers: IntArray
    names: tuple[str, ...] | None = None


def as_labels(found: Sequence[Any], *, where: str, names: Sequence[str] | None = None) -> Labels:
    """Whole numbers as they are; text as classes in alphabetical order.

    Args:
        found: a label for each sample; None, NaN or empty text for none.
        where: names the labels in messages.
        names: of the classes, where the data say them; text is looked up among them.

    Raises:
        DataError: labels of other kinds, of two kinds, or text that is none of the names.
    """
    plain = [_plain(label) for label in found]
    texts = sorted({label for label in plain if isinstance(label, str)})
    others = [label for label in plain if label is not None and not isinstance(label, str | int)]
    if others or (texts and any(isinstance(label, int) for label in plain)):
        shown = others[0] if others else texts[0]
        raise DataError(
            f"{where}: wanted one class for each sample, all whole numbers or all names; got {shown!r} "
            f"({type(shown).__name__}) among them"
        )
    if not texts:
        largest = max((label for label in plain if isinstance(label, int)), default=0, key=abs)
        if abs(largest) > np.iinfo(np.int64).max:
            raise DataError(f"{where}: label {largest} is too large for a class; labels are counted from 0")
        numbers = np.array([UNLABELLED if label is None else label for label in plain], dtype=np.int64)
        return Labels(numbers, None if names is None else tuple(names))
    known = list(names or texts)
    unknown = [label for label in texts if label not in known]
    if unknown:
        raise DataError(f"{where}: label {unknown[0]!r} is none of the classes {', '.join(known)}")
    places = {name: place for place, name in enumerate(known)}
    numbers = np.array([UNLABELLED if label is None else places[str(label)] for label in plain], dtype=np.int64)
    return Labels(numbers, tuple(known))


def _plain(label: Any) -> Any:
    """A label as int or str; None for none; anything else as it is."""
    value = label.item() if hasattr(label, "item") and np.asarray(label).size == 1 else label
    if value is None or value == "" or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, bool) else value
