"""The list of sessions in a real browser: what it shows, its filters, and how it stays current."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.inspector.accessibility import check_both_themes
from tests.inspector.runs import answer, look, move, record, turn
from tests.inspector.support import Inspector, inspecting
from whyloop import Agent, Session
from whyloop.server import Access
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store
from whyloop.testing import ScriptedModel, call
from whyloop.tools.tool import Tool
from whyloop.values.scalars import new_id
from whyloop.values.state import AgentState

pytestmark = pytest.mark.slow

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
        await inspector.page.locator(f"{ROWS}, .empty, .failure").first.wait_for()
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


# What it shows


async def test_each_row_says_why_its_session_ended() -> None:
    async with listing() as inspector:
        assert sorted(await ids(inspector)) == ["broken", "cut", "done", "waits"]
        cut = await cells(inspector, "cut")
        assert cut["state"] == "Stopped"
        assert cut["why"] == "Limit reached: 2 of 2 steps used"
        assert cut["rule"] == "StepsLimit"
        assert cut["steps"] == "2 / 2"
        assert cut["tokens"] == "2,870"
        assert cut["cost"] == "$0.0060"
        assert "Tidy the registry." in cut["session"]
        assert (await cells(inspector, "done"))["state"] == "Completed"
        assert (await cells(inspector, "broken"))["state"] == "Failed"
        waits = await cells(inspector, "waits")
        assert (waits["state"], waits["why"]) == ("Paused", "move waits for approval")
        marks = inspector.page.locator(ROWS, has_text="cut").locator(".step-marks")
        assert await marks.get_attribute("aria-label") == "2 steps: 1 forbidden to continue"


async def test_the_numbers_of_the_charts_are_there_as_text() -> None:
    async with listing() as inspector:
        page = inspector.page
        await page.get_by_text("4 sessions, newest first. 1 waiting for a person.").wait_for()
        table = page.get_by_role("table", name="How runs ended on each day")
        assert await table.get_by_role("row").count() == 15
        today = await table.get_by_role("row").last.get_by_role("cell").all_inner_texts()
        assert today == ["1", "1", "1", "0"]
        assert await page.get_by_role("button", name="StepsLimit 1 session").count() == 1


async def test_ages_move() -> None:
    async with listing() as inspector:
        first = await (cell := inspector.page.locator(f"{ROWS} .column-age").first).inner_text()
        await inspector.page.wait_for_function(
            "([first]) => document.querySelector('[data-row] .column-age').textContent !== first", arg=[first]
        )
        assert (await cell.inner_text()).endswith(" s")


async def test_a_click_anywhere_in_a_row_opens_its_session() -> None:
    async with listing() as inspector:
        await inspector.page.locator(ROWS, has_text="StepsLimit").locator(".column-why").click()
        await inspector.page.wait_for_url("**/#/s/cut")


# Filters


async def test_a_link_with_filters_shows_the_same_list() -> None:
    async with listing("#/sessions?status=stopped") as inspector:
        await wait_for_ids(inspector, "cut")
        page = inspector.page
        assert await page.get_by_role("button", name="Stopped").get_attribute("aria-pressed") == "true"
        await page.get_by_role("button", name="Completed").click()
        await wait_for_ids(inspector, "done")
        assert page.url.endswith("#/sessions?status=completed")
        await page.reload()
        await wait_for_ids(inspector, "done")
        await page.go_back()
        await wait_for_ids(inspector, "cut")


async def test_sessions_are_filtered_by_stop_reason_metadata_and_time() -> None:
    async with listing() as inspector:
        page = inspector.page
        await page.get_by_label("Stop reason", exact=True).select_option("steps_limit")
        await wait_for_ids(inspector, "cut")
        await page.get_by_label("Stop reason", exact=True).select_option("")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        await page.get_by_label("Metadata", exact=True).fill("team=sales, order=17")
        await page.get_by_label("Metadata", exact=True).press("Enter")
        await wait_for_ids(inspector, "done")
        assert "metadata=team" in page.url
        await page.get_by_label("Metadata", exact=True).fill("")
        await page.get_by_label("Metadata", exact=True).press("Enter")
        await page.get_by_label("Time", exact=True).select_option("1h")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        assert page.url.endswith("#/sessions?since=1h")


async def test_a_click_on_a_rule_shows_its_sessions_and_another_one_shows_all() -> None:
    async with listing() as inspector:
        page = inspector.page
        bar = page.get_by_role("button", name="StepsLimit 1 session")
        await bar.click()
        await wait_for_ids(inspector, "cut")
        assert page.url.endswith("#/sessions?resolved_by=StepsLimit")
        # The others stay, so that one can choose another.
        await page.get_by_role("button", name="ToolCallPresenceCheck 1 session").click()
        await wait_for_ids(inspector, "done")
        await page.get_by_role("button", name="ToolCallPresenceCheck 1 session").click()
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")


async def test_a_search_finds_queries_answers_and_metadata() -> None:
    async with listing("#/sessions?search=polar") as inspector:
        page = inspector.page
        await wait_for_ids(inspector, "broken")
        field = page.get_by_role("searchbox")
        assert await field.input_value() == "polar"
        for text, found in (
            ("ALL tidy", "done"),
            ("support", "cut"),
            ("2 of 2 steps", "cut"),
            ("waits", "waits"),
        ):
            await field.fill(text)
            await wait_for_ids(inspector, found)
        assert page.url.endswith("#/sessions?search=waits")
        await field.fill("")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        assert page.url.endswith("#/sessions")


async def test_typing_asks_once_and_not_with_every_key() -> None:
    async with listing() as inspector:
        page = inspector.page
        asked = requests_of(page, "/sessions?search")
        await page.keyboard.press("/")
        await page.keyboard.type("polar", delay=10)
        await wait_for_ids(inspector, "broken")
        assert len(asked) == 1


async def test_a_list_without_a_match_offers_to_remove_each_filter() -> None:
    async with listing("#/sessions?status=failed&resolved_by=StepsLimit") as inspector:
        page = inspector.page
        assert "No session matches all of these filters" in await inspector.text()
        await page.get_by_role("button", name="status failed").click()
        await wait_for_ids(inspector, "cut")
        assert page.url.endswith("#/sessions?resolved_by=StepsLimit")


# What if


async def test_a_slider_shows_which_sessions_a_limit_would_have_cut() -> None:
    async with listing() as inspector:
        page = inspector.page
        asked = requests_of(page, "/what-if?")
        await page.get_by_role("button", name="What if").click()
        slider = page.get_by_role("slider")
        await slider.wait_for()
        await slider.press("Home")
        await page.get_by_text("max_steps=1 would have cut 2 of").wait_for()
        result = await page.locator(".list-what-if .result").inner_text()
        assert "1 of them completed" in result
        assert "tokens (" in result
        cut = page.locator(ROWS, has=page.get_by_text("CUT", exact=True))
        assert sorted(await cut.locator(".column-session a").all_inner_texts()) == ["cut", "done"]
        await slider.press("ArrowRight")
        await page.get_by_text("max_steps=2 would have cut 0 of").wait_for()
        assert await cut.count() == 0
        assert len(asked) == 1, "moving the slider asks nothing"
        await slider.press("Home")
        await page.wait_for_url("**/#/sessions?limit=max_steps&value=1")
        await page.reload()
        await page.get_by_text("max_steps=1 would have cut 2 of").wait_for()
        await page.get_by_label("What if").select_option("max_tokens")
        await page.get_by_text("Move the slider").wait_for()
        assert len(asked) == 3
        await check_both_themes(page)


# Live


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
        await inspector.page.get_by_text("No sessions yet").wait_for()

        async def run(agent_id: str, agent: Agent) -> None:
            await (await Session.open(store, agent, agent_id, create=True)).send("Work.")

        running = asyncio.ensure_future(inspector.serving.do(partial(run, "job-1", agent)))
        row = inspector.page.locator(ROWS, has_text="job-1")
        await row.get_by_text("LIVE", exact=True).wait_for()
        await row.get_by_text("Not decided yet").wait_for()
        await row.evaluate("(row) => (row.kept = true)")
        steps = row.locator(".column-steps").get_by_text("1 / 20")
        await steps.wait_for()
        # The list is read again; the store lists a running session as it was when it began.
        await inspector.serving.do(partial(run, "job-2", other))
        await inspector.page.locator(ROWS, has_text="job-2").get_by_text("Completed").wait_for()
        assert await steps.count() == 1
        await inspector.serving.do(may_end.set)
        await row.get_by_text("Completed").wait_for()
        assert await row.evaluate("(row) => row.kept")
        await row.get_by_text("LIVE", exact=True).wait_for(state="detached")
        await running


ELSEWHERE = """
import asyncio, sys
from whyloop import Agent, Session
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        session = await Session.open(store, Agent(ScriptedModel(["Hi."])), "from-afar", create=True)
        await session.send("Hello?")

asyncio.run(main())
"""


async def test_a_run_of_another_process_appears_within_a_second(tmp_path: Path) -> None:
    path = str(tmp_path / "sessions.db")
    async with SqliteStore(path) as store, inspecting(store) as inspector:
        await inspector.show()
        page = inspector.page
        await page.locator(".connection.live").wait_for()
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ELSEWHERE, path], check=True)
        started = time.perf_counter()
        await page.locator(ROWS, has_text="from-afar").get_by_text("Completed").wait_for()
        assert time.perf_counter() - started < 2, "a busy machine may take twice as long as an idle one"


async def test_after_a_restart_the_list_is_current_again() -> None:
    store = MemoryStore()
    await fill(store)
    async with inspecting(store) as inspector:
        page = inspector.page
        await inspector.show()
        await page.locator(".connection.live").wait_for()
        await inspector.serving.stop()
        await page.get_by_text("Connection lost, trying again").wait_for()
        assert len(await ids(inspector)) == 4, "the list stays while the server is away"
        await store.add(await record([answer()], state=new_state("meanwhile")))
        await inspector.restart()
        await page.locator(ROWS, has_text="meanwhile").wait_for()


async def test_nothing_moves_for_readers_who_want_that() -> None:
    async with listing() as inspector:
        page = inspector.page
        summary = {**(await listed(inspector, "done")), "status": "in_progress", "is_running": True}
        body = json.dumps({"sessions": [summary], "next": None})

        async def answer_running(route: Any) -> None:
            await route.fulfill(status=200, content_type="application/json", body=body)

        await page.route("**/sessions?*", answer_running)
        await page.reload()
        await page.get_by_text("LIVE", exact=True).wait_for()
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
        await page.locator(".connection.live").wait_for()
        await page.locator(ROWS).first.wait_for()
        await page.evaluate("document.getElementById('main').scrollTop = 3000")
        middle = page.get_by_role("link", name="copy-00230")
        await middle.wait_for()
        before = await middle.bounding_box()
        await (await Session.open(store, Agent(ScriptedModel(["Hi."])), "newcomer", create=True)).send(
            "Hello?"
        )
        await page.get_by_role("button", name="Show 1 new session").wait_for()
        assert await middle.bounding_box() == before
        await page.get_by_role("button", name="Show 1 new session").click()
        await page.locator(ROWS, has_text="newcomer").wait_for()


# Long lists


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


async def check_long_list(store: Store, count: int, seconds: float) -> None:
    """Check that the first view is quick, and that the number of nodes does not grow on the way down."""
    async with inspecting(store) as inspector:
        page = inspector.page
        await inspector.show("#/approvals")
        await page.locator(".connection.live").wait_for()
        await page.goto("about:blank")
        started = time.perf_counter()
        await inspector.show("#/sessions")
        await page.locator(f'a[title="copy-{count - 1:05d}"]').wait_for()
        assert time.perf_counter() - started < seconds
        most = 0
        for wanted in range(100, min(count, 1300), 100):
            await page.evaluate("(top) => (document.getElementById('main').scrollTop = top)", wanted * 36)
            await page.locator(f'a[title="copy-{count - 1 - wanted:05d}"]').wait_for()
            most = max(most, await page.evaluate("document.querySelectorAll('*').length"))
        assert most < 3000
        # The way back: rows that were forgotten are read again.
        await page.evaluate("document.getElementById('main').scrollTop = 0")
        await page.locator(f'a[title="copy-{count - 1:05d}"]').wait_for()
        for _ in range(60):
            await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.textContent") == f"copy-{count - 60:05d}"


async def test_a_list_of_thousands_is_quick_and_has_few_nodes(tmp_path: Path) -> None:
    async with SqliteStore(str(tmp_path / "many.db")) as store:
        await copies(store, 2000)
        await check_long_list(store, 2000, seconds=5)


@pytest.mark.soak
async def test_a_list_of_a_hundred_thousand_is_shown_within_a_second(tmp_path: Path) -> None:
    async with SqliteStore(str(tmp_path / "many.db")) as store:
        await copies(store, 100_000)
        await check_long_list(store, 100_000, seconds=1)


# Hostile content, keys, small screens


HOSTILE = (
    '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}\'`javascript:hacked=1'
)


async def test_nothing_of_a_session_is_interpreted() -> None:
    store = MemoryStore()
    state = new_state(f"id {HOSTILE[:60]}", **{f"key{HOSTILE}": HOSTILE})
    await store.add(await record([answer(HOSTILE)], HOSTILE, state=state, name=HOSTILE))
    read = await store.read(state.agent_id)
    hostile = replace(read.summary, resolved_by=HOSTILE, reason=HOSTILE, agent_id="other", identity=new_id())
    await store.create(hostile, [Entry(body) for body in read.entries])
    async with inspecting(store) as inspector:
        await inspector.show()
        page = inspector.page
        await page.locator(ROWS).nth(1).wait_for()
        assert await page.locator("main img, main script").count() == 0
        assert HOSTILE in (await cells(inspector, "other"))["why"]
        await inspector.show("#/sessions?" + "search=" + HOSTILE.replace("&", "%26"))
        await page.get_by_text("No session matches").or_(page.locator(ROWS).first).first.wait_for()
        assert await page.evaluate("window.hacked") is None


async def test_the_list_works_with_keys_alone() -> None:
    async with listing() as inspector:
        page = inspector.page
        names = await ids(inspector)
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.type") == "search"
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        assert await page.evaluate("document.activeElement.textContent") == names[0]
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/#/s/{names[1]}")
        await page.keyboard.press("g")
        await page.keyboard.press("s")
        await page.locator(ROWS).first.wait_for()


async def test_on_a_phone_a_row_is_two_lines_and_nothing_is_cut_off() -> None:
    async with listing(width=390, height=844) as inspector:
        page = inspector.page
        row = (
            page.locator(ROWS, has_text="StepsLimit").or_(page.locator(ROWS, has_text="Limit reached")).first
        )
        lines = await row.evaluate(
            """(row) => new Set([...row.cells].filter((cell) => cell.offsetParent).map((cell) =>
              Math.round(cell.getBoundingClientRect().top / 10))).size"""
        )
        assert lines == 2
        assert await page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
        await page.locator(".decided-by").wait_for()
        await check_both_themes(page)


async def test_axe_finds_nothing_severe() -> None:
    async with listing() as inspector:
        await inspector.page.locator(".decided-by").wait_for()
        await inspector.page.locator(".short-question").wait_for()
        await check_both_themes(inspector.page)


# Empty lists and errors


async def test_an_empty_store_says_how_to_make_a_session() -> None:
    async with inspecting(MemoryStore()) as inspector:
        await inspector.show()
        await inspector.page.get_by_text("No sessions yet").wait_for()
        text = await inspector.text()
        assert "whyloop demo --serve" in text
        assert "Session.open" in text
        await check_both_themes(inspector.page)


async def test_each_error_says_what_to_do() -> None:
    async with listing() as inspector:
        page = inspector.page
        body = '{"error": {"type": "unavailable", "message": "The store cannot be used at the moment."}}'
        failing = True

        async def fail(route: Any) -> None:
            if failing:
                await route.fulfill(status=503, content_type="application/json", body=body)
            else:
                await route.continue_()

        await page.route("**/sessions?*", fail)
        await page.reload()
        await page.get_by_text("The store is not available").wait_for()
        assert "The store cannot be used at the moment." in await inspector.text()
        failing = False
        await page.locator(ROWS).first.wait_for()
        await page.get_by_text("The store is not available").wait_for(state="detached")

        await page.unroute("**/sessions?*")
        await page.route("**/sessions?*", lambda route: route.abort())
        await page.reload()
        await page.get_by_text("The server cannot be reached").wait_for()
        assert await page.get_by_role("button", name="Try again").count() == 1


async def test_a_filter_that_is_not_valid_can_be_removed() -> None:
    async with listing("#/sessions?status=nonsense") as inspector:
        page = inspector.page
        await page.get_by_text("A filter in the address is not valid.").wait_for()
        await page.get_by_role("button", name="Clear all filters").click()
        await page.locator(ROWS).first.wait_for()


async def test_a_refused_client_is_asked_for_the_token() -> None:
    def access(connection: Any) -> Access | None:
        return Access("") if connection.headers.get("authorization") == "Bearer open-sesame" else None

    async with listing_with_access(access) as inspector:
        page = inspector.page
        await page.get_by_label("This server needs a token").fill("open-sesame")
        await page.get_by_role("button", name="Sign in").click()
        await page.locator(ROWS).first.wait_for()


@asynccontextmanager
async def listing_with_access(access: Any) -> AsyncIterator[Inspector]:
    store = MemoryStore()
    await fill(store)
    async with inspecting(store, access=access, public=False) as inspector:
        await inspector.show()
        yield inspector
