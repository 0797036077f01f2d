"""A run made by several processes: shard by shard, into one run folder.

In come the settings of a run; out comes the same run folder that `gradscore.pipeline.extract` makes in one process,
value for value where both compute with one thread on one model of processor. `work` names the shards a run is made of
and computes one of them, `ledger` has what a process says it has written, `sharding` is the share of one process of
several (SLURM arrays), `merging` makes a run of all shares, `ray_engine` has the shards made by the actors of a Ray
cluster (extra `ray`).
"""

from __future__ import annotations

from .merging import merge
from .ray_engine import RayOptions, extract_with_ray
from .sharding import Share, ShareSummary, extract_share

__all__ = ["RayOptions", "Share", "ShareSummary", "extract_share", "extract_with_ray", "merge"]
