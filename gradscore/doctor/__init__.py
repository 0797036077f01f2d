"""What is wrong with a model before it is scored, and what to do.

In come a model and a batch of its inputs, or a configuration (`model`); out comes a `Diagnosis` of what would make its
scores meaningless, useless or slow, by the `checks`.
"""

from __future__ import annotations

from .model import check_config, check_model
