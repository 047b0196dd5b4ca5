"""The ledger: a page of every claim with its verdicts, the same as a table, and the rows of each page at its end."""

from fairlib.evidence.ledger.history import History, changes
from fairlib.evidence.ledger.output import COLUMNS, own_rows, write
from fairlib.evidence.ledger.page import page
from fairlib.evidence.ledger.text import escape

__all__ = ["COLUMNS", "History", "changes", "escape", "own_rows", "page", "write"]
