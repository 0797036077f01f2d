"""A first configuration for somebody's files.

In come folders and checkpoints; out comes a `Proposal`: settings with the reason for each, and what could not be found
out, which is asked for with a sentence of what to write. `folders` looks for checkpoints, classifiers of transformers,
code, tables, arrays and images, `architectures` for the network a checkpoint fits, and `proposal` puts all together and
writes a commented YAML file of it. Nothing that is found is run.
"""

from __future__ import annotations

from .proposal import Proposal, propose, write_proposal
