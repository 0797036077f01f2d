"""Meta models: from feature tables to how likely a prediction is wrong, or a sample out of distribution.

In come feature tables and which of their rows are positive; out come models that score such tables. `inputs` and
`scaling` prepare the columns, `models` and `combined` fit, `cross_validation` chooses the regularisation,
`explanation` says what moved a score, `files` reads and writes models without pickle.
"""

from __future__ import annotations

from .combined import fit_combined_model
from .explanation import Driver, contributions, drivers
from .files import ARRAYS, DESCRIPTION
from .models import MetaModel, balanced_weights, fit_distance_model, fit_meta_model
from .probability import at_prevalence

__all__ = [
    "ARRAYS",
    "DESCRIPTION",
    "Driver",
    "MetaModel",
    "at_prevalence",
    "balanced_weights",
    "contributions",
    "drivers",
    "fit_combined_model",
    "fit_distance_model",
    "fit_meta_model",
]
