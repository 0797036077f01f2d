"""Per-sample gradients, read off the autograd graph: the core.

In come the outputs of a batch with their graph and the gradient of the losses there; out comes, parameter by parameter,
the gradient of every sample in the cheapest form that holds it. `engine` runs it; `graph` reads the autograd graph,
`signature` tells graphs apart, `mixing` knows those that hold for one batch, `layout` finds the samples in it, `rules`
has one small function per kind of node and the table `RULES`, `factored` and `convolved` the forms a rule returns,
`tied` that of a table used twice and the sums of all forms, `plan` and `collect` put them together, `trial` compares a
new plan with `exact`, the slow reference, and `warm_up` does so before a run.
"""

from __future__ import annotations

from .collect import Sink, Tap
from .convolved import Convolved, shifted_blocks, suits_groups, suits_windows
from .engine import Engine, GradientWarning, NewGraphError
from .factored import Block, Dense, Factored, PerSample, TableRows, Total, sample_slices
from .graph import Gradients, read_graph, refuse_opaque
from .layout import Layout, probe
from .rules import RULES, NotCoveredError, Rule, Use, output_gradient, sum_to_shape
from .tied import Tied
from .warm_up import prepare

__all__ = [
    "RULES",
    "Block",
    "Convolved",
    "Dense",
    "Engine",
    "Factored",
    "GradientWarning",
    "Gradients",
    "Layout",
    "NewGraphError",
    "NotCoveredError",
    "PerSample",
    "Rule",
    "Sink",
    "TableRows",
    "Tap",
    "Tied",
    "Total",
    "Use",
    "output_gradient",
    "prepare",
    "probe",
    "read_graph",
    "refuse_opaque",
    "sample_slices",
    "shifted_blocks",
    "suits_groups",
    "suits_windows",
    "sum_to_shape",
]
