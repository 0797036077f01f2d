"""Run folders: resumable feature tables, and the manifest that says what they were made from.

In come the rows of one shard after the other; out come feature tables as data frames. `run_folder` writes and reads,
`run_files` has the Parquet files and the checksums of all, `manifest` the identity of a run and what is kept when it
changes, `labels` doubts of labels; all that changes a run folder does so within `changing`.
"""

from __future__ import annotations

from ..object_storage import CHECKSUMS, CONFIG, MANIFEST
from .labels import (
    EVERYWHERE,
    ROOM,
    agreement_of,
    label_warnings,
    missing_labels,
    partly_labelled,
    raw_labels,
    refuse_doubtful_labels,
    refuse_unlabelled,
    renaming_advice,
)
from .manifest import (
    CodeInputs,
    RunInputs,
    Skipped,
    SplitEntry,
    StoredRecord,
    describe_inputs,
    describe_network,
    differences,
    find_changes,
    package_versions,
)
from .run_files import (
    Recomputed,
    ShardNote,
    ShardRows,
    changing,
    is_complete,
    is_intact,
    listed_files,
    read_shard,
    refuse_other_content,
    refuse_run_files,
    shard_path,
    split_folder,
    verify_run,
    write_shard,
)
from .run_folder import (
    PARTIAL,
    RunFolder,
    RunWriter,
    check_run_target,
    read_head,
)
