"""A real browser without a window, and a page in it that shows a session."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-gpu",
]
PAGE = Path(__file__).parent / "page.html"
LONG_ENOUGH = 30_000  # Milliseconds, for a machine that does a lot at once.


@asynccontextmanager
async def open_page() -> AsyncIterator[Any]:
    """An empty page; without a browser the tests say what is missing."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"this test needs a browser at {CHROMIUM}: apt-get install chromium")
    api = pytest.importorskip(
        "playwright.async_api", reason="this test needs a driver: pip install playwright"
    )
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = await browser.new_page()
            page.set_default_timeout(LONG_ENOUGH)
            yield page
        finally:
            await browser.close()
