"""A first configuration for somebody's files.

In come folders and checkpoints; out comes a `Proposal`: settings with the reason for each, and what could not be found
out. `folders` looks for checkpoints, code and images, `label_tables` for tables that say their classes (`image_tables`
reads one, `image_index` knows which images there are), `images` for what images are like and which sets they make,
`architectures` for the network a checkpoint fits, `saved_classifiers` for classifiers of transformers and tables of
their texts, `other_data` for data that are neither, `proposal` puts all together, and `writing` makes a commented YAML
file of it. Nothing that is found is run.
"""

from __future__ import annotations

from ..config import FILL_IN
from .proposal import Proposal, propose
from .writing import as_yaml, write_proposal

__all__ = ["FILL_IN", "Proposal", "as_yaml", "propose", "write_proposal"]
