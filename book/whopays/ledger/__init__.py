"""The ledger: a page of every claim with its verdicts, the same as a table, and the rows of each
page at its end.
"""

from whopays.ledger.history import History, changes
from whopays.ledger.output import COLUMNS, own_rows, write
from whopays.ledger.page import page
from whopays.ledger.text import escape

__all__ = ["COLUMNS", "History", "changes", "escape", "own_rows", "page", "write"]
