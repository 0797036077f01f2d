"""Random projections of the gradients of samples, and products with them.

In come a model and samples; out come, for each sample, a few thousand numbers whose products are about those of whole
gradients. `projecting` does it for a program and for a configuration, and has exact products with a few whole
gradients; `kinds` has the projections by name (`rademacher`, `sparse`, `factored`), each a linear map that takes the
gradients of one parameter at a time. `gradient_stream` computes gradients of samples, of a loss of logits or of one
that calls the model itself; a `projection_table` compares what was found, and keeps it in a folder.
"""

from __future__ import annotations

from .kinds import KINDS, LARGEST, SMALLEST
from .projecting import StoredGradients, dot_products, project, project_config, store_gradients
from .projection_table import (
    Nearest,
    Projections,
    load_projections,
    nearest_table,
)

__all__ = [
    "KINDS",
    "LARGEST",
    "SMALLEST",
    "Nearest",
    "Projections",
    "StoredGradients",
    "dot_products",
    "load_projections",
    "nearest_table",
    "project",
    "project_config",
    "store_gradients",
]
