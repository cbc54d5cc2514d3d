"""A session in a real browser: its own EventSource and its own WebSocket, and what people see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from tests.real.browser import PAGE, SHARES_BROWSER, open_page
from tests.server.streams_support import Serving
from tests.support import RespondingModel
from whyloop import Agent, ErrorPolicy, FinishReason, ModelRequest, ModelResponse, TextDelta, ToolCall, tool
from whyloop.server import AgentServer
from whyloop.stores import SqliteStore
from whyloop.wire.envelope import NUMBERED

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>\u202egnol\u2028&amp;"
WAYS = pytest.mark.parametrize("way", ["events", "socket"])
BOTH_CALLS = (ToolCall("call_1", "look", {"at": "here"}), ToolCall("call_2", HOSTILE, {"at": HOSTILE}))


class Site:
    """A page and the sessions of a store, as one app; the model and the tool wait for a word at each turn."""

    def __init__(self, store: SqliteStore) -> None:
        self.asked: list[str | None] = []
        self._turns = asyncio.Semaphore(0)
        policy = ErrorPolicy.retry_tool_errors()
        agent = Agent(RespondingModel(self._respond), [self._look()], error_policy=policy)
        self.agents = AgentServer(store, agent, public=True)
        self.app = Starlette(
            routes=[
                Route("/", lambda _: FileResponse(PAGE)),
                Mount("/whyloop-ui", StaticFiles(directory=str(files("whyloop") / "ui"))),
                Mount("/agents", self._agents),
            ],
            lifespan=self.agents.lifespan,
        )

    def go_on(self) -> None:
        """Let the run take one more turn."""
        self._turns.release()

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        is_first = not request.messages[-1].is_tool
        pieces = ["Let me ", "see."] if is_first else ["It is ", f"{HOSTILE}, ", "as you ", "see."]
        for piece in pieces:
            yield TextDelta(piece)
            await self._turns.acquire()
        wanted, reason = (BOTH_CALLS, "tool_calls") if is_first else ((), "stop")
        yield ModelResponse("".join(pieces), wanted, finish_reason=FinishReason(reason))

    def _look(self) -> Any:
        @tool
        async def look(at: str) -> str:
            """Looks at something."""
            await self._turns.acquire()
            return HOSTILE

        return look

    async def _agents(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/events"):
            self.asked.append(dict(scope["headers"]).get(b"last-event-id", b"").decode() or None)
        await self.agents(scope, receive, send)


class Browser:
    """A page that shows the session `a`, and the site that it is of."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self._folder = page, folder
        self._port = 0

    async def start(self) -> None:
        """Serve the site, where it was served before if it was."""
        self.site = Site(SqliteStore(self._folder / "whyloop.db"))
        self.server = Serving(self.site.app, port=self._port)
        self._port = self.server.port
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()
        await self.site.agents.events.store.close()

    async def open(self, way: str = "events") -> None:
        """Have a session, and a page that hears of it."""
        created = f"{self.server.address}/agents/sessions"
        await self.page.request.post(created, data={"agent_id": "a"})
        await self.page.goto(f"{self.server.address}/?session=a&way={way}")
        await self.page.wait_for_function("window.opened === 1")

    async def ask(self, question: str) -> None:
        await self.page.fill("input", question)
        await self.page.click("button")

    async def go_on(self, turns: int = 1) -> None:
        for _ in range(turns):
            await self.server.do(self.site.go_on)

    async def shows(self, *lines: str, status: str = "") -> None:
        """Wait until the page shows just these, and this below them."""
        expected = {"lines": lines, "status": status}
        try:
            await self.page.wait_for_function(SHOWS, arg=expected)
        except Exception as error:
            raise AssertionError(f"{expected} is not what it shows: {await self.looks()}") from error

    async def looks(self) -> Any:
        return await self.page.evaluate(LOOKS)

    async def is_done(self) -> None:
        """Wait until the page has heard of the end of a run, and shows the history."""
        await self.page.wait_for_function("window.heard.length && !window.running")

    async def opens_again(self) -> None:
        """Wait until the page has opened a second connection."""
        await self.page.wait_for_function("window.opened === 2")

    async def heard(self) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = await self.page.evaluate("window.heard")
        return heard


LOOKS = """() => ({
  lines: [...document.querySelectorAll("#chat p, #chat summary, #chat pre")].map((each) => each.textContent),
  status: document.getElementById("status").textContent,
})"""
SHOWS = f"(expected) => JSON.stringify(({LOOKS})()) === JSON.stringify(expected)"


@pytest_asyncio.fixture(loop_scope="session")
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with open_page() as page:
        browser = Browser(page, tmp_path)
        await browser.start()
        try:
            yield browser
        finally:
            await browser.stop()


def assert_numbered(heard: list[dict[str, Any]]) -> None:
    """Check that no numbered envelope of a run is missing or there twice."""
    numbers = [each["seq"] for each in heard if each["event"] in NUMBERED]
    assert numbers == list(range(1, len(numbers) + 1))


QUESTION = "What <b>is</b> it?"
NO_SUCH_TOOL = f"there is no tool named {json.dumps(HOSTILE)}. The tools are: look."
CALLS = ["look", HOSTILE, HOSTILE, NO_SUCH_TOOL]
ANSWER = f"It is {HOSTILE}, as you see."
ALL = [QUESTION, "Let me see.", *CALLS, ANSWER]


@WAYS
async def test_people_see_a_run_as_it_happens_and_then_what_is_stored(browser: Browser, way: str) -> None:
    await browser.open(way)
    await browser.ask(QUESTION)
    await browser.shows(QUESTION, "Let me ")
    await browser.go_on()
    await browser.shows(QUESTION, "Let me see.")
    await browser.go_on()
    await browser.shows(QUESTION, "Let me see.", "look", "Running look", *CALLS[2:])
    await browser.go_on()
    await browser.shows(QUESTION, "Let me see.", *CALLS, "It is ")
    assert await browser.page.evaluate("window.running") is True
    await browser.go_on(3)
    await browser.shows(QUESTION, "Let me see.", *CALLS, ANSWER)
    await browser.go_on()
    await browser.is_done()
    await browser.shows(*ALL)
    assert_numbered(await browser.heard())
    # The calls and what came of them are one thing each.
    calls = await browser.page.evaluate(
        "[...document.querySelectorAll('details')].map((each) => each.innerText)"
    )
    assert [len(call.splitlines()) >= 2 for call in calls] == [True, True]
    await browser.page.reload()
    await browser.shows(*ALL)


async def test_the_result_of_a_tool_does_not_become_markup_of_the_page(browser: Browser) -> None:
    await browser.open()
    await browser.ask(HOSTILE)
    await browser.go_on(7)
    await browser.is_done()
    await browser.shows(HOSTILE, *ALL[1:])
    assert await browser.page.evaluate("document.querySelectorAll('#chat :is(img, script, b)').length") == 0
    assert await browser.page.evaluate("window.hacked") is None


async def test_a_browser_whose_line_was_cut_comes_back_and_has_missed_and_doubled_nothing(
    browser: Browser,
) -> None:
    await browser.open()
    await browser.ask(QUESTION)
    await browser.shows(QUESTION, "Let me ")
    last = (await browser.heard())[-1]["lastEventId"]
    await browser.server.cut_connections()
    await browser.opens_again()
    await browser.go_on()
    await browser.shows(QUESTION, "Let me see.")
    await browser.go_on(6)
    await browser.is_done()
    await browser.shows(*ALL)
    assert_numbered(await browser.heard())
    assert browser.site.asked == [None, last]


async def test_text_that_streams_while_a_browser_is_away_is_missing_until_the_history_has_it(
    browser: Browser,
) -> None:
    await browser.open()
    await browser.ask(QUESTION)
    await browser.shows(QUESTION, "Let me ")
    await browser.server.cut_connections()
    await browser.go_on(2)
    await browser.shows(QUESTION, "Let me …", "look", "Running look", *CALLS[2:])
    await browser.go_on(5)
    await browser.is_done()
    await browser.shows(*ALL)
    assert_numbered(await browser.heard())


async def test_a_browser_that_was_away_at_the_end_shows_all_of_it_when_it_comes_back(
    browser: Browser,
) -> None:
    await browser.open()
    await browser.ask(QUESTION)
    await browser.go_on(5)
    await browser.shows(QUESTION, "Let me see.", *CALLS, f"It is {HOSTILE}, as you ")
    before = await browser.heard()
    await browser.server.cut_connections()
    await browser.go_on(2)
    await browser.is_done()
    await browser.shows(*ALL)
    missed = [each["event"] for each in (await browser.heard())[len(before) :]]
    assert missed[-2:] == ["agent.step.completed", "agent.status"]
    assert browser.site.asked == [None, before[-1]["lastEventId"]]


async def test_a_socket_that_was_cut_is_opened_again_and_the_text_is_whole(browser: Browser) -> None:
    await browser.open("socket")
    await browser.ask(QUESTION)
    await browser.shows(QUESTION, "Let me ")
    await browser.server.cut_connections()
    await browser.opens_again()
    await browser.go_on(4)
    await browser.shows(QUESTION, "Let me see.", *CALLS, f"It is {HOSTILE}, ")
    await browser.go_on(3)
    await browser.is_done()
    await browser.shows(*ALL)


@WAYS
async def test_a_browser_outlives_the_server(browser: Browser, way: str) -> None:
    await browser.open(way)
    await browser.ask(QUESTION)
    await browser.go_on(7)
    await browser.is_done()
    told = len(await browser.heard())
    await browser.stop()
    await browser.start()
    await browser.page.wait_for_function("window.opened >= 2")
    await browser.shows(*ALL)
    await browser.ask("Again?")
    await browser.go_on(7)
    await browser.is_done()
    await browser.shows(*ALL, "Again?", *ALL[1:])
    assert_numbered((await browser.heard())[told:])
