"""Where raw images come from: one file for each kind of source.

In comes what `data.*.source` says, `<kind>:<name>`, with its arguments; out come images by position, with ids and,
where there are any, labels. `SOURCES` lists the kinds; `base` says what a source is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import DataError
from ...system import Registry
from .base import (
    DECODING_ERRORS,
    IMAGE_SUFFIXES,
    ArraySource,
    ImageSource,
    Pixels,
    Request,
    SourceKind,
    UnreadableImageError,
    as_pixels,
)
from .corrupted import CORRUPTIONS, corrupted_source
from .folder import folder_source
from .npz import npz_source
from .npz_archive import READING_ERRORS, array_form, read_header
from .sklearn_digits import sklearn_source
from .synthetic import KINDS, synthetic_source
from .torchvision_sets import torchvision_source

__all__ = [
    "DECODING_ERRORS",
    "GIVEN",
    "IMAGE_SUFFIXES",
    "READING_ERRORS",
    "SOURCES",
    "ArraySource",
    "ImageSource",
    "Pixels",
    "Request",
    "SourceKind",
    "UnreadableImageError",
    "array_form",
    "as_pixels",
    "open_source",
    "read_header",
]

SOURCES: Registry[SourceKind] = Registry(
    "data source",
    "gradscore.sources",
    {
        "folder": SourceKind(
            open=folder_source,
            form="folder:<dir>",
            summary="image files in class sub-folders, or flat without labels",
            is_path=True,
        ),
        "npz": SourceKind(
            open=npz_source,
            form="npz:<file>",
            summary="arrays `images` and, optionally, `labels` of a NumPy archive",
            is_path=True,
        ),
        "torchvision": SourceKind(
            open=torchvision_source,
            form="torchvision:<Dataset>",
            summary="a data set of torchvision, which the arguments are passed to",
            arguments=None,
        ),
        "sklearn": SourceKind(
            open=sklearn_source, form="sklearn:digits", summary="scikit-learn's 1,797 handwritten digits"
        ),
        "synthetic": SourceKind(
            open=synthetic_source,
            form="synthetic:<kind>",
            summary=f"OOD sets made of the in-distribution fit images: {', '.join(KINDS)}",
            arguments=("seed",),
            made_of_others=True,
        ),
        "corrupted": SourceKind(
            open=corrupted_source,
            form="corrupted:<kind>",
            summary=f"shifted sets made of the in-distribution test images: {', '.join(CORRUPTIONS)}; "
            "`severity` from 1 to 5",
            arguments=("severity",),
            made_of_others=True,
            same_classes=True,
        ),
    },
    wanted=SourceKind,
)
"""Kinds of data sources by name."""


GIVEN = "given"
"""Stands for a kind where a program gave the samples: they have names in the run folder, and cannot be opened."""


def open_source(
    source: str, arguments: Mapping[str, Any] | None = None, *, base: ImageSource | None = None, seed: int = 0
) -> ImageSource:
    """Opens a source of raw images.

    Args:
        source: `<kind>:<name>`, with a kind of `SOURCES`.
        arguments: those of its kind.
        base: the images that a source made of others is made of.
        seed: of random choices.

    Returns:
        The images.

    Raises:
        ConfigError: there is no such kind.
        DataError: the source cannot be used, or takes other arguments.
    """
    kind, _, name = source.partition(":")
    if kind == GIVEN:
        raise DataError(f"the samples of '{name}' were given in Python and are not kept")
    found = SOURCES.find(kind, where=f"data source {source!r}")
    given = dict(arguments or {})
    unknown = [] if found.arguments is None else [each for each in given if each not in found.arguments]
    if unknown:
        raise DataError(
            f"data source {source!r} takes {', '.join(found.arguments or ()) or 'no arguments'}, got "
            f"{', '.join(unknown)}"
        )
    return found.open(Request(source=source, name=name, arguments=given, base=base, seed=seed))
