"""The audit: what compressing a model did to each group, with intervals, nulls and everything needed to trust it."""

from fairlib.auditing.comparison import Report, audit

__all__ = ["Report", "audit"]
