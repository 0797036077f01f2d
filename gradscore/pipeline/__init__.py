"""From samples to whatever keeps what is found in them, by one loop.

In come samples, a stream of batches (`gradscore.data.Samples`), and an extractor; `loop` cuts the batches, has them
computed and hands on the rows of feature tables, or what else was found, to a sink. `extraction` is the sink for
`extract` and for samples that a program gives, `data_frames` that of `gradscore.features`. `plan` opens what a
configuration asks for, and says whether a run is still of its model and data; `defaults` says what settings are that
say `auto`.
"""

from __future__ import annotations

from .data_frames import feature_table, features, given_samples, warn_of_overflow
from .defaults import NO_BANK, resolved
from .extraction import ExtractSummary, SplitSummary, complete_run, extract, extract_given, write_shards
from .loop import Counter, Cut, ListSink, OnBatch, Progress, Sink, cut, run
from .run_plan import RunPlan, open_datasets, open_split, outdated
