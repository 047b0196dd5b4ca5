"""The book as it was built last, or the one that WHO_PAYS_HTML names, and the browser that opens
it.

What needs one of the two is skipped without it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HTML = Path(os.environ.get("WHO_PAYS_HTML") or ROOT / "_build" / "html").resolve()

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"
)
needs_book = pytest.mark.skipif(
    not (HTML / "index.html").is_file(), reason="the book is not built: make book"
)


def built_pages() -> list[str]:
    """Paths of the pages below the folder of the book, without the one that only leads to the
    introduction."""
    pages = (page.relative_to(HTML) for page in HTML.rglob("*.html"))
    return sorted(
        page.as_posix() for page in pages if page.parts[0] not in ("_static", "index.html")
    )
