"""From samples to whatever keeps what is found in them, by one loop.

In come samples, a stream of batches (`gradscore.data.Samples`), and an extractor; `loop` cuts the batches, and has the
rows of feature tables computed and written. `extraction` opens what a configuration names and makes a run folder of it,
`given` makes one, or a data frame, of samples that a program gives.
"""

from __future__ import annotations

from .extraction import (
    NO_BANK,
    ExtractSummary,
    RunPlan,
    SplitSummary,
    complete_run,
    extract,
    open_datasets,
    open_split,
    resolved,
    resolved_features,
    write_shards,
)
from .given import extract_given, feature_table, features, given_samples, warn_of_overflow
from .loop import Counter, Progress, cut
from .progress import progress_bar
