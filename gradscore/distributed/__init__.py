"""A run made by several processes, shard by shard.

In come the settings of a run; out comes the same run folder that `gradscore.pipeline.extract` makes in one process,
value for value where both compute with one thread on one model of processor. `shares` has the share of one process of
several (SLURM arrays), and makes a run of all shares.
"""

from __future__ import annotations

from .shares import Share, ShareSummary, extract_share, merge
