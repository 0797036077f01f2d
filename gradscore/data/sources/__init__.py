"""Where raw samples come from.

In comes what `data.*.source` says, `<kind>:<name>`, with its arguments; out come images or other samples by position,
with ids and, where there are any, labels and names of classes. `SOURCES` lists the kinds; `raw_samples` says what a
source is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import DataError
from ...object_storage import fetched
from ...system import Registry, is_address
from .columns import ARGUMENTS, ColumnSource
from .files import folder_source, npz_source
from .from_python import code_source, sklearn_source, torchvision_source
from .image_changes import CORRUPTIONS
from .raw_samples import Request, SampleSource, SourceKind
from .shifted import corrupted_source
from .synthetic import kinds_of, synthetic_source
from .tables import csv_source, hf_source, parquet_source

SOURCES: Registry[SourceKind] = Registry(
    "data source",
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
            summary="arrays of a NumPy archive: `images`, or numbers of any type and shape; several become keyword "
            "inputs of the model",
            arguments=("inputs", "labels"),
            endings=(".npz",),
            is_path=True,
        ),
        "csv": SourceKind(
            open=csv_source,
            form="csv:<file>",
            summary="a table of paths of images, of text, or of numbers, and of labels",
            arguments=ARGUMENTS,
            endings=(".csv", ".tsv"),
            is_path=True,
            is_table=True,
        ),
        "parquet": SourceKind(
            open=parquet_source,
            form="parquet:<file>",
            summary="the same in Parquet; images may be in it, too, and arrays",
            arguments=ARGUMENTS,
            endings=(".parquet", ".pq"),
            is_path=True,
            is_table=True,
        ),
        "hf": SourceKind(
            open=hf_source,
            form="hf:<dir>",
            summary="a folder that `save_to_disk` of `datasets` wrote, or Parquet files",
            arguments=(*ARGUMENTS, "split"),
            is_path=True,
            is_table=True,
        ),
        "python": SourceKind(
            open=code_source,
            form="python:<file.py>:<function>",
            summary="a Dataset or iterable (of webdataset, say) that a function of yours returns, which the arguments "
            "are passed to; runs with `--trust-code`",
            arguments=None,
            is_code=True,
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
            summary="OOD sets made of the in-distribution fit samples; of images: "
            f"{', '.join(kinds_of(images=True))}; of text, tokens, vectors and arrays: "
            f"{', '.join(kinds_of(images=False))}",
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


def file_kinds() -> dict[str, str]:
    """The kinds of sources that read files of samples, by the endings of these, in small letters."""
    return {ending: name for name, kind in SOURCES.items() for ending in kind.endings}


def kind_of(source: str) -> SourceKind | None:
    """The kind of a source, `<kind>:<name>`; None where there is no such kind."""
    return SOURCES.get(source.partition(":")[0])


def open_source(
    source: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    base: SampleSource | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
) -> SampleSource:
    """Opens a source of raw samples.

    Args:
        source: `<kind>:<name>`, with a kind of `SOURCES`.
        arguments: those of its kind.
        base: the samples that a source made of others is made of.
        seed: of random choices.
        columns: names of the numbers that the model takes, in its order, by which those of a table are found, unless
            the arguments name them; None where they are not known.

    Returns:
        The samples.

    Raises:
        ConfigError: there is no such kind.
        DataError: the source cannot be used, or takes other arguments.
        ModelError: code that is not trusted, not what it should be, or fails when it is imported.
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
    request = Request(source=source, name=name, arguments=given, base=base, seed=seed, columns=columns)
    opened = found.open(_with_local_copies(request) if found.is_path else request)
    if is_address(name) and isinstance(opened, ColumnSource) and opened.names_files and "root" not in given:
        raise DataError(
            f"data source {source!r}: column {opened.columns[0]!r} names files beside the table, which have to be "
            "fetched, too; say below which address all of them are: arguments: "
            f"{{root: {name.rpartition('/')[0]}}}"
        )
    return opened


def _with_local_copies(request: Request) -> Request:
    """The request with local copies in place of addresses in object storage."""
    name, arguments = request.name, dict(request.arguments)
    root = arguments.get("root")
    root = root if isinstance(root, str) and is_address(root) else None
    if is_address(name):
        path = fetched(name, beside=root)
        if root is not None:
            arguments["root"] = os.path.normpath(path / os.path.relpath(root, name))
        name = str(path)
    elif root is not None:
        arguments["root"] = str(fetched(root))
    return replace(request, name=name, arguments=arguments)
