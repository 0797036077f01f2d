"""Run folders: resumable feature tables, and the manifest that says what they were made from.

In come the rows of one shard after the other; out come feature tables as data frames. `run_writer` writes and
`run_folder` reads, `shards` has the Parquet files, `manifest` the identity of a run and what is kept when it changes,
`checksums` those of every file, `labels` doubts of labels, `remote_runs` copies of runs in object storage; all that
changes a run folder does so within `changing`.
"""

from __future__ import annotations

from .checksums import CHECKSUMS, Verification, changing, is_intact, verify_run
from .labels import EVERYWHERE, Agreement, agreement_of, label_warnings, raw_labels, renaming_advice
from .manifest import (
    CONFIG,
    MANIFEST,
    Changes,
    describe_inputs,
    differences,
    find_changes,
    package_versions,
    read_manifest,
)
from .remote_runs import Tell, WorkingCopy, refuse_run_objects, working_copy
from .run_folder import (
    RunContents,
    RunFolder,
    RunSummary,
    describe_run,
    find_runs,
    read_head,
    refuse_run_files,
    summarise_run,
    write_head,
)
from .run_writer import PARTIAL, RunWriter, check_target
from .shards import (
    MEAN_GRADIENTS,
    Recomputed,
    ShardNote,
    ShardRows,
    Skipped,
    is_complete,
    listed_shards,
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
    "Recomputed",
    "RunContents",
    "RunFolder",
    "RunSummary",
    "RunWriter",
    "ShardNote",
    "ShardRows",
    "Skipped",
    "Tell",
    "Verification",
    "WorkingCopy",
    "agreement_of",
    "changing",
    "check_target",
    "describe_inputs",
    "describe_run",
    "differences",
    "find_changes",
    "find_runs",
    "is_complete",
    "is_intact",
    "label_warnings",
    "listed_shards",
    "package_versions",
    "raw_labels",
    "read_head",
    "read_manifest",
    "read_note",
    "read_shard",
    "refuse_run_files",
    "refuse_run_objects",
    "renaming_advice",
    "shard_path",
    "split_folder",
    "summarise_run",
    "verify_run",
    "working_copy",
    "write_head",
    "write_shard",
]
