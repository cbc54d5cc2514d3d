"""The list of sessions in a real browser, on every screen, even with hostile content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.lists import (
    ROWS,
    cells,
    fill,
    ids,
    listing,
    new_state,
    wait_for_ids,
)
from tests.inspector.runs import answer, move, record
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER
from whyloop.server import Access
from whyloop.server.bodies import RIGHTS
from whyloop.stores import Entry, MemoryStore
from whyloop.testing import call
from whyloop.tools.tool import Tool
from whyloop.values.scalars import new_id

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def test_generated_ids_leave_room_for_the_query() -> None:
    generated = "1a2b3c4d5e6f1a2b3c4d5e6f1a2b3c4d"
    store = MemoryStore()
    tools = [Tool(move, needs_approval=True)]
    await store.add(await record([call("move", {"name": "a"})], tools=tools, state=new_state(generated)))
    async with inspecting(store) as inspector:
        await inspector.show()
        for link in ("[data-row] .column-session a", ".card a.link"):
            await expect(inspector.page.locator(link).first).to_have_text("1a2b3c4d")
            await expect(inspector.page.locator(link).first).to_have_attribute("title", generated)
        await inspector.page.locator("[data-row] .column-session a").click()
        await expect(inspector.page.locator(".crumbs b")).to_have_text(generated)


async def test_each_row_says_why_its_session_ended() -> None:
    async with listing() as inspector:
        await wait_for_ids(inspector, "broken", "cut", "done", "waits")
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
        await expect(marks).to_have_attribute("aria-label", "2 steps: 1 forbidden to continue")


async def test_the_numbers_of_the_charts_are_there_as_text() -> None:
    async with listing() as inspector:
        page = inspector.page
        await expect(page.get_by_text("4 sessions, newest first. 1 waiting for a person.")).to_be_visible()
        table = page.get_by_role("table", name="How runs ended on each day")
        await expect(table.get_by_role("row")).to_have_count(15)
        today = await table.get_by_role("row").last.get_by_role("cell").all_inner_texts()
        assert today == ["1", "1", "1", "0"]
        await expect(page.get_by_role("button", name="StepsLimit 1 session")).to_have_count(1)


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
        await expect(page.locator(ROWS).nth(1)).to_be_visible()
        await expect(page.locator("main img, main script")).to_have_count(0)
        assert HOSTILE in (await cells(inspector, "other"))["why"]
        await inspector.show("#/sessions?" + "search=" + HOSTILE.replace("&", "%26"))
        await expect(
            page.get_by_text("No session matches").or_(page.locator(ROWS).first).first
        ).to_be_visible()
        assert await page.evaluate("window.hacked") is None


async def test_the_list_works_with_keys_alone() -> None:
    async with listing() as inspector:
        page = inspector.page
        names = await ids(inspector)
        await page.keyboard.press("/")
        await expect(page.locator(":focus")).to_have_attribute("type", "search")
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await expect(page.locator(":focus")).to_have_text(names[0])
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/#/s/{names[1]}")
        await page.keyboard.press("g")
        await page.keyboard.press("s")
        await expect(page.locator(ROWS).first).to_be_visible()


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
        await expect(page.locator(".decided-by")).to_be_visible()
        await check_both_themes(page)


async def test_axe_finds_nothing_severe() -> None:
    async with listing() as inspector:
        await expect(inspector.page.locator(".decided-by")).to_be_visible()
        await expect(inspector.page.locator(".short-question")).to_be_visible()
        await check_both_themes(inspector.page)


async def test_an_empty_store_says_how_to_make_a_session() -> None:
    async with inspecting(MemoryStore()) as inspector:
        await inspector.show()
        await expect(inspector.page.get_by_text("No sessions yet")).to_be_visible()
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
        await expect(page.get_by_text("The store is not available")).to_be_visible()
        await expect(inspector.page.locator("main")).to_contain_text(
            "The store cannot be used at the moment.", use_inner_text=True
        )
        failing = False
        await expect(page.locator(ROWS).first).to_be_visible()
        await expect(page.get_by_text("The store is not available")).not_to_be_attached()

        await page.unroute("**/sessions?*")
        await page.route("**/sessions?*", lambda route: route.abort())
        await page.reload()
        await expect(page.get_by_text("The server cannot be reached")).to_be_visible()
        await expect(page.get_by_role("button", name="Try again")).to_have_count(1)


async def test_a_refused_client_is_asked_for_the_token() -> None:
    def access(connection: Any) -> Access | None:
        return (
            Access("", may=RIGHTS)
            if connection.headers.get("authorization") == "Bearer open-sesame"
            else None
        )

    async with listing_with_access(access) as inspector:
        page = inspector.page
        await page.get_by_label("This server needs a token").fill("open-sesame")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(ROWS).first).to_be_visible()


@asynccontextmanager
async def listing_with_access(access: Any) -> AsyncIterator[Inspector]:
    store = MemoryStore()
    await fill(store)
    async with inspecting(store, access=access, public=False) as inspector:
        await inspector.show()
        yield inspector
