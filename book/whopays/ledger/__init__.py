"""The ledger: all claims with their verdicts, as a page, as a table, and page by page."""

from whopays.ledger.history import History, Written, claim_changes, first_written
from whopays.ledger.output import LEDGER_COLUMNS, own_rows, write
from whopays.ledger.page import page
from whopays.prose import escape

__all__ = [
    "LEDGER_COLUMNS",
    "History",
    "Written",
    "claim_changes",
    "escape",
    "first_written",
    "own_rows",
    "page",
    "write",
]
