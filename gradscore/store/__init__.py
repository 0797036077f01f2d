"""Run folders: resumable feature tables, and the manifest that says what they were made from.

In come the rows of one shard after the other; out come feature tables as data frames. `run_writer` writes and
`run_folder` reads, `shards` has the Parquet files, `manifest` the identity of a run, `head` its last layer.
"""

from __future__ import annotations

from .head import read_head, write_head
from .manifest import describe_inputs, differences, package_versions
from .run_folder import RunFolder
from .run_writer import MEAN_GRADIENTS, RunWriter, check_target, is_complete
from .shards import ShardRows, Skipped

__all__ = [
    "MEAN_GRADIENTS",
    "RunFolder",
    "RunWriter",
    "ShardRows",
    "Skipped",
    "check_target",
    "describe_inputs",
    "differences",
    "is_complete",
    "package_versions",
    "read_head",
    "write_head",
]
