"""What the tests in a browser share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from built import CHROMIUM, FLAGS


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
