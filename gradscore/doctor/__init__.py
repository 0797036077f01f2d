"""What is wrong with a model before it is scored: one actionable line for each finding."""

from .findings import Diagnosis, Finding, Severity
from .model import check_model

__all__ = ["Diagnosis", "Finding", "Severity", "check_model"]
