"""The audit: what compressing a model did to each group, with intervals, nulls and everything needed to trust it."""

from fairlib.auditing.comparison import audit
from fairlib.auditing.report import Report

__all__ = ["Report", "audit"]
