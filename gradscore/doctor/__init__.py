"""What is wrong with a model before it is scored: one actionable line for each remark.

In come a model and a batch of its inputs, or a configuration (`model`); out comes a `diagnosis` of what would make its
scores meaningless, useless or slow. `checks` look.
"""

from __future__ import annotations

from .diagnosis import Diagnosis, Remark
from .model import check_config, check_model

__all__ = ["Diagnosis", "Remark", "check_config", "check_model"]
