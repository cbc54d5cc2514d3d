"""The list of sessions in a real browser, for the tests of what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace
from playwright.async_api import expect

from tests.inspector.runs import answer, look, move, record, turn
from tests.inspector.support import Inspector, inspecting
from whyloop.stores import Entry, MemoryStore, Store
from whyloop.testing import call
from whyloop.tools.tool import Tool
from whyloop.values.scalars import new_id
from whyloop.values.state import AgentState

ROWS = "[data-row]"


def new_state(agent_id: str, **metadata: object) -> AgentState:
    return AgentState(agent_id=agent_id, metadata=metadata)


async def fill(store: Store) -> None:
    """Store four sessions of today, each with another ending."""
    tools = [look, Tool(move, needs_approval=True)]
    record_now = partial(record, start=datetime.now(UTC), tools=tools)
    done = new_state("done", team="sales", order=17)
    await store.add(await record_now([turn(1, "a"), answer("All tidy.")], state=done))
    cut = new_state("cut", team="support")
    await store.add(await record_now([turn(1, "a"), turn(2, "b")], state=cut, max_steps=2))
    broken = new_state("broken")
    await store.add(await record_now([ConnectionError("no route")], "Who is Polar Retail?", state=broken))
    waits = new_state("waits")
    await store.add(await record_now([call("move", {"name": "lead-2"})], "Move the lead.", state=waits))


@asynccontextmanager
async def listing(route: str = "#/sessions", **options: Any) -> AsyncIterator[Inspector]:
    """Show the list of the four sessions."""
    store = MemoryStore()
    await fill(store)
    async with inspecting(store, **options) as inspector:
        await inspector.show(route)
        await expect(inspector.page.locator(f"{ROWS}, .empty, .failure").first).to_be_visible()
        yield inspector


async def ids(inspector: Inspector) -> list[str]:
    """Return the sessions that are shown, in order."""
    return [str(text) for text in await inspector.page.locator(f"{ROWS} .column-session a").all_inner_texts()]


async def wait_for_ids(inspector: Inspector, *wanted: str) -> None:
    """Wait until the list shows these sessions and no others, in any order."""
    await inspector.page.wait_for_function(
        """(wanted) => {
          const links = document.querySelectorAll("[data-row] .column-session a");
          const shown = [...links].map((link) => link.textContent);
          return shown.length === wanted.length && wanted.every((id) => shown.includes(id));
        }""",
        arg=list(wanted),
    )


async def cells(inspector: Inspector, agent_id: str) -> dict[str, str]:
    """Return the texts of a row by their column."""
    row = inspector.page.locator(ROWS, has=inspector.page.get_by_role("link", name=agent_id, exact=True))
    found = {}
    for cell in await row.locator("td").all():
        name = (await cell.get_attribute("class")).split()[0].removeprefix("column-")
        found[name] = await cell.inner_text()
    return found


def requests_of(page: Any, part: str) -> list[str]:
    """Return a list that gets the addresses with this part that a page requests."""
    found: list[str] = []

    def note(request: Any) -> None:
        if part in request.url:
            found.append(request.url)

    page.on("request", note)
    return found


async def copies(store: Store, count: int) -> None:
    """Store many sessions: copies of one, a minute apart, the highest number the newest."""
    original = MemoryStore()
    await original.add(await record([turn(1, "a"), answer()], state=new_state("original")))
    read = await original.read("original")
    # A list shows how sessions are listed, so the beginning of each is enough.
    entries, now = [Entry(body) for body in read.entries[:1]], datetime.now(UTC)
    for number in range(count):
        when = now - timedelta(minutes=count - number)
        summary = replace(
            read.summary, agent_id=f"copy-{number:05d}", identity=new_id(), started_at=when, updated_at=when
        )
        await store.create(summary, entries)
