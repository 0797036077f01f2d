"""Tables of images or texts and their classes, and classifiers that transformers saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data import ImageSource, class_names_of, describe_raw, file_kinds, is_image, open_source
from ..errors import ConfigError, DataError, GradscoreError
from ..models import ModelConfig, class_names
from ..system import some
from .folders import SampleSet

TASKS = {"ForSequenceClassification": True, "ForImageClassification": False}
"""What the names of classifiers have in them, and whether these take text."""

LARGEST = 1 << 27
"""Tables of more bytes are not looked into."""

FORM = "say which columns hold what under data: {source: csv:..., arguments: {inputs: COLUMN, labels: COLUMN}}"
"""What to do where the names of columns do not say it."""


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
    for folder in sorted({path.parent for path in checkpoints}, key=lambda folder: len(folder.parts)):
        settings: Any = {}
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(settings, dict) or "model_type" not in settings:  # which other packages do not write
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


@dataclass(frozen=True)
class Tables:
    """What tables hold.

    Attributes:
        sets: those of images, or of texts.
        unused: why others are not used, in a sentence each, by path.
        of_numbers: those of the others that hold nothing but numbers.
    """

    sets: list[SampleSet] = field(default_factory=list)
    unused: dict[Path, str] = field(default_factory=dict)
    of_numbers: list[Path] = field(default_factory=list)


def look_at_tables(paths: Sequence[Path], *, texts: bool) -> Tables:
    """Reads tables as `extract` reads them where a configuration gives no arguments.

    Args:
        paths: files of samples.
        texts: look for texts; for images if not.
    """
    found = Tables()
    for path in paths:
        kind = file_kinds()[path.suffix.lower()]
        try:
            if kind not in ("csv", "parquet") or path.stat().st_size > LARGEST:
                raise DataError("init reads .csv, .tsv and .parquet of less than 128 MiB; docs/data.md has other kinds")
            source = open_source(f"{kind}:{path}")
            first = source.image(0)
            if isinstance(first, np.ndarray) and first.ndim == 1:
                found.of_numbers.append(path)
                raise DataError("it holds numbers; docs/tutorial-tables.md shows the configuration of such a table")
            if isinstance(first, str) and not texts:
                raise DataError("it holds texts, and no classifier of transformers is there; see docs/tutorial-text.md")
            if not (isinstance(first, str) if texts else is_image(first)):
                raise DataError(f"wanted {'texts' if texts else 'images'}, got {describe_raw(first)}; {FORM}")
            found.sets.append(_set_of(path, source))
        except (GradscoreError, OSError) as error:
            found.unused[path] = f"{path}: not used: {str(error).splitlines()[0]}"
    return found


def _set_of(path: Path, source: ImageSource) -> SampleSet:
    if source.labels is None:
        return SampleSet(path, (), (), len(source.ids))
    numbers = np.unique(source.labels[source.labels >= 0]).tolist()
    names = class_names_of(source)
    if len(numbers) < 2:
        raise DataError(f"its samples have {len(numbers)} classes, wanted two at least; {FORM}")
    return SampleSet(path, tuple(str(each) if names is None else names[each] for each in numbers), (), len(source.ids))
