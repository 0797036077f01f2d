"""What run folders hold, at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import StoreError
from ..system import as_address, is_address
from .checksums import read_checksums
from .manifest import MANIFEST, read_manifest
from .run_writer import is_complete
from .shards import shard_columns, shard_path, split_folder

State = Literal["complete", "partial", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a run folder is.

    Attributes:
        path: where it lies.
        state: `complete`; `partial` where extract has not finished; `damaged` where nothing can be read.
        model: source of the model; empty if damaged.
        splits: rows of each split, or None while it is not finished.
        changed: when the last of its files was written.
        size: bytes of all its files.
        problem: what is damaged; empty otherwise.
    """

    path: Path
    state: State
    model: str
    splits: dict[str, int | None]
    changed: datetime
    size: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """What a run folder holds.

    Attributes:
        summary: what it is.
        splits: entry of each split in the manifest.
        columns: of its feature tables; none before the first split is finished.
        meta_models: `<task>/<protocol>/<name>` of each.
        evaluation: its files in `evaluation/`.
        hashes: of the model's code and weights and of the data of each split.
        versions: of the packages that the features passed through.
        notices: what a reader of its figures should know.
        recorded: the number of files with a recorded checksum.
    """

    summary: RunSummary
    splits: dict[str, dict[str, Any]]
    columns: list[str]
    meta_models: list[str]
    evaluation: list[str]
    hashes: dict[str, str]
    versions: dict[str, str]
    notices: list[str]
    recorded: int


def find_runs(folder: Path) -> Iterator[RunSummary]:
    """The run folders in `folder` and below, `folder` itself among them, in the order of their paths.

    Raises:
        StoreError: `folder` is no folder, or an address.
    """
    if is_address(folder):
        raise StoreError(
            f"{as_address(folder)}: runs are listed in a folder of this machine; give one, or the address of a single "
            "run to gradscore runs show"
        )
    if not folder.is_dir():
        raise StoreError(f"{folder}: wanted a folder with runs below it; give another path")
    for manifest in sorted(folder.rglob(MANIFEST)):
        yield summarise_run(manifest.parent)


def summarise_run(run: Path) -> RunSummary:
    """What the run folder `run` is; a damaged one is described as such."""
    files = [path.stat() for path in run.rglob("*") if path.is_file()]
    changed = datetime.fromtimestamp(max((each.st_mtime for each in files), default=0.0), UTC)
    size = sum(each.st_size for each in files)
    try:
        manifest = read_manifest(run)
        splits = {name: entry["rows"] if entry["finished"] else None for name, entry in manifest["splits"].items()}
        state: State = "complete" if is_complete(run, manifest) else "partial"
        model = str(manifest["inputs"]["model"]["source"])
    except StoreError as error:
        return RunSummary(
            path=run, state="damaged", model="", splits={}, changed=changed, size=size, problem=str(error)
        )
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{run / MANIFEST}: damaged: {error!r}; restore it from a copy"
        return RunSummary(path=run, state="damaged", model="", splits={}, changed=changed, size=size, problem=problem)
    return RunSummary(path=run, state=state, model=model, splits=splits, changed=changed, size=size)


def describe_run(run: Path) -> RunContents:
    """What the run folder `run` holds.

    Raises:
        StoreError: it is none, or damaged.
    """
    manifest = read_manifest(run)
    summary = summarise_run(run)
    if summary.state == "damaged":
        raise StoreError(summary.problem)
    model = manifest["inputs"]["model"]
    hashes = {name: str(model[name]) for name in ("code_sha256", "weights_sha256") if model.get(name)}
    hashes |= {name: str(entry.get("fingerprint")) for name, entry in manifest["inputs"].get("data", {}).items()}
    finished = [name for name, rows in summary.splits.items() if rows is not None]
    return RunContents(
        summary=summary,
        splits=manifest["splits"],
        columns=shard_columns(shard_path(split_folder(run, finished[0]), 0)) if finished else [],
        meta_models=sorted(
            path.parent.relative_to(run / "meta").as_posix() for path in (run / "meta").glob("*/*/*/model.json")
        ),
        evaluation=sorted(
            path.relative_to(run / "evaluation").as_posix()
            for path in (run / "evaluation").rglob("*")
            if path.is_file()
        ),
        hashes=hashes,
        versions=manifest["versions"],
        notices=manifest.get("notices", []),
        recorded=len(read_checksums(run)),
    )
