"""Figures of merit, protocols and reports."""
