"""The audit: effects of compression on each group, with intervals, tests and caveats."""

from fairlib.auditing.comparison import audit, compare_predictions
from fairlib.auditing.files import Pictures, audit_models, audit_table
from fairlib.auditing.report import Report

__all__ = ["Pictures", "Report", "audit", "audit_models", "audit_table", "compare_predictions"]
