"""Run folders: resumable feature tables, and the manifest that says what they were made from.

In come the rows of one shard after the other; out come feature tables as data frames. `run_folder` writes and reads,
`shards` has the Parquet files, `manifest` the identity of a run and what is kept when it changes, `checksums` those of
every file, `labels` doubts of labels; all that changes a run folder does so within `changing`.
"""

from __future__ import annotations

from ..objects import CHECKSUMS, CONFIG, MANIFEST
from .checksums import Verification, changing, is_intact, verify_run
from .labels import EVERYWHERE, Agreement, agreement_of, label_warnings, raw_labels, renaming_advice
from .manifest import (
    Changes,
    CodeInputs,
    Manifest,
    Record,
    RunInputs,
    Skipped,
    SplitEntry,
    describe_inputs,
    differences,
    find_changes,
    first_fault,
    package_versions,
)
from .run_folder import (
    PARTIAL,
    RunContents,
    RunFolder,
    RunSummary,
    RunWriter,
    check_target,
    describe_run,
    find_runs,
    read_head,
    refuse_run_files,
    summarise_run,
    write_head,
)
from .shards import (
    MEAN_GRADIENTS,
    Recomputed,
    ShardNote,
    ShardRows,
    is_complete,
    listed_files,
    read_note,
    read_shard,
    shard_path,
    split_folder,
    write_shard,
)

__all__ = [
    "CHECKSUMS",
    "CONFIG",
    "EVERYWHERE",
    "MANIFEST",
    "MEAN_GRADIENTS",
    "PARTIAL",
    "Agreement",
    "Changes",
    "CodeInputs",
    "Manifest",
    "Recomputed",
    "Record",
    "RunContents",
    "RunFolder",
    "RunInputs",
    "RunSummary",
    "RunWriter",
    "ShardNote",
    "ShardRows",
    "Skipped",
    "SplitEntry",
    "Verification",
    "agreement_of",
    "changing",
    "check_target",
    "describe_inputs",
    "describe_run",
    "differences",
    "find_changes",
    "find_runs",
    "first_fault",
    "is_complete",
    "is_intact",
    "label_warnings",
    "listed_files",
    "package_versions",
    "raw_labels",
    "read_head",
    "read_note",
    "read_shard",
    "refuse_run_files",
    "renaming_advice",
    "shard_path",
    "split_folder",
    "summarise_run",
    "verify_run",
    "write_head",
    "write_shard",
]
