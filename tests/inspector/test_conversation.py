"""The conversation of a session in the inspector: live, with every state of a call, and safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.inspector.accessibility import severe_findings
from tests.inspector.dictation import Dictation
from tests.inspector.runs import long_run
from tests.inspector.support import Inspector, inspecting
from tests.server.other_process import another_process
from whyloop import Agent, Session, tool
from whyloop.errors import RateLimitError
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.server import Access
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.values.approval import Verdict
from whyloop.values.decisions import decide
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.state import AgentState

pytestmark = pytest.mark.slow

ROUTE = "#/s/a"


@tool(needs_approval=True)
async def refund(order: int, amount: int = 20) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


@tool
async def look(name: str) -> str:
    """Look something up."""
    if name == "missing":
        raise ConnectionError("the registry did not answer")
    return f"{name} is known"


@asynccontextmanager
async def dictated(
    *tools: Any, store: Store | None = None, **options: Any
) -> AsyncIterator[tuple[Inspector, Dictation]]:
    """The page of a session `a` whose model writes what the test dictates."""
    told, store = Dictation(), store or MemoryStore()
    width = options.pop("width", 1440)
    agent = Agent(told.model, tools or [look], **options)
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent, width=width) as inspector:
        told.serve(inspector.serving)
        await inspector.show(ROUTE)
        await conversation(inspector).wait_for()
        yield inspector, told


def conversation(inspector: Inspector) -> Any:
    return inspector.page.locator(".conversation")


def waits_for(inspector: Inspector, shown: str) -> Any:
    return conversation(inspector).get_by_text(shown).first.wait_for()


@asynccontextmanager
async def tabs(inspector: Inspector, count: int) -> AsyncIterator[list[Inspector]]:
    """Tabs of one browser, which share their connection."""
    context = await inspector.page.context.browser.new_context()
    opened = [Inspector(await context.new_page(), inspector.serving) for _ in range(count)]
    yield opened
    await context.close()
    assert not [problem for each in opened for problem in each.problems]


async def ask(inspector: Inspector, question: str) -> None:
    await inspector.page.get_by_label("Next question").fill(question)
    await inspector.page.keyboard.press("Enter")


async def showing(state: AgentState | Store, **options: Any) -> Any:
    """A store with one session."""
    store = MemoryStore()
    await store.add(state)  # type: ignore[arg-type]
    return store


# Live


async def test_text_appears_while_the_model_writes_it() -> None:
    async with dictated() as (inspector, told):
        await ask(inspector, "Who are you?")
        await waits_for(inspector, "Who are you?")
        await told.write("I am ", "**Polar**")
        await inspector.page.locator(".streaming b", has_text="Polar").wait_for()
        await told.write(" Retail.")
        await waits_for(inspector, "Retail.")
        await told.answer("I am **Polar** Retail.")
        await waits_for(inspector, "Completed by ToolCallPresenceCheck")
        assert await inspector.page.locator(".streaming").count() == 0
        assert await conversation(inspector).locator(".answer").count() == 1
        assert await conversation(inspector).locator(".user-message").count() == 1


async def test_text_of_a_run_in_another_process_appears_while_it_is_written(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        await Session.open(store, Agent(ScriptedModel([])), "a", create=True)
        async with inspecting(store) as inspector:
            await inspector.show(ROUTE)
            await conversation(inspector).wait_for()
            with another_process(str(tmp_path / "sessions.db")):
                streaming = inspector.page.locator(".streaming")
                await streaming.wait_for()
                first = await streaming.inner_text()
                await inspector.page.wait_for_function(
                    "before => document.querySelector('.streaming')?.innerText.length > before + 40",
                    arg=len(first),
                )
            assert (
                await conversation(inspector).locator(".user-message").locator(".markdown").inner_text()
                == "go"
            )


async def test_a_running_call_has_its_place_until_its_result_comes() -> None:
    done = asyncio.Event()

    @tool
    async def wait() -> str:
        await done.wait()
        return "waited"

    async with dictated(wait) as (inspector, told):
        await ask(inspector, "Wait.")
        await told.answer(call("wait", text="I wait."))
        await inspector.page.locator(".call.started", has_text="Running").wait_for()
        await inspector.serving.do(done.set)
        await inspector.page.locator(".call.succeeded", has_text="Succeeded").wait_for()
        await told.answer("Done.")
        await waits_for(inspector, "Completed by")
        assert await inspector.page.locator(".call").count() == 1


async def test_a_retry_counts_down_to_the_next_attempt() -> None:
    async with dictated(error_policy=ErrorPolicy.retry_all(2)) as (inspector, told):
        await ask(inspector, "Go.")
        await told.fail(RateLimitError("429: too many requests", retry_after=3))
        line = conversation(inspector).locator(".status-line", has_text="Retry 1 of 2 in")
        await line.wait_for()
        first = await line.inner_text()
        await inspector.page.wait_for_function(
            "before => document.querySelector('.status-line')?.innerText !== before", arg=first
        )
        await told.answer("Now it works.")
        await waits_for(inspector, "Now it works.")


async def test_a_stop_says_that_it_stops_until_the_run_has_ended() -> None:
    async with dictated(stop_grace=1) as (inspector, told):
        await ask(inspector, "Go.")
        await told.write("I begin")
        await waits_for(inspector, "I begin")
        await inspector.page.locator(".compose").get_by_role("button", name="Stop").click()
        await inspector.page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        await waits_for(inspector, "Stopped by")
        await conversation(inspector).get_by_role("button", name="Resume").wait_for()
        assert await inspector.page.get_by_label("Next question").is_enabled()


# The states of calls


async def test_the_states_of_calls_differ_by_shape_word_and_border() -> None:
    script = [
        calls(call("look", {"name": "a"}), call("look", {"name": "missing"}), call("refund", {"order": 1})),
        calls(call("look", {"name": "b"}), call("refund", {"order": 2})),
    ]
    agent = Agent(ScriptedModel(script), [look, refund], error_policy=ErrorPolicy.retry_all(3))
    state = await agent.run("Go.", state=AgentState(agent_id="a"))
    (question,) = state.pending_calls
    for transition in decide(
        state, question.id, Verdict.DENIED, "ada", state.state_info.updated_at, "not yet"
    ):
        state = transition.apply_to(state)
    state = await agent.resume(state)
    async with inspecting(await showing(state), agent) as inspector:
        await inspector.show(ROUTE)
        await inspector.page.locator(".call.waiting").wait_for()
        shown = {
            "succeeded": "Succeeded",
            "failed": "the registry did not answer",
            "denied": "denied by ada: not yet",
            "waiting": "Waits for approval",
        }
        borders = {}
        for status, words in shown.items():
            card = inspector.page.locator(f".call.{status}").first
            assert words in await card.inner_text()
            borders[status] = str(
                await card.evaluate(
                    "(card) => [...getComputedStyle(card)].filter((name) => name.startsWith('border-left'))"
                    ".map((name) => getComputedStyle(card)[name])"
                )
            )
        pictures = await inspector.page.eval_on_selector_all(
            ".call .icon", "icons => new Set(icons.map((icon) => icon.innerHTML)).size"
        )
        assert len(set(borders.values())) == 4
        assert pictures == 4


async def test_a_run_whose_process_died_can_be_resumed(tmp_path: Path) -> None:
    address = str(tmp_path / "sessions.db")
    async with SqliteStore(address) as store:
        agent = Agent(ScriptedModel([text("Here I am again.")]))
        await Session.open(store, agent, "a", create=True)
        async with inspecting(store, agent) as inspector:
            await inspector.show(ROUTE)
            with another_process(address):
                await inspector.page.locator(".streaming").wait_for()
            await inspector.page.reload()
            await waits_for(inspector, "Cut off: no process runs this session any more")
            await conversation(inspector).get_by_role("button", name="Resume").click()
            await inspector.page.get_by_role("dialog").get_by_role("button", name="Resume").click()
            await waits_for(inspector, "Here I am again.")


# Decisions


async def waiting_session(*, calls_: int = 1) -> tuple[MemoryStore, Agent]:
    """A session that waits for decisions."""
    asked = calls(
        *[call("refund", {"order": 17 + each, "amount": 250}) for each in range(calls_)], text="I prepare it."
    )
    agent = Agent(ScriptedModel([asked, text("All done."), text("More.")]), [refund])
    store = MemoryStore()
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Refund it.")
    return store, agent


async def press(inspector: Inspector, name: str) -> None:
    await conversation(inspector).get_by_role("button", name=name, exact=True).first.click()


async def confirm(inspector: Inspector, name: str) -> None:
    await inspector.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


async def test_a_call_is_approved_in_place_and_the_run_continues() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        assert await inspector.page.get_by_label("Next question").is_disabled()
        await press(inspector, "Approve")
        dialog = inspector.page.get_by_role("dialog")
        assert '"amount": 250' in await dialog.inner_text()
        await confirm(inspector, "Approve and resume")
        await waits_for(inspector, "All done.")
        await inspector.page.locator(".call.succeeded", has_text="Approved by").wait_for()


async def test_a_call_is_denied_in_place_with_a_reason() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await press(inspector, "Deny")
        await inspector.page.get_by_role("dialog").get_by_label("Reason").fill("the order is too old")
        await confirm(inspector, "Deny and resume")
        await inspector.page.locator(".call.denied", has_text="the order is too old").wait_for()
        await waits_for(inspector, "All done.")


async def test_arguments_are_edited_in_place() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await press(inspector, "Edit")
        field = inspector.page.get_by_role("dialog").locator("textarea").first
        await field.fill('{"order": 17, "amount": 5}')
        await inspector.page.get_by_role("dialog").locator("button[type=submit]").click()
        await waits_for(inspector, "All done.")
        card = inspector.page.locator(".call.succeeded")
        await card.locator(".call-line").click()
        await card.get_by_text("refunded 5 for 17").wait_for()


async def test_of_two_tabs_that_decide_the_later_one_learns_of_it() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector, tabs(inspector, 2) as (one, other):
        for tab in (one, other):
            await tab.show(ROUTE)
        await press(other, "Deny")
        await press(one, "Approve")
        await confirm(one, "Approve and resume")
        await waits_for(one, "All done.")
        await confirm(other, "Deny and resume")
        assert await other.page.get_by_role("dialog").get_by_role("alert").inner_text()
        await waits_for(other, "All done.")
        await other.page.locator(".call.succeeded").wait_for()


async def test_a_server_without_an_agent_takes_decisions_and_no_questions() -> None:
    store, _ = await waiting_session()
    async with inspecting(store, None) as inspector:
        await inspector.show(ROUTE)
        await inspector.page.get_by_placeholder("This server runs no agent").wait_for()
        assert await inspector.page.get_by_label("Next question").is_disabled()
        await press(inspector, "Approve")
        await confirm(inspector, "Approve")
        await conversation(inspector).get_by_text("approved by").wait_for()


async def test_a_client_that_may_only_read_is_offered_nothing() -> None:
    store, agent = await waiting_session()

    def access(_: object) -> Access:
        return Access("ann", read_only=True)

    async with inspecting(store, agent, public=False, access=access) as inspector:
        await inspector.show(ROUTE)
        await inspector.page.locator(".call.waiting").wait_for()
        await inspector.page.get_by_placeholder("You may read here, and change nothing").wait_for()
        for name in ("Approve", "Deny", "Edit", "Resume"):
            assert await conversation(inspector).get_by_role("button", name=name).count() == 0


async def test_a_what_if_shows_where_the_conversation_would_have_ended() -> None:
    async with inspecting(await showing(await long_run(12, agent_id="a"))) as inspector:
        await inspector.show(ROUTE)
        await waits_for(inspector, "Step 12")
        slider = inspector.page.get_by_role("slider", name="What if StepsLimit")
        await slider.fill("5")
        line = conversation(inspector).get_by_text("What if: ended here")
        await line.wait_for()
        before = "line => line.previousElementSibling.innerText"
        assert "Step 5" in await line.evaluate(before)
        assert await inspector.page.locator(".block.beyond").count() == 7
        await inspector.page.wait_for_function(
            """() => {
                const place = (name) => document.querySelector(name).getBoundingClientRect();
                const [line, pane] = [place(".what-if-end"), place(".talk")];
                return line.top > pane.top && line.bottom < pane.bottom;
            }"""
        )
        await inspector.page.get_by_role("button", name="Reset").click()
        await line.wait_for(state="detached")


async def test_a_step_under_the_pointer_is_marked_everywhere() -> None:
    async with inspecting(await showing(await long_run(3, agent_id="a"))) as inspector:
        await inspector.show(ROUTE)
        await conversation(inspector).get_by_role("link", name="Step 2").hover()
        assert await inspector.page.locator(".block.hot").count() == 1


# Hostile content

EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


async def test_nothing_in_a_conversation_is_interpreted() -> None:
    markdown = "\n\n".join(
        [
            f"{EVIL} [click](javascript:window.hacked=1) ![x](http://127.0.0.1:9/x.png)",
            "<a href='javascript:window.hacked=1'>b</a>",
            f"```html\n{EVIL}\n```",
            f"| {EVIL} | b |\n|---|---|\n| [c](data:text/html,{EVIL}) | <http://example.com> |",
            f"- {EVIL}",
        ]
    )

    @tool(name="evil_tool")
    async def evil(value: str) -> str:
        raise ConnectionError(f"failed {EVIL}")

    script = [
        calls(
            call("evil_tool", {"value": EVIL}), call("look", {"name": EVIL}), text=markdown, reasoning=EVIL
        ),
        text(markdown),
    ]
    agent = Agent(ScriptedModel(script), [evil, look], name=EVIL, error_policy=ErrorPolicy.retry_all(3))
    state = await agent.run(f"Go {EVIL}", state=AgentState(agent_id="a"))
    requests: list[str] = []
    async with inspecting(await showing(state), agent) as inspector:
        inspector.page.on("request", lambda request: requests.append(request.url))
        await inspector.show(ROUTE)
        await waits_for(inspector, "Completed by")
        for line in await inspector.page.locator(".call-line").all():
            await line.click()
        for summary in await inspector.page.locator(".reasoning summary").all():
            await summary.click()
        links = (
            await conversation(inspector)
            .locator("a[href]:not([href^='#'])")
            .evaluate_all("links => links.map((link) => [link.protocol, link.rel, link.target])")
        )
        assert all(
            each[0] in ("http:", "https:") and "noopener" in each[1] and each[2] == "_blank" for each in links
        )
        assert links
        assert await conversation(inspector).locator("img, script, iframe").count() == 0
        assert await inspector.page.evaluate("window.hacked") is None
        assert "onerror" in await conversation(inspector).inner_text()
        assert all(url.startswith(inspector.serving.address) for url in requests), requests


# Long conversations


LONGEST_TASK = 100  # Milliseconds.
WATCH_LONG_TASKS = """() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
        const durations = list.getEntries().map(({ duration }) => duration);
        window.longest = Math.max(window.longest, ...durations);
    }).observe({ type: "longtask" });
}"""


async def test_five_thousand_messages_stay_smooth_while_text_streams() -> None:
    messages = [
        Message.user(f"Question {index // 2}")
        if index % 2 == 0
        else Message.assistant(f"**Answer** {index // 2}")
        for index in range(5_000)
    ]
    told = Dictation()
    agent = Agent(told.model)
    store = MemoryStore()
    await store.add(AgentState(agent_id="a", messages=Log(messages)))
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        await inspector.show(ROUTE)
        await waits_for(inspector, "Answer 2499")
        await ask(inspector, "One more.")
        await told.write("Well")
        await waits_for(inspector, "Well")
        # A task also takes long on a machine that does a lot at once, so it may be tried again.
        for attempt in range(5):
            await inspector.page.evaluate(WATCH_LONG_TASKS)
            for index in range(200):
                await told.write(f" word{attempt}-{index}" + ("\n\n" if index % 20 == 19 else ""))
            await has_text(inspector, f"word{attempt}-199")
            assert await inspector.page.locator(".block").count() < 200
            assert await at_end(inspector)
            await scroll_up_to(inspector, "Question 2300")
            await told.write(" and an end")
            longest = await inspector.page.evaluate("window.longest")
            await inspector.page.get_by_role("button", name="Jump to the end").click()
            if longest < LONGEST_TASK:
                break
        assert longest < LONGEST_TASK
        await has_text(inspector, "and an end")
        assert await at_end(inspector)
        await scroll_up_to(inspector, "Question 1500")  # Older ones are loaded on the way.


async def at_end(inspector: Inspector) -> bool:
    left = "pane => pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40"
    return bool(await inspector.page.locator(".talk").evaluate(left))


async def has_text(inspector: Inspector, words: str) -> None:
    """Wait for words in a way that takes the page no time, unlike a search for visible text."""
    has = "words => document.querySelector('.talk').textContent.includes(words)"
    await inspector.page.wait_for_function(has, arg=words, polling=100)


async def scroll_up_to(inspector: Inspector, words: str) -> None:
    """Scroll up until words are in the page; older messages are loaded on the way."""
    scroll = """(words) => new Promise((done) => {
        const pane = document.querySelector('.talk');
        const look = () => {
            pane.scrollTop = 0;
            if (pane.textContent.includes(words)) done();
            else setTimeout(look, 20);
        };
        look();
    })"""
    await inspector.page.evaluate(scroll, words)


async def test_a_restart_of_the_server_loses_and_doubles_nothing() -> None:
    told = Dictation()
    store, agent = MemoryStore(), Agent(told.model, [look])
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        await inspector.show(ROUTE)
        await ask(inspector, "First?")
        await told.answer(call("look", {"name": "one"}))
        await told.answer("First answer.")
        await waits_for(inspector, "First answer.")
        await inspector.restart()
        told.serve(inspector.serving)
        await inspector.page.get_by_text("Live").wait_for()
        await ask(inspector, "Second?")
        await told.write("Second ")
        await waits_for(inspector, "Second")
        await told.answer("Second answer.")
        await waits_for(inspector, "Second answer.")
        texts = await conversation(inspector).locator(".user-message .markdown, .answer").all_inner_texts()
        assert texts == ["First?", "First answer.", "Second?", "Second answer."]
        assert await conversation(inspector).locator(".call").count() == 1


# Everybody


async def test_a_conversation_is_used_with_the_keyboard_alone() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await inspector.page.locator(".call.waiting").wait_for()
        button = conversation(inspector).get_by_role("button", name="Approve", exact=True)
        for _ in range(60):
            await inspector.page.keyboard.press("Tab")
            if await button.evaluate("button => button === document.activeElement"):
                break
        await inspector.page.keyboard.press("Enter")
        submit = inspector.page.get_by_role("dialog").get_by_role("button", name="Approve and resume")
        for _ in range(10):
            await inspector.page.keyboard.press("Tab")
            if await submit.evaluate("button => button === document.activeElement"):
                break
        await inspector.page.keyboard.press("Enter")
        await waits_for(inspector, "All done.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_axe_finds_nothing_severe(scheme: str, width: int) -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent, width=width) as inspector:
        await inspector.page.emulate_media(color_scheme=scheme)
        await inspector.show(ROUTE)
        if width < 1000:
            await inspector.page.get_by_role("tab", name="Conversation").click()
        await conversation(inspector).wait_for()
        await inspector.page.locator(".call.waiting").wait_for()
        assert await severe_findings(inspector.page) == []
        overflow = await conversation(inspector).evaluate("pane => pane.scrollWidth - pane.clientWidth")
        assert overflow <= 1
