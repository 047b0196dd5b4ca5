"""The ledger: a page of every claim with its verdicts, the same as a table, and the rows of each
page at its end.
"""

from whopays.ledger.history import History, claim_changes
from whopays.ledger.output import LEDGER_COLUMNS, own_rows, write
from whopays.ledger.page import page
from whopays.ledger.text import escape

__all__ = ["LEDGER_COLUMNS", "History", "claim_changes", "escape", "own_rows", "page", "write"]
