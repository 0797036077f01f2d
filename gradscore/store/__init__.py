"""Run folders: resumable feature tables, and the manifest that says what they were made from.

In come the rows of one shard after the other; out come feature tables as data frames. `run_writer` writes and
`run_folder` reads, `shards` has the Parquet files, `manifest` the identity of a run, `changes` what of it is kept
when its inputs change, `head` its last layer, `checksums` those of every file, `overview` what there is, `agreement`
and `label_order` doubts of labels, `working_copy` local copies of runs in object storage; all that changes a run folder
does so within `changing`.
"""

from __future__ import annotations

from .agreement import Agreement, agreement_of
from .changes import Changes, find_changes
from .checksums import CHECKSUMS, Verification, changing, is_intact, verify_run
from .head import read_head, write_head
from .label_order import label_warnings
from .manifest import CONFIG, MANIFEST, describe_inputs, differences, package_versions, read_manifest
from .overview import RunContents, RunSummary, describe_run, find_runs, summarise_run
from .renaming import EVERYWHERE, raw_labels, renaming_advice
from .run_folder import RunFolder, refuse_run_files
from .run_writer import MEAN_GRADIENTS, PARTIAL, RunWriter, check_target, is_complete
from .shards import (
    Recomputed,
    ShardNote,
    ShardRows,
    Skipped,
    listed_shards,
    read_note,
    read_shard,
    shard_path,
    split_folder,
    write_shard,
)
from .working_copy import Tell, WorkingCopy, refuse_run_objects, working_copy

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
