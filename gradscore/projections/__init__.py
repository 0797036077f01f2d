"""Random projections of the gradients of samples, and products with them.

In come a model and samples; out come, for each sample, a few thousand numbers whose products are about those of whole
gradients. `projecting` does it for a program and for a configuration; `kinds` has the projections by name
(`rademacher`, `sparse`, `factored`), each a linear map that takes the gradients of one parameter at a time.
`gradient_stream` computes gradients of samples, of a loss of logits or of one that calls the model itself; a `folder`
keeps what was found, `table` compares it, and `stored` has exact products with a few whole gradients.
"""

from __future__ import annotations

from .folder import load_projections
from .kinds import KINDS, LARGEST, SMALLEST, Projection, make_projection
from .projecting import project, project_config
from .stored import StoredGradients, dot_products, store_gradients
from .table import About, Nearest, Projections, nearest_notices, nearest_table, write_nearest

__all__ = [
    "KINDS",
    "LARGEST",
    "SMALLEST",
    "About",
    "Nearest",
    "Projection",
    "Projections",
    "StoredGradients",
    "dot_products",
    "load_projections",
    "make_projection",
    "nearest_notices",
    "nearest_table",
    "project",
    "project_config",
    "store_gradients",
    "write_nearest",
]
