"""The list of sessions stays current, and does not move under its reader."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.lists import (
    ROWS,
    copies,
    fill,
    ids,
    listing,
    new_state,
)
from tests.inspector.runs import answer, look, record
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def test_a_run_of_the_same_process_appears_and_changes_in_place() -> None:
    store = MemoryStore()
    may_end = asyncio.Event()

    async def slow() -> str:
        """Wait."""
        await may_end.wait()
        return "done"

    model = ScriptedModel([call("look", {"name": "a"}), call("slow", {}), "Good."])
    agent = Agent(model, [look, slow], name="worker")
    other = Agent(ScriptedModel(["Hi."]))
    async with inspecting(store, agent) as inspector:
        await inspector.show()
        await expect(inspector.page.get_by_text("No sessions yet")).to_be_visible()

        async def run(agent_id: str, agent: Agent) -> None:
            await (await Session.open(store, agent, agent_id, create=True)).send("Work.")

        running = asyncio.ensure_future(inspector.serving.do(partial(run, "job-1", agent)))
        row = inspector.page.locator(ROWS, has_text="job-1")
        await expect(row.get_by_text("LIVE", exact=True)).to_be_visible()
        await expect(row.get_by_text("Not decided yet")).to_be_visible()
        await row.evaluate("(row) => (row.kept = true)")
        steps = row.locator(".column-steps").get_by_text("1 / 20")
        await expect(steps).to_be_visible()
        # The list is read again; the store lists a running session as it was when it began.
        await inspector.serving.do(partial(run, "job-2", other))
        await expect(inspector.page.locator(ROWS, has_text="job-2").get_by_text("Completed")).to_be_visible()
        await expect(steps).to_have_count(1)
        await inspector.serving.do(may_end.set)
        await expect(row.get_by_text("Completed")).to_be_visible()
        assert await row.evaluate("(row) => row.kept")
        await expect(row.get_by_text("LIVE", exact=True)).not_to_be_attached()
        await running


ELSEWHERE = """
import asyncio, sys
from whyloop import Agent, Session
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        session = await Session.open(store, Agent(ScriptedModel(["Hi."])), sys.argv[2], create=True)
        await session.send("Hello?")

asyncio.run(main())
"""


async def test_a_run_of_another_process_appears_within_a_second(tmp_path: Path) -> None:
    path = str(tmp_path / "sessions.db")
    async with SqliteStore(path) as store, inspecting(store) as inspector:
        await inspector.show()
        page = inspector.page
        await expect(page.locator(".connection.live")).to_be_visible()
        # On a machine that does a lot at once some views are slow, and one in three is as quick as any.
        taken: list[float] = []
        while len(taken) < 3 and min(taken, default=9) > 1:
            command = [sys.executable, "-c", ELSEWHERE, path, f"from-afar-{len(taken)}"]
            await asyncio.to_thread(subprocess.run, command, check=True)
            started = time.perf_counter()
            row = page.locator(ROWS, has_text=command[-1])
            await expect(row.get_by_text("Completed")).to_be_visible()
            taken.append(time.perf_counter() - started)
        assert min(taken) < 1, taken


async def test_after_a_restart_the_list_is_current_again() -> None:
    store = MemoryStore()
    await fill(store)
    async with inspecting(store) as inspector:
        page = inspector.page
        await inspector.show()
        await expect(page.locator(".connection.live")).to_be_visible()
        await inspector.serving.stop()
        await expect(page.get_by_text("Connection lost, trying again")).to_be_visible()
        assert len(await ids(inspector)) == 4, "the list stays while the server is away"
        await store.add(await record([answer()], state=new_state("meanwhile")))
        await inspector.restart()
        await expect(page.locator(ROWS, has_text="meanwhile")).to_be_visible()


async def test_nothing_moves_if_the_reader_prefers_reduced_motion() -> None:
    async with listing() as inspector:
        page = inspector.page
        summary = {**(await listed(inspector, "done")), "status": "in_progress", "is_running": True}
        body = json.dumps({"sessions": [summary], "next": None})

        async def answer_running(route: Any) -> None:
            await route.fulfill(status=200, content_type="application/json", body=body)

        await page.route("**/sessions?*", answer_running)
        await page.reload()
        await expect(page.get_by_text("LIVE", exact=True)).to_be_visible()
        await page.wait_for_function("() => document.getAnimations().length > 0")
        await page.emulate_media(reduced_motion="reduce")
        await page.wait_for_function("() => document.getAnimations().length === 0")


async def listed(inspector: Inspector, agent_id: str) -> dict[str, Any]:
    """Return how the API lists a session."""
    page = await inspector.page.evaluate("fetch('sessions').then((answer) => answer.json())")
    found: dict[str, Any] = next(each for each in page["sessions"] if each["agent_id"] == agent_id)
    return found


async def test_rows_do_not_move_under_the_reader() -> None:
    store = MemoryStore()
    await copies(store, 300)
    async with inspecting(store) as inspector:
        page = inspector.page
        await inspector.show()
        await expect(page.locator(".connection.live")).to_be_visible()
        await expect(page.locator(ROWS).first).to_be_visible()
        await expect(page.get_by_text("300 sessions, newest first.")).to_be_visible()
        await page.evaluate("document.getElementById('main').scrollTop = 3000")
        middle = page.get_by_role("link", name="copy-00230")
        await expect(middle).to_be_visible()
        before = await middle.bounding_box()
        await (await Session.open(store, Agent(ScriptedModel(["Hi."])), "newcomer", create=True)).send(
            "Hello?"
        )
        await expect(page.get_by_role("button", name="Show 1 new session")).to_be_visible()
        assert await middle.bounding_box() == before
        await page.get_by_role("button", name="Show 1 new session").click()
        await expect(page.locator(ROWS, has_text="newcomer")).to_be_visible()
