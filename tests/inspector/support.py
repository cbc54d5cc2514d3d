"""A server with the inspector, and a page of a real browser that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.real.browser import LONG_ENOUGH, open_page
from tests.server.streams_support import Serving
from whyloop import Agent
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore, Store
from whyloop.values.state import AgentState

# What a browser reports when a server is restarted, or when an action is refused on purpose.
_EXPECTED = re.compile(r"net::ERR_|Failed to load resource")


class Inspector:
    """A page that shows the inspector, and everything that went wrong in it."""

    def __init__(
        self, page: Any, serving: Serving, new_server: Callable[[], AgentServer] | None = None
    ) -> None:
        self.serving = serving
        self._new_server = new_server
        self.problems: list[str] = []
        if page is not None:
            self.listen_to(page)

    def listen_to(self, page: Any) -> None:
        """Show this page, and note what goes wrong in it."""
        self.page = page
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and not _EXPECTED.search(message.text):
            self.problems.append(message.text)

    async def show(self, route: str = "#/sessions") -> None:
        """Show a page of the inspector."""
        await self.page.goto(f"{self.serving.address}/{route}")

    async def restart(self) -> None:
        """End the server, and start another one at the same address."""
        await self.serving.stop()
        assert self._new_server is not None
        self.serving = Serving(self._new_server(), port=self.serving.port, close_first=True)
        await self.serving.start()

    async def text(self, selector: str = "main") -> str:
        """Return the text that people see."""
        return str(await self.page.inner_text(selector))


@asynccontextmanager
async def inspecting(
    store: Store,
    agent: Agent[Any, Any] | None = None,
    *,
    width: int = 1440,
    height: int = 900,
    **options: Any,
) -> AsyncIterator[Inspector]:
    """Serve a store, and show its sessions in a browser; nothing may go wrong in the page."""

    def new_server() -> AgentServer:
        return AgentServer(store, agent, inspector=True, **({"public": True} | options))

    serving = Serving(new_server(), close_first=True)
    await serving.start()
    inspector = Inspector(None, serving, new_server)
    try:
        async with open_page() as page:
            await page.set_viewport_size({"width": width, "height": height})
            inspector.listen_to(page)
            yield inspector
            assert not inspector.problems, inspector.problems
    finally:
        await inspector.serving.stop()


LONGEST_TASK = 0.1  # Seconds.
_OBSERVE = """
    window.longTasks = [];
    const note = (list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration));
    const observer = new PerformanceObserver(note);
    observer.observe({ type: "longtask", buffered: true });
    window.longestTask = () => {
        note({ getEntries: () => observer.takeRecords() });
        return Math.max(0, ...window.longTasks);
    };
"""


@dataclass
class Smoothness:
    """How long the tasks of a page held it up, in seconds."""

    #: The longest task by the clock, as the browser itself reports tasks of over 50 ms.
    longest: float = 0.0
    #: The longest task by the time in which its thread computed, without the time of other processes.
    computed: float = 0.0

    @property
    def is_smooth(self) -> bool:
        return self.longest <= LONGEST_TASK

    def check(self) -> None:
        """Assert that no task of the page itself was long; the machine may have been busy with others."""
        assert self.is_smooth or self.computed <= LONGEST_TASK, self


@asynccontextmanager
async def watch_tasks(page: Any) -> AsyncIterator[Smoothness]:
    """Watch the tasks of a page, from its next document on."""
    browser, found = page.context.browser, Smoothness()
    await page.add_init_script(_OBSERVE)
    # With more categories, such as devtools.timeline, the end of the tracing takes 7 s instead of 1.
    await browser.start_tracing(page=page, categories=["toplevel"])
    try:
        yield found
        found.longest = await page.evaluate("window.longestTask()") / 1_000
    finally:
        events = json.loads(await browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        event.get("tdur", 0)
        for event in events
        if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in threads
    ]
    assert tasks, "the browser reported no task"
    found.computed = max(tasks) / 1_000_000


async def wait_for_text(page: Any, selector: str, text: str) -> None:
    """Wait for text in a way that takes the page no time, unlike a search for visible text."""
    has = "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)"
    await page.wait_for_function(has, arg=[selector, text], polling=100, timeout=2 * LONG_ENOUGH)


async def check_strictly(attempt: Callable[[], Awaitable[Smoothness]]) -> None:
    """Assert that no task is long by the clock; try again only if other processes had the time."""
    for _ in range(5):
        found = await attempt()
        if found.is_smooth:
            return
        found.check()
    raise AssertionError(f"other processes took the time of the page, so nothing was measured: {found}")


async def stored(*states: AgentState) -> MemoryStore:
    """A store with these sessions."""
    store = MemoryStore()
    for state in states:
        await store.add(state)
    return store
