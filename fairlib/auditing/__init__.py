"""The audit: what compressing a model did to each group, with intervals, tests and everything
needed to trust it."""

from fairlib.auditing.comparison import Report, audit, compare
from fairlib.auditing.files import audit_models, audit_table

__all__ = ["Report", "audit", "audit_models", "audit_table", "compare"]
