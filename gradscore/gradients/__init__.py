"""Per-sample gradients, read off the autograd graph: the core.

In come the outputs of a batch with their graph and the gradient of the losses there; out comes, parameter by parameter,
the gradient of every sample in the cheapest form that holds it. `engine` runs it and has the slow reference; `graph`
reads the autograd graph and passes through it, `layout` finds the samples in it, `rules` has one small function per
kind of node and the table `RULES`, `per_sample` the forms a rule returns and their sums, and `plan` says how each
parameter is covered, tries that against the reference, and carries it out in one pass.
"""

from __future__ import annotations

from .engine import (
    NOT_LINEAR,
    Engine,
    GradientWarning,
    coupled_share,
    is_looked_at,
    prepare,
    reference_gradients,
    refuse_company,
    refuse_coupled,
    refuse_memory,
)
from .graph import Gradients, read_graph
from .per_sample import Block, Convolved, Dense, Factored, PerSample, TableRows, Tied, Total, sample_slices
from .plan import Sink
from .rules import RULES, NotCoveredError, Use, output_gradient
