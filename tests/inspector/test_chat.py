"""The chat alone: in an element of another page, and as a page of the inspector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tests.inspector.dictation import Dictation
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER, open_page
from tests.server.streams_support import Serving
from whyloop import Agent, Session, tool
from whyloop.server import Access, AgentServer
from whyloop.server.bodies import Right
from whyloop.stores import MemoryStore
from whyloop.testing import call

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

# The page has a style of its own, which is not for the chat.
PAGE = """<!doctype html><meta charset="utf-8"><title>Shop</title>
<style>button { display: none } h1 { color: rgb(1, 2, 3) } .call { display: none }</style>
<h1>Shop</h1><div id="chat"></div>
<script type="module">
import { mountChat } from "/assets/chat.js";
const headers = { authorization: "Bearer secret" };
window.chat = mountChat(document.getElementById("chat"), { url: "/agents/sessions/a", headers });
</script>"""


@tool(needs_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@asynccontextmanager
async def shop(*may: Right) -> AsyncIterator[tuple[Inspector, Dictation]]:
    """A page of an application that shows the session `a` of a server that wants a token."""
    told, store = Dictation(), MemoryStore()
    agent = Agent(told.model, [refund])
    await Session.open(store, agent, "a", create=True)

    def access(connection: HTTPConnection) -> Access | None:
        is_known = connection.headers.get("authorization") == "Bearer secret"
        return Access("ann", may=may) if is_known else None

    server = AgentServer(store, agent, access=access)
    assets = StaticFiles(packages=[("whyloop", "inspector/static")])
    routes = [Route("/", lambda _: HTMLResponse(PAGE)), Mount("/agents", server), Mount("/assets", assets)]
    serving = Serving(Starlette(routes=routes, lifespan=server.lifespan))
    await serving.start()
    told.serve(serving)
    try:
        async with open_page() as page:
            inspector = Inspector(page, serving)
            await page.goto(serving.address)
            yield inspector, told
            assert not inspector.problems, inspector.problems
            await page.goto("about:blank")
    finally:
        await serving.do(server.close)
        await serving.stop()


async def ask(inspector: Inspector, question: str) -> None:
    await inspector.page.get_by_label("Next question").fill(question)
    await inspector.page.keyboard.press("Enter")


async def test_a_page_of_another_application_shows_a_session_live() -> None:
    async with shop("send", "decide", "inspect") as (inspector, told):
        page: Any = inspector.page
        await ask(inspector, "Refund order 17.")
        await told.write_until(page.locator(".streaming b", has_text="look"), "I **look** ")
        await told.answer(call("refund", {"order": 17}, text="I **look** it up."))
        await expect(page.locator(".call.waiting")).to_be_visible()
        await page.get_by_role("button", name="Approve", exact=True).click()
        await page.get_by_role("dialog").get_by_role("button", name="Approve and resume").click()
        await told.answer("Done.")
        await expect(page.get_by_text("Done.", exact=True)).to_be_visible()
        await expect(page.locator(".call.succeeded", has_text="Approved by ann")).to_be_visible()
        assert await page.locator("h1").evaluate("title => getComputedStyle(title).color") == "rgb(1, 2, 3)"
        await expect(page.locator(".step-heading a")).to_have_count(0)
        await page.evaluate("window.chat.close()")
        await expect(page.locator(".conversation, dialog")).to_have_count(0)


async def test_a_chat_connects_again_and_misses_nothing() -> None:
    async with shop("send") as (inspector, told):
        await ask(inspector, "Are you there?")
        await told.write_until(inspector.page.locator(".streaming", has_text="I am"), "I am")
        await inspector.serving.cut_connections()
        await told.answer("I am here.")
        await expect(inspector.page.locator(".answer", has_text="I am here.")).to_be_visible()
        await expect(inspector.page.locator(".end-card", has_text="Completed by")).to_be_visible()
        await expect(inspector.page.locator(".answer")).to_have_count(1)


async def test_a_wrong_address_is_refused_with_what_to_use() -> None:
    async with shop() as (inspector, _):
        mount = """async () => {
            const { mountChat } = await import("/assets/chat.js");
            try { mountChat(document.body, { url: "/agents/42" }) } catch (error) { return error.message }
        }"""
        assert "use the address of a session" in await inspector.page.evaluate(mount)


async def test_a_chat_of_a_session_that_does_not_exist_says_so_and_offers_nothing() -> None:
    async with shop() as (inspector, _):
        page = inspector.page
        mount = """async () => {
            const { mountChat } = await import("/assets/chat.js");
            const headers = { authorization: "Bearer secret" };
            window.chat.close();
            mountChat(document.getElementById("chat"), { url: "/agents/sessions/none", headers });
        }"""
        await page.evaluate(mount)
        await expect(page.locator(".session-error")).to_have_text("session 'none' not found in this store")
        await expect(page.locator(".conversation")).to_have_count(0)


async def test_the_inspector_has_a_page_with_the_conversation_alone() -> None:
    told, store = Dictation(), MemoryStore()
    agent = Agent(told.model)
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent, width=390) as inspector:
        told.serve(inspector.serving)
        await inspector.show("#/chat/a")
        await ask(inspector, "Hello?")
        await told.write_until(inspector.page.locator(".streaming"), "Hel")
        await told.answer("Hello.")
        await expect(inspector.page.get_by_text("Completed by")).to_be_visible()
        await expect(inspector.page.locator(".ledger")).to_have_count(0)
