"""Random projections of the gradients of samples, and products with them.

In come a model and samples; out come, for each sample, a few thousand numbers whose products are about those of whole
gradients. `projecting` does it for a program and for a configuration, with a `projection`, a linear map that takes the
gradients of one parameter at a time. `gradient_stream` computes gradients of samples, of a loss of logits or of one
that calls the model itself; a `projection_table` compares what was found, and keeps it in a folder.
"""

from __future__ import annotations

from .projecting import project, project_config
from .projection_table import Projections, load_projections, nearest_table
