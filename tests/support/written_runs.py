"""Run folders of given numbers, as extract leaves them of a network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from run_inputs import INPUTS

from gradscore.config import Config
from gradscore.store import RunFolder, RunWriter, ShardRows, shard_path, split_folder, write_shard

SOURCE = {"source": "sklearn:digits"}


def rows_of(split: str, names: list[str], values: np.ndarray, **columns: Any) -> ShardRows:
    """Rows of a split, all of different contents; `columns` has labels and predictions at least."""
    places = range(len(values))
    given = {
        "sample_ids": [str(place) for place in places],
        "content_hashes": [f"{split}-{place}" for place in places],
        "skipped": [],
        **columns,
    }
    return ShardRows(split=split, names=names, values=values, **given)


def written_run(
    path: Path,
    rows: Callable[[str], ShardRows],
    *,
    classes: int = 2,
    in_dist: Sequence[str] = ("fit", "test"),
    ood: Sequence[dict[str, str]] = (),
    notices: Sequence[str] = (),
    class_names: list[str] | None = None,
    **sections: Any,
) -> RunFolder:
    """A run whose splits have the rows that a function of their name gives."""
    data = {"in_dist": dict.fromkeys(in_dist, SOURCE), "ood": [{**SOURCE, **each} for each in ood]}
    model = {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": classes}
    config = Config.model_validate({"model": model, "data": data, "run": "run", **sections})
    with RunWriter.opened(path, config=config, inputs=INPUTS) as writer:
        for info in RunFolder(path).splits():
            write_split(writer, rows(info.name))
        writer.manifest.class_names = class_names
        writer.finish(feature_count=1, notices=list(notices))
    return RunFolder(path)


def write_split(writer: RunWriter, *shards: ShardRows) -> None:
    """Writes all shards of a split."""
    split = shards[0].split
    folder = split_folder(writer.path, split)
    notes = [write_shard(shard_path(folder, number), rows) for number, rows in enumerate(shards)]
    writer.finish_split(split, notes, samples=sum(note.rows for note in notes), seconds=0.5)
