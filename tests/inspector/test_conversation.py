"""The conversation of a session in the inspector: live, with every state of a call, and safe."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.conversations import (
    ROUTE,
    ask,
    conversation,
    dictated,
    expect_text,
    look,
    refund,
    showing,
    waiting_session,
)
from tests.inspector.dictation import Dictation
from tests.inspector.runs import long_run
from tests.inspector.support import inspecting
from tests.real.browser import SHARES_BROWSER
from tests.server.other_process import another_process
from whyloop import Agent, Session, tool
from whyloop.errors import RateLimitError
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.values.approval import Verdict
from whyloop.values.decisions import decide
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def test_text_appears_while_the_model_writes_it() -> None:
    async with dictated() as (inspector, told):
        await ask(inspector, "Who are you?")
        await expect_text(inspector, "Who are you?")
        await told.write_until(inspector.page.locator(".streaming b", has_text="Polar"), "I am **Polar** ")
        await told.write(" Retail.")
        await expect_text(inspector, "Retail.")
        await told.answer("I am **Polar** Retail.")
        await expect_text(inspector, "Completed by ToolCallPresenceCheck")
        await expect(inspector.page.locator(".streaming")).to_have_count(0)
        await expect(conversation(inspector).locator(".answer")).to_have_count(1)
        await expect(conversation(inspector).locator(".user-message")).to_have_count(1)


async def test_text_of_a_run_in_another_process_appears_while_it_is_written(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        await Session.open(store, Agent(ScriptedModel([])), "a", create=True)
        async with inspecting(store) as inspector:
            await inspector.show(ROUTE)
            await expect(conversation(inspector)).to_be_visible()
            with another_process(str(tmp_path / "sessions.db")):
                streaming = inspector.page.locator(".streaming")
                await expect(streaming).to_be_visible()
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
        await expect(inspector.page.locator(".call.started", has_text="Running")).to_be_visible()
        await inspector.serving.do(done.set)
        await expect(inspector.page.locator(".call.succeeded", has_text="Succeeded")).to_be_visible()
        await told.answer("Done.")
        await expect_text(inspector, "Completed by")
        await expect(inspector.page.locator(".call")).to_have_count(1)


async def test_a_retry_counts_down_to_the_next_attempt() -> None:
    async with dictated(error_policy=ErrorPolicy.retry_all(2)) as (inspector, told):
        await ask(inspector, "Go.")
        await told.fail(RateLimitError("429: too many requests", retry_after=3))
        line = conversation(inspector).locator(".status-line", has_text="Retry 1 of 2 in")
        await expect(line).to_be_visible()
        first = await line.inner_text()
        await inspector.page.wait_for_function(
            "before => document.querySelector('.status-line')?.innerText !== before", arg=first
        )
        await told.answer("Now it works.")
        await expect_text(inspector, "Now it works.")


async def test_a_stop_says_that_it_stops_until_the_run_has_ended() -> None:
    async with dictated(stop_grace=1) as (inspector, told):
        await ask(inspector, "Go.")
        await told.write_until(inspector.page.locator(".streaming", has_text="I begin"), "I begin")
        await inspector.page.locator(".compose").get_by_role("button", name="Stop").click()
        await inspector.page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        await expect_text(inspector, "Stopped by")
        await expect(conversation(inspector).get_by_role("button", name="Resume")).to_be_visible()
        await expect(inspector.page.get_by_label("Next question")).to_be_enabled()


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
        await expect(inspector.page.locator(".call.waiting")).to_be_visible()
        shown = {
            "succeeded": "Succeeded",
            "failed": "the registry did not answer",
            "denied": "denied by ada: not yet",
            "waiting": "Waits for approval",
        }
        borders = {}
        for status, words in shown.items():
            card = inspector.page.locator(f".call.{status}").first
            await expect(card).to_contain_text(words, use_inner_text=True)
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
                await expect(inspector.page.locator(".streaming")).to_be_visible()
            await inspector.page.reload()
            await expect_text(inspector, "Cut off: no process runs this session any more")
            await conversation(inspector).get_by_role("button", name="Resume").click()
            await inspector.page.get_by_role("dialog").get_by_role("button", name="Resume").click()
            await expect_text(inspector, "Here I am again.")


async def test_a_what_if_shows_where_the_conversation_would_have_ended() -> None:
    async with inspecting(await showing(await long_run(12, agent_id="a"))) as inspector:
        await inspector.show(ROUTE)
        await expect_text(inspector, "Step 12")
        slider = inspector.page.get_by_role("slider", name="What if StepsLimit")
        await slider.fill("5")
        line = conversation(inspector).get_by_text("What if: ended here")
        before = line.locator("xpath=preceding-sibling::*[1]")
        await expect(before).to_contain_text("Step 5")
        await expect(inspector.page.locator(".block.beyond")).to_have_count(7)
        await inspector.page.wait_for_function(
            """() => {
                const place = (name) => document.querySelector(name).getBoundingClientRect();
                const [line, pane] = [place(".what-if-end"), place(".talk")];
                return line.top > pane.top && line.bottom < pane.bottom;
            }"""
        )
        await inspector.page.get_by_role("button", name="Reset").click()
        await expect(line).not_to_be_attached()


async def test_a_step_under_the_pointer_is_marked_everywhere() -> None:
    async with inspecting(await showing(await long_run(3, agent_id="a"))) as inspector:
        await inspector.show(ROUTE)
        await conversation(inspector).get_by_role("link", name="Step 2").hover()
        await expect(inspector.page.locator(".block.hot")).to_have_count(1)


EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


async def test_an_answer_that_is_json_is_shown_as_data() -> None:
    words = "are on the way " * 20
    answer = f'{{"id":12345678901234567890,"message":"**250.00** {words}"}}'
    state = await Agent(ScriptedModel([text(answer)])).run("Go", state=AgentState(agent_id="a"))
    async with inspecting(await showing(state)) as inspector:
        await inspector.show(ROUTE)
        code = conversation(inspector).locator(".answer .code pre")
        await expect(code).to_have_text(
            f'{{\n  "id": 12345678901234567890,\n  "message": "**250.00** {words}"\n}}'
        )
        assert await code.evaluate("(code) => code.scrollWidth <= code.clientWidth")


async def test_json_that_is_nested_deeply_is_not_indented() -> None:
    answer = f"{'[' * 2000}{'1,' * 40_000}1{']' * 2000}"  # Indented, it would have 160 million characters.
    state = await Agent(ScriptedModel([text(answer)])).run("Go", state=AgentState(agent_id="a"))
    async with inspecting(await showing(state)) as inspector:
        await inspector.show(ROUTE)
        shown = conversation(inspector).locator(".answer .markdown")
        await expect(shown).to_have_text(answer)


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
        await expect_text(inspector, "Completed by")
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
        await expect(conversation(inspector).locator("img, script, iframe")).to_have_count(0)
        assert await inspector.page.evaluate("window.hacked") is None
        await expect(conversation(inspector)).to_contain_text("onerror", use_inner_text=True)
        assert all(url.startswith(inspector.serving.address) for url in requests), requests


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
        await expect_text(inspector, "First answer.")
        await inspector.restart()
        told.serve(inspector.serving)
        await expect(inspector.page.get_by_text("Live")).to_be_visible()
        await ask(inspector, "Second?")
        await told.write_until(inspector.page.locator(".streaming", has_text="Second"), "Second ")
        await told.answer("Second answer.")
        await expect_text(inspector, "Second answer.")
        texts = conversation(inspector).locator(".user-message .markdown, .answer")
        await expect(texts).to_have_text(["First?", "First answer.", "Second?", "Second answer."])
        await expect(conversation(inspector).locator(".call")).to_have_count(1)


@pytest.mark.parametrize("width", [1440, 390])
async def test_axe_finds_nothing_severe(width: int) -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent, width=width) as inspector:
        await inspector.show(ROUTE)
        if width < 1000:
            await inspector.page.get_by_role("tab", name="Conversation").click()
        await expect(conversation(inspector)).to_be_visible()
        await expect(inspector.page.locator(".call.waiting")).to_be_visible()
        await check_both_themes(inspector.page)
        overflow = await conversation(inspector).evaluate("pane => pane.scrollWidth - pane.clientWidth")
        assert overflow <= 1


async def test_the_code_that_lets_a_run_continue_stays_inside_its_card() -> None:
    @tool
    def search() -> str:
        """Search."""
        raise ConnectionError("no answer")

    policy = ErrorPolicy.retry_tool_errors(max_retries=1)
    agent = Agent(ScriptedModel([call("search"), call("search")]), [search], error_policy=policy)
    async with MemoryStore() as store:
        await (await Session.open(store, agent, "a", create=True)).send("Search")
        async with inspecting(store, agent) as inspector:
            await inspector.show(ROUTE)
            card = conversation(inspector).locator(".end-card")
            await expect(card.locator("code")).to_contain_text("retry_tool_errors")
            assert await card.evaluate("card => card.scrollWidth - card.clientWidth") <= 0
