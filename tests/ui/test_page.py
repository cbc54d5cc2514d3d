"""The page in the guide, in a real browser, against the server in the guide."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error as PlaywrightError

from tests.real.browser import SHARES_BROWSER, open_page
from tests.server.streams_support import Serving, serving
from tests.support import scripted
from tests.ui.envelopes import QUESTION, STOPPED, asked, chunk, started
from tests.ui.support import GUIDE, README
from whyloop import Agent, ErrorPolicy, tool
from whyloop.errors import ModelError
from whyloop.testing import call, calls
from whyloop.values.text import revealed

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script> \u202egnol \u2028&amp;"
MARKUP = "document.querySelectorAll('#chat :is(img, script, b, u)').length"
# The texts of the page, each with its element; the text of a section is the one beside its calls.
LOOKS = """() => [...document.querySelectorAll("#chat :is(section,summary,pre,button)")].flatMap((each) => {
  const texts = [...each.childNodes].filter(({ nodeType }) => nodeType === Node.TEXT_NODE);
  const text = texts.map(({ data }) => data).join("").trim();
  return text ? [`${each.tagName.toLowerCase()}.${each.className}: ${text}`] : [];
})"""
# Whether the history is there.
LISTENS = "performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/messages'))"
SHOWS = f"(expected) => JSON.stringify(({LOOKS})()) === JSON.stringify(expected)"


class Site:
    """The app of the guide with an agent of the test's own, whose tool `look` waits for `let_continue`."""

    def __init__(self, *replies: Any, **options: Any) -> None:
        self._looked = asyncio.Event()
        options.setdefault("error_policy", ErrorPolicy.ignore_tool_errors())
        self.app = app_of_the_guide(scripted(*replies, tools=[self._look(), pay], **options))

    def let_continue(self) -> None:
        self._looked.set()

    def _look(self) -> Any:
        @tool
        async def look(at: str) -> str:
            """Looks at something."""
            await self._looked.wait()
            return HOSTILE

        return look


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def app_of_the_guide(agent: Agent) -> Any:
    (block,) = re.findall(r"```python\n([^`]*?AgentServer[^`]*chat\.html[^`]*)```", GUIDE.read_text("utf-8"))
    names: dict[str, Any] = {"agent": agent}
    exec(compile(block, str(GUIDE), "exec"), names)
    return names["app"]


class Window:
    """A browser window with the page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    async def ask(self, question: str) -> None:
        await self.page.fill("input", question)
        await self.page.click("text=Send")

    async def shows(self, *lines: str) -> None:
        """Wait until just this can be read."""
        try:
            await self.page.wait_for_function(SHOWS, arg=lines)
        except Exception as error:
            raise AssertionError(f"{lines} is not what it shows: {await self.lines()}") from error

    async def lines(self) -> list[str]:
        lines: list[str] = await self.page.evaluate(LOOKS)
        return lines

    async def has(self, selector: str, text: str) -> None:
        """Wait until an element has this text, also in a call that is closed."""
        await self.page.locator(selector, has_text=text).first.wait_for(state="attached")


class Stage:
    """A window on the site, and the server of it."""

    def __init__(self, server: Serving, site: Site, window: Window) -> None:
        self.server, self.site, self.window = server, site, window

    async def let_continue(self) -> None:
        await self.server.do(self.site.let_continue)


@asynccontextmanager
async def opened(*replies: Any, **options: Any) -> AsyncIterator[Stage]:
    """A window on a new session with an agent that follows this script."""
    site = Site(*replies, **options)
    async with serving(site.app) as server, open_page() as page:
        stage = Stage(server, site, Window(page))
        await page.goto(server.address)
        await page.wait_for_url("**/?session=*")
        try:
            yield stage
        finally:
            await stage.let_continue()


@pytest.fixture(autouse=True)
def chat_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page, where the app of the guide looks for it."""
    (page,) = re.findall(r"```html\n(<!doctype html>.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "chat.html").write_text(page, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


HIDDEN = calls(call("look", {"at": HOSTILE}), call("lo<b>ok"), text="I <u>look</u>.")
NO_SUCH_TOOL = "there is no tool named 'lo<b>ok'. The tools are: look, pay."


def looked(first: str) -> list[str]:
    """What can be read of the reply `HIDDEN`, of which the first call came to this."""
    return [
        "section.user: What <b>is</b> it?",
        "section.assistant: I <u>look</u>.",
        f"summary.: look(at: '{HOSTILE[:30]}')",
        'pre.: {\n  "at": "' + revealed(HOSTILE) + '"\n}',
        first,
        "summary.: lo<b>ok()",
        "pre.: {}",
        f"pre.error: {NO_SUCH_TOOL}",
    ]


async def test_a_run_is_shown_as_it_happens_and_then_as_it_is_stored() -> None:
    async with opened(HIDDEN, f"It is {HOSTILE}.") as stage:
        await stage.window.ask("What <b>is</b> it?")
        await stage.window.shows(*looked("pre.status: Running look"))
        await stage.let_continue()
        done = [*looked(f"pre.tool: {HOSTILE}"), f"section.assistant: It is {HOSTILE}.", "button.: Why?"]
        await stage.window.shows(*done)
        await stage.window.page.reload()
        await stage.window.shows(*done)
        assert await stage.window.page.evaluate(MARKUP) == 0
        assert await stage.window.page.evaluate("window.hacked") is None


async def test_a_call_that_the_user_has_opened_stays_open() -> None:
    async with opened(call("look", {"at": "it"}), "A star.") as stage:
        await stage.window.ask("What is it?")
        result = stage.window.page.locator("details pre").last
        await stage.window.has("details", "Running look")
        assert not await result.is_visible()
        await stage.window.page.click("summary")
        await result.wait_for()
        await stage.let_continue()
        await stage.window.has("button", "Why?")
        assert await result.inner_text() == HOSTILE
        await stage.window.page.click("summary")
        assert not await result.is_visible()


async def test_another_window_shows_the_question_as_soon_as_its_run_begins() -> None:
    async with opened(call("look", {"at": "it"}), "A star.") as stage:
        other = Window(await stage.window.page.context.browser.new_page())
        await other.page.goto(stage.window.page.url)
        await other.page.wait_for_function(LISTENS)
        await stage.window.ask("What is it?")
        running = ["section.user: What is it?", "summary.: look(at: 'it')", 'pre.: {\n  "at": "it"\n}']
        for window in (stage.window, other):
            await window.shows(*running, "pre.status: Running look")
        await stage.let_continue()
        for window in (stage.window, other):
            await window.shows(
                *running, f"pre.tool: {HOSTILE}", "section.assistant: A star.", "button.: Why?"
            )


def paid(first: list[str], second: list[str]) -> list[str]:
    return [
        "section.user: Pay!",
        "summary.: pay(amount: 1)",
        'pre.: {\n  "amount": 1\n}',
        *first,
        "summary.: pay(amount: 2)",
        'pre.: {\n  "amount": 2\n}',
        *second,
    ]


WAITING = ["pre.status: pay waits for approval", "button.: approve", "button.: deny"]


async def test_the_run_continues_once_people_have_decided_about_each_call() -> None:
    both = calls(call("pay", {"amount": 1}), call("pay", {"amount": 2}))
    async with opened(both, "One was paid.") as stage:
        await stage.window.ask("Pay!")
        await stage.window.shows(*paid(WAITING, WAITING), "button.: Why?")
        await stage.window.page.click("text=approve >> nth=0")
        approved = ["pre.status: pay: approved by an unnamed person"]
        await stage.window.shows(*paid(approved, WAITING), "button.: Why?")
        await stage.window.page.click("text=deny")
        done = paid(["pre.tool: paid 1"], ["pre.error: denied by an unnamed person"])
        await stage.window.shows(*done, "section.assistant: One was paid.", "button.: Why?")


async def test_a_decision_is_shown_in_all_windows_and_one_that_is_too_late_is_refused() -> None:
    async with opened(call("pay", {"amount": 1}), "It was not paid.") as stage:
        await stage.window.ask("Pay!")
        await stage.window.has("button", "approve")
        late = Window(await stage.window.page.context.browser.new_page())
        # Envelopes never reach this window.
        await late.page.route("**/agents/**/events*", lambda route: None)
        await late.page.goto(stage.window.page.url)
        await late.has("button", "approve")
        url = stage.window.page.url.replace("?session=", "agents/sessions/")
        stored = await (await late.page.request.get(f"{url}/messages")).json()
        question = stored["messages"][-1]["metadata"]["question_id"]
        await late.page.request.post(f"{url}/deny", data={"question_id": question, "reason": "too much"})
        result = paid(["pre.error: denied by an unnamed person: too much"], [])[:4]
        denied = [*result, "section.status: Waiting for a person", "button.: Why?"]
        await stage.window.shows(*denied)
        await late.page.click("text=approve")
        await late.has("section.error", f"question '{question}' was already denied by an unnamed person")
        await late.has("pre.error", "denied by an unnamed person: too much")
        assert await late.page.locator("details button").count() == 0


async def test_a_run_is_stopped_and_shows_why() -> None:
    async with opened(call("look", {"at": "it"}), "never said") as stage:
        await stage.window.ask("What is it?")
        await stage.window.has("pre", "Running look")
        async with stage.window.page.expect_response("**/stop"):
            await stage.window.page.click("text=Stop")
        await stage.let_continue()
        await stage.window.has("section.status", "Agent stopped: user_requested Why?")
        await stage.window.page.click("text=Why?")
        await stage.window.has("pre.trace", "StopRequestedCheck")
        assert (await stage.window.lines())[-1].startswith("pre.trace: Stopped after 1 step")


async def test_a_question_that_is_refused_can_be_asked_again() -> None:
    async with opened(call("look", {"at": "it"}), "A star.", "Yes.") as stage:
        await stage.window.ask("What is it?")
        await stage.window.has("pre", "Running look")
        await stage.window.ask("Really?")
        await stage.window.has("section.error", "The session is being run")
        assert await stage.window.page.locator("section.user").all_inner_texts() == ["What is it?"]
        assert await stage.window.page.input_value("input") == "Really?"
        await stage.let_continue()
        await stage.window.has("section", "A star.")
        await stage.window.page.click("text=Send")
        await stage.window.has("section", "Yes.")
        asked = await stage.window.page.locator("section.user").all_inner_texts()
        assert asked == ["What is it?", "Really?"]


async def test_a_failure_is_shown_and_explained() -> None:
    async with opened(ModelError("no <b>model</b>")) as stage:
        await stage.window.ask("Hello?")
        await stage.window.has("section.error", "no <b>model</b>")
        await stage.window.page.click("text=Why?")
        await stage.window.has("pre.trace", "no <b>model</b>")
        assert await stage.window.page.evaluate(MARKUP) == 0


async def test_an_explanation_stays_when_the_history_arrives_after_it() -> None:
    async with opened(ModelError("no model")) as stage:
        page, arrives = stage.window.page, asyncio.Event()

        async def hold(route: Any) -> None:
            if route.request.method == "GET":
                await arrives.wait()
            with suppress(PlaywrightError):  # The page has given up a request for a newer one.
                await route.continue_()

        async with page.expect_response(lambda response: "/messages" in response.url):
            await page.reload()
        await page.route("**/messages*", hold)
        await stage.window.ask("Hello?")
        await page.click("text=Why?")
        await stage.window.has("pre.trace", "no model")
        await page.evaluate("document.querySelector('pre.trace').className = 'trace drawn-first'")
        arrives.set()
        await stage.window.has("pre.trace:not(.drawn-first)", "no model")


async def test_a_history_that_cannot_be_loaded_is_an_error_on_the_page() -> None:
    async with opened() as stage:
        await stage.window.page.goto(f"{stage.server.address}/?session=of%2Fnobody")
        await stage.window.has("#problem", "The history could not be loaded: the server answered 404")


class FakeSession:
    """The answers of a server for one session, as the browser requests them."""

    def __init__(self, *envelopes: dict[str, Any]) -> None:
        frames = [f"id: e1:{each['seq']}\ndata: {json.dumps(each)}\n\n" for each in envelopes]
        self._stream = "retry: 600000\n\n" + "".join(frames)
        self.stored: list[dict[str, Any]] = []
        self.stored_once_decided: list[dict[str, Any]] = []
        self.decisions: list[Any] = []

    async def open(self, stage: Stage) -> None:
        await stage.window.page.unroute_all()
        await stage.window.page.route("**/agents/sessions/s1/**", self.answer)
        await stage.window.page.goto(f"{stage.server.address}/?session=s1")

    async def answer(self, route: Any) -> None:
        path = route.request.url.rpartition("/")[2].partition("?")[0]
        if path == "events":
            await route.fulfill(body=self._stream, content_type="text/event-stream")
        elif path == "messages":
            await route.fulfill(json={"messages": self.stored, "after": None})
        else:
            self.decisions.append((path, json.loads(route.request.post_data)))
            self.stored = self.stored_once_decided
            await route.fulfill(json={"pending_calls": ["another"]})


async def test_questions_are_shown_as_they_are_asked_and_decided_by_their_ids() -> None:
    reasoning = chunk(1, "I should pay.", kind="reasoning")
    session = FakeSession(started(1), reasoning, asked(2), asked(3, None, "q2"))
    async with opened() as stage:
        await session.open(stage)
        await stage.window.shows(
            "summary.: Reasoning",
            "summary.: pay(amount: 7)",
            "pre.status: pay waits for approval",
            "button.: approve",
            "button.: deny",
            "section.status: The run waits for approval",
            "button.: approve",
            "button.: deny",
        )
        session.stored_once_decided = [STOPPED]
        await stage.window.page.click("text=deny >> nth=1")
        await stage.window.has("section.status", "Agent stopped: steps_limit")
        assert session.decisions == [("deny", {"question_id": "q2"})]
        title = await stage.window.page.locator("section.status").last.get_attribute("title")
        assert title == STOPPED["metadata"]["reason"]


async def test_reasoning_is_folded_and_never_text() -> None:
    session = FakeSession(started(1), chunk(1, "I <b>think</b>.", kind="reasoning"), chunk(1, "Yes.", 1))
    async with opened() as stage:
        await session.open(stage)
        await stage.window.shows("section.assistant: Yes.", "summary.: Reasoning")
        block = stage.window.page.locator("details")
        assert not await block.evaluate("(each) => each.open")
        await stage.window.page.click("summary")
        assert await block.inner_text() == "Reasoning\nI <b>think</b>."
        assert await stage.window.page.evaluate(MARKUP) == 0


async def test_the_page_in_the_readme_shows_a_session_without_a_build_step() -> None:
    (html,) = re.findall(r"```html\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    Path("chat.html").write_text(html, encoding="utf-8")
    session = FakeSession(started(1), chunk(1, "<b>Me</b>."))
    session.stored = [QUESTION]
    async with serving(Site().app) as server, open_page() as page:
        await page.route("**/agents/sessions/42/**", session.answer)
        await page.goto(server.address)
        lines = page.locator("#chat li")
        await lines.nth(1).wait_for()
        assert await lines.all_inner_texts() == ["user: Who?", "assistant: <b>Me</b>."]
        assert await page.evaluate(MARKUP) == 0
