"""A real browser without a window, and pages in it, each with storage of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
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
    # The last list counts, so the first lines are what the driver turns off. The last line halves what a page
    # costs: otherwise each window loads two pages for its address bar, and a process for a page to come.
    "--disable-features=AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,"
    "HttpsFirstBalancedModeAutoEnable,LensOverlay,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,"
    "AvoidCorsURLLoaderRestartOnRedirect,OptimizationHints,NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch,"
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess",
]
PAGE = Path(__file__).parent / "page.html"
LONG_ENOUGH = 30_000  # Milliseconds, for a machine that does a lot at once.


class SharedBrowser:
    """One browser for all tests of an event loop, started by the first: a start takes over a second."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._browser: Any = None
        self._running = AsyncExitStack()

    @asynccontextmanager
    async def share(self) -> AsyncIterator[None]:
        """Let the pages of this event loop be pages of one browser."""
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            await self._running.aclose()
            self._loop = self._browser = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """Use the browser of this event loop, or another one that ends afterwards."""
        if self._loop is not asyncio.get_running_loop():
            async with launch_browser() as browser:
                yield browser
            return
        if self._browser is None or not self._browser.is_connected():
            self._browser = await self._running.enter_async_context(launch_browser())
        yield self._browser


SHARED = SharedBrowser()
# The marks of tests whose pages are pages of one browser; each page has a context of its own.
SHARES_BROWSER = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("shared_browser")]


@asynccontextmanager
async def launch_browser() -> AsyncIterator[Any]:
    """Start a browser; without one the tests say what is missing."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"this test needs a browser at {CHROMIUM}: apt-get install chromium")
    api = pytest.importorskip(
        "playwright.async_api", reason="this test needs a driver: pip install playwright"
    )
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page() -> AsyncIterator[Any]:
    """Open an empty page in a context of its own; it ends with all others that the test opened."""
    async with SHARED.use() as browser:
        try:
            page = await browser.new_page()
            page.set_default_timeout(LONG_ENOUGH)
            yield page
        finally:
            for context in browser.contexts:
                await context.close()
