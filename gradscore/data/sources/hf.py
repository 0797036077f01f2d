"""Folders that `datasets` wrote, and folders of Parquet files; read without that package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from ...errors import DataError
from ...system import closest
from .base import Request
from .columns import ColumnSource, column_source
from .tables import DAMAGE, joined, read_parquet, unreadable

SPLITS = "dataset_dict.json"
STATE = "state.json"


def hf_source(request: Request) -> ColumnSource:
    """A data set of `datasets`: a folder of `save_to_disk`, or Parquet files, one or a folder of them.

    The argument `split` names one of several. Of Parquet files it is the beginning of the name, up to `-`.
    """
    root = Path(request.name)
    if not root.exists():
        raise DataError(f"data folder {root} does not exist")
    split = request.arguments.get("split")
    if (root / SPLITS).is_file():
        names = _json(root / SPLITS).get("splits", [])
        return _saved(root / _chosen(split, names, root), request)
    if (root / STATE).is_file():
        return _saved(root, request)
    files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    if not files:
        raise DataError(
            f"data folder {root}: wanted a folder made by save_to_disk ({STATE} or {SPLITS} in it) or Parquet files"
        )
    names = list(dict.fromkeys(path.stem.partition("-")[0] for path in files))
    if root.is_dir() and (split is not None or len(names) > 1):
        chosen = _chosen(split, names, root)
        files = [path for path in files if path.stem.partition("-")[0] == chosen]
    folder = root if root.is_dir() else root.parent
    return column_source(read_parquet(files, where=f"data set {root}", folder=folder), request)


def _saved(folder: Path, request: Request) -> ColumnSource:
    state = _json(folder / STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"data set {folder}: it holds a selection of rows beside the rows, as old versions of datasets wrote it; "
            "load it with datasets and save_to_disk it again"
        )
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise unreadable(folder / STATE, error, "what save_to_disk writes") from None
    tables = []
    for name in names:
        if Path(name).name != name:
            raise DataError(f"data set {folder}: {STATE} names {name!r}, which does not lie in that folder")
        tables.append(_rows(folder / name))
    return column_source(joined(tables, where=f"data set {folder}", folder=folder), request)


def _rows(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_stream(source).read_all()
    except DAMAGE as error:
        raise unreadable(path, error, "an Arrow file of save_to_disk") from None


def _chosen(split: Any, names: list[str], root: Path) -> str:
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        raise DataError(
            f"data set {root}: which split? Set arguments: {{split: ...}}; {closest(str(split), names)}"
            if split is not None
            else f"data set {root}: which split? Set arguments: {{split: ...}}, one of {', '.join(names)}"
        )
    return str(split)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error, "what save_to_disk writes") from None
    if not isinstance(found, dict):
        raise DataError(f"data file {path}: wanted what save_to_disk writes")
    return found
