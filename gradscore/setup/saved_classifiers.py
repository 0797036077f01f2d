"""Classifiers that transformers saved, and the tables of texts beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..data import DAMAGE, FILE_KINDS, LABEL_NAMES, read_text_table
from ..errors import ConfigError, GradscoreError
from ..models import ModelConfig, class_names
from ..system import some
from .folders import LARGEST, ImageSet, role_of_table

TASKS = {"ForSequenceClassification": True, "ForImageClassification": False}
"""What the names of classifiers have in them, and whether these take text."""

IDS = ("id", "sample_id")
"""Columns that name samples, as tables are read."""


@dataclass(frozen=True)
class SavedClassifier:
    """A folder that `save_pretrained` wrote.

    Attributes:
        folder: where it is.
        takes_text: whether it takes text; images if not.
        count: of its classes.
        names: of its classes in their order; None where it does not name them.
    """

    folder: Path
    takes_text: bool
    count: int
    names: Sequence[str] | None


def saved_classifier(checkpoints: Sequence[Path]) -> SavedClassifier | None:
    """The classifier of transformers that a checkpoint is of, the one in the outermost folder; None where none is.

    Raises:
        ConfigError: it is no classifier of text or images.
    """
    folders = sorted({path.parent for path in checkpoints}, key=lambda folder: len(folder.parts))
    for folder in folders:
        settings = _settings(folder / "config.json")
        if "model_type" not in settings:  # which other packages do not write
            continue
        kinds = [str(each) for each in settings.get("architectures") or ()]
        task = next((task for task in TASKS if any(task in kind for kind in kinds)), None)
        if task is None:
            raise ConfigError(
                f"{folder}: this is {some(kinds) if kinds else 'a model'} of transformers, and init knows those with "
                f"{' or '.join(TASKS)} in their names; docs/models.md shows how others are named"
            )
        named = settings.get("id2label")
        count = len(named) if isinstance(named, dict) else int(settings.get("num_labels", 2))
        config = ModelConfig.model_validate({"source": f"transformers:{folder}", "num_classes": count})
        return SavedClassifier(folder, TASKS[task], count, class_names(config))
    return None


def text_sets(tables: Sequence[Path], of: SavedClassifier) -> tuple[list[ImageSet], list[str]]:
    """The tables of texts, and what the reader should know of those that are not used."""
    found, remarks = list[ImageSet](), list[str]()
    for path in tables:
        try:
            found.append(_text_set(path, of))
        except (GradscoreError, *DAMAGE) as error:
            remarks.append(f"{path}: not used: {str(error).splitlines()[0]}")
    return found, remarks


def _text_set(path: Path, of: SavedClassifier) -> ImageSet:
    kind = FILE_KINDS[path.suffix.lower()]
    if kind not in ("csv", "parquet") or path.stat().st_size > LARGEST:
        raise ConfigError("init looks for texts in tables (.csv, .tsv, .parquet) of less than 128 MiB")
    table = read_text_table(path).to_pandas() if kind == "csv" else pd.read_parquet(path)
    columns = [str(name) for name in table]
    usual = [name for name in LABEL_NAMES if name in table][:1]
    fitting = usual or [name for name in columns if _has_classes(table[name], of)]
    if len(fitting) > 1:
        raise ConfigError(
            f"which of its columns {some(fitting)} has the classes? Name it in arguments: {{labels: ...}}"
        )
    if not fitting and role_of_table(path) not in (None, "ood"):
        raise ConfigError("no column has classes of the network; name it in arguments: {labels: ...}")
    texts = [name for name in columns if pd.api.types.is_string_dtype(table[name]) and name not in (*fitting, *IDS)]
    if len(texts) != 1:
        there = f"which of its columns {some(texts)} has the texts" if texts else "which column has texts"
        raise ConfigError(f"{there}? Name it in arguments: {{inputs: ...}}")
    classes = sorted({str(each) for each in table[fitting[0]].dropna()}) if fitting else []
    arguments = {} if usual or not fitting else {"labels": fitting[0]}
    return ImageSet(path, tuple(classes), (), len(table), arguments=arguments)


def _has_classes(column: pd.Series[Any], of: SavedClassifier) -> bool:
    """Whether all values are names of the network's classes, or their numbers, and not all are the same."""
    values = column.dropna()
    if values.nunique() < 2:
        return False
    if pd.api.types.is_string_dtype(values):
        return of.names is not None and set(values) <= set(of.names)
    return pd.api.types.is_integer_dtype(values) and bool(values.between(0, of.count - 1).all())


def _settings(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
