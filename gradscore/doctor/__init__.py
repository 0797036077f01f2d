"""What is wrong with a model before it is scored: one actionable line for each finding.

In come a model and a batch of its inputs (`model`), or a configuration (`run`); out comes a diagnosis (`findings`) of
what would make its scores meaningless, useless or slow. `modules`, `accuracy` and `gradients` look.
"""

from __future__ import annotations

from .findings import Diagnosis, Finding, Severity
from .model import check_config, check_model

__all__ = ["Diagnosis", "Finding", "Severity", "check_config", "check_model"]
