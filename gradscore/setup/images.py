"""What images are like, and what their folders are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from ..data import DECODING_ERRORS
from .folders import ImageSet, role_in_name, role_of, role_of_table

GREY_MODES = ("1", "L", "I", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of Pillow that are read as one channel."""

LOOKED_AT = 50
"""So many images are opened."""


@dataclass(frozen=True)
class ImageKind:
    """What images have in common.

    Attributes:
        size: (height, width) if all of them have it.
        smallest: the smallest size seen, as text.
        largest: the largest.
        looked_at: how many were opened.
        channels: 1 of grey images and 3 of others, None if there are both.
    """

    size: tuple[int, int] | None
    smallest: str
    largest: str
    looked_at: int
    channels: int | None


@dataclass(frozen=True)
class Chosen:
    """A set for a part, which half of it by content, and why."""

    of: ImageSet
    why: str = ""
    half: tuple[float, float] | None = None


@dataclass
class Parts:
    """Which sets play which part.

    Attributes:
        roles: sets by `fit`, `test`, `calibration` and `bank`.
        ood: sets of other images.
        remarks: what the reader should know.
    """

    roles: dict[str, Chosen] = field(default_factory=dict)
    ood: list[ImageSet] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def image_kind(files: Sequence[Path]) -> ImageKind | None:
    """Looks at images spread evenly over `files`; None if none can be opened."""
    step = max(1, len(files) // LOOKED_AT)
    looks = [look for path in files[::step][:LOOKED_AT] if (look := _look(path)) is not None]
    if not looks:
        return None
    sizes, channels = [look[:2] for look in looks], {look[2] for look in looks}
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    smallest, largest = (f"{height} x {width}" for height, width in (ordered[0], ordered[-1]))
    common = channels.pop() if len(channels) == 1 else None
    return ImageKind(sizes[0] if len(set(sizes)) == 1 else None, smallest, largest, len(sizes), common)


def _look(path: Path) -> tuple[int, int, int] | None:
    """Height, width and channels."""
    try:
        with Image.open(path) as image:
            return image.height, image.width, 1 if image.mode in GREY_MODES else 3
    except DECODING_ERRORS:
        return None


def parts_of(sets: Sequence[ImageSet]) -> Parts:
    """Which sets are the in-distribution ones and which are others.

    The labelled set with most images has the classes; those with some of these classes are in-distribution, too. So may
    be others that are called `train` or `test`, and images without classes where there are no others; these are left
    out, and that is said.
    """
    parts = Parts()
    labelled = [each for each in sets if each.classes and _role_of_set(each) != "ood"]
    largest = max(labelled, key=lambda each: each.count, default=None)
    known = set() if largest is None else set(largest.classes)
    in_dist = [each for each in labelled if known & set(each.classes)]
    for each in sets:
        role = _role_of_set(each)
        if each in in_dist:
            continue
        if role != "ood" and (role is not None or largest is None):
            lacking = f"it has no class of {largest.path}" if each.classes and largest else "its images have no classes"
            parts.remarks.append(f"{each.path}: not used, since {lacking}")
        else:
            parts.ood.append(each)
    named: dict[str, ImageSet] = {}
    for each in in_dist:
        role = _role_of_set(each)
        if role is not None and role not in named:
            named[role] = each
    again = [each for each in in_dist if each not in named.values() and _role_of_set(each) == "bank"]
    rest = [each for each in in_dist if each not in (*named.values(), *again)]
    for role in ("fit", "test"):
        if role not in named and rest:
            named[role] = rest.pop(0)
    parts.remarks += [f"{each.path}: not used; {named['bank'].path} is for the same part" for each in again]
    parts.remarks += [f"{each.path}: not used; what is it for?" for each in rest]
    parts.roles = {role: Chosen(each) for role, each in named.items() if role in ("calibration", "bank")}
    parts.roles |= _halves(named)
    return parts


def _role_of_set(of: ImageSet) -> str | None:
    """What images are for; words count but in names of class folders."""
    if of.arguments is not None:
        return role_of_table(of.path) or _role_of_folders(of)
    return role_of(of.path) if of.classes else role_in_name(of.path.name)


def _role_of_folders(of: ImageSet) -> str | None:
    """What the folders of a table's images say these are for; of several parts, training."""
    base = of.path.parent.resolve()
    folders = {file.parent for file in of.files}
    words = [name for folder in folders if folder.is_relative_to(base) for name in folder.relative_to(base).parts]
    roles = {role_in_name(name) for name in words} - {None}
    return "bank" if "bank" in roles else roles.pop() if len(roles) == 1 else None


def _halves(named: dict[str, ImageSet]) -> dict[str, Chosen]:
    """The sets to fit on and to report on; halves of one where there is no other that the network has not seen."""
    fit, test = named.get("fit"), named.get("test")
    if fit is not None and test is not None:
        return {"fit": Chosen(fit, "must not have trained the network"), "test": Chosen(test)}
    only = fit or test or named.get("bank")
    if only is None:
        return {}
    seen = only is named.get("bank")
    why = (
        "it trained the network, so figures are too good: give others" if seen else "must not have trained the network"
    )
    return {
        "fit": Chosen(only, f"one half by content; {why}", (0.0, 0.5)),
        "test": Chosen(only, "the other half", (0.5, 1.0)),
    }
