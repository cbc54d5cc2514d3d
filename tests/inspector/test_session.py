"""The page of one session: why it is where it is, and the buttons that let it continue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.dictation import Dictation
from tests.inspector.runs import answer, look, record, turn
from tests.inspector.support import Inspector, inspecting, stored
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session, tool
from whyloop.errors import RateLimitError
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.rules.limits import CostLimit
from whyloop.server import Access
from whyloop.stores import MemoryStore, Store
from whyloop.testing import Reply, ScriptedModel, call, text
from whyloop.tools.tool import Tool
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation
from whyloop.values.model import Usage
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

CANARY = '<img src=x onerror="window.canary=1"><script>window.canary=1</script>'


@asynccontextmanager
async def dictated(*tools: Any, **options: Any) -> AsyncIterator[tuple[Inspector, Dictation]]:
    """The page of a session `a` whose model answers when the test lets it."""
    told, store = Dictation(), MemoryStore()
    agent = Agent(told.model, tools or [look], **options)
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        await inspector.show("#/s/a")
        await expect(inspector.page.get_by_label("Next question")).to_be_visible()
        yield inspector, told


async def ask(inspector: Inspector, question: str = "Go.") -> None:
    await inspector.page.get_by_label("Next question").fill(question)
    await inspector.page.keyboard.press("Enter")


def verdict(inspector: Inspector) -> Any:
    return inspector.page.locator(".verdict")


async def expect_headline(inspector: Inspector, text: str) -> None:
    await expect(inspector.page.locator(".verdict h1", has_text=text)).to_be_visible()


# Why


async def test_long_metadata_leaves_room_for_the_id_of_the_session() -> None:
    state = AgentState(agent_id="order-of-17-apples", metadata={"note": "long " * 400})
    store = await stored(await record([answer()], state=state))
    async with inspecting(store) as inspector:
        await inspector.show("#/s/order-of-17-apples")
        name = inspector.page.locator(".crumbs b")
        await expect(name).to_have_text("order-of-17-apples")
        assert await name.evaluate("(name) => name.scrollWidth <= name.clientWidth")


async def test_the_headline_says_why_in_plain_words() -> None:
    script: list[Reply | Exception] = [
        turn(1, "a"),
        RateLimitError("429: too many requests", retry_after=20),
        turn(2, "a", "b"),
    ]
    policy = ErrorPolicy.retry_all(2)
    state = await record(script, agent_id="a", max_steps=3, max_tokens=20_000, error_policy=policy)
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/a")
        await expect_headline(
            inspector, "Stopped after 3 of 3 steps by StepsLimit while 2 tool calls were pending"
        )
        rule = verdict(inspector).locator("h1 b")
        await expect(rule).to_have_text("StepsLimit")
        assert await rule.evaluate("rule => getComputedStyle(rule).color") == "rgb(189, 53, 8)"
        await expect(verdict(inspector).locator(".headline > .vote.vf")).to_have_count(1)
        chain = " ".join((await inspector.text(".chain")).split())
        assert chain.startswith("After step 3: F 1 forbid, StepsLimit beats R 1 request, ToolCallPresence")
        assert chain.endswith("= stop")
        facts = " ".join((await inspector.text(".facts")).split())
        used = f"{state.usage.total:,}"
        assert facts.startswith(f"3 steps {used} tokens")
        assert "20.0 s backoff" in facts
        explained = await inspector.text(".to-continue p")
        assert "StepsLimit is the only rule that forbids" in explained
        assert "% of tokens" in explained


async def test_what_an_answer_did_not_report_is_not_counted_as_nothing() -> None:
    priced = Usage(input=900, output=100, cost=Decimal("0.0045"))
    script = [call("look", {"name": "a"}, usage=priced), text("It is", usage=Usage(reported=False))]
    state = await record(script, agent_id="a")
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/a")
        await expect(verdict(inspector).locator(".facts")).to_contain_text("≥ 1,000 tokens")
        await expect(verdict(inspector).locator(".facts")).not_to_contain_text("$")
        await expect(inspector.page.locator(".timeline-plot .amounts text")).to_have_text("≥ 1,000 tokens")
        await inspector.show("#/s/a/step/2")
        await expect(inspector.page.locator(".facts-list")).to_contain_text("Tokens readnot reported")


async def failing(name: str) -> str:
    """Fail."""
    raise ConnectionError(f"no {name}")


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        ([answer()], {}, "Completed after 1 step by ToolCallPresenceCheck: the model answered"),
        ([turn(1, "a")], {"max_tokens": 500}, "Stopped after 1,310 of 500 tokens by TokenUsageLimit while"),
        ([turn(1, "a"), turn(2, "b")], {"timeout": 2.5}, "Stopped after 3.4 of 2.5 s by ExecutionTimeLimit"),
        (
            [turn(1, "a")],
            {"criteria": [CostLimit("0.001")]},
            "Stopped after $0.0020 of $0.0010 by CostLimit while 1 tool",
        ),
        ([turn(1, "missing")], {}, "Failed after 1 step by ErrorPolicyCriterion: "),
        (
            [RateLimitError("HTTP 429: slow down")] * 2,
            {"error_policy": ErrorPolicy.retry_all(1)},
            "Rate limit error after 2 consecutive failures (max: 1): HTTP 429: slow down",
        ),
        (
            [call("move", {"name": "x"})],
            {"tools": [Tool(failing, name="move", needs_approval=True)]},
            "Paused in step 1 by ApprovalRequired: move waits for approval",
        ),
    ],
    ids=["completed", "tokens", "time", "money", "error", "retries", "paused"],
)
async def test_each_ending_has_its_headline(script: Any, options: dict[str, Any], expected: str) -> None:
    state = await record(script, agent_id="a", **options)
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/a")
        await expect_headline(inspector, expected)
        await expect(inspector.page.locator(".ledger-table .deciding")).to_be_visible()


async def test_a_session_that_does_not_exist_says_so() -> None:
    async with inspecting(MemoryStore()) as inspector:
        await inspector.show("#/s/nothing%2Fhere")
        await expect(
            inspector.page.get_by_role("heading", name="There is no session nothing/here")
        ).to_be_visible()


# Actions


async def test_a_grant_of_the_readers_amount_resumes_live() -> None:
    model = ScriptedModel([turn(1, "a"), turn(2, "b"), turn(3, "c"), answer("All is known.")])
    store, agent = MemoryStore(), Agent(model, [look], max_steps=2)
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Go.")
    async with inspecting(store, agent) as inspector:
        await inspector.show("#/s/a")
        await expect_headline(inspector, "Stopped after 2 of 2 steps by StepsLimit")
        await verdict(inspector).get_by_role("button", name="Grant 10 steps and resume").click()
        dialog = inspector.page.get_by_role("dialog")
        await dialog.get_by_label("Steps").fill("3")
        await expect(dialog.locator("li").first).to_have_text(
            "The run gets 3 steps on top of its limits, and that is recorded."
        )
        await dialog.get_by_role("button", name="Grant 3 steps and resume").click()
        await expect_headline(inspector, "Completed after 4 steps by ToolCallPresenceCheck")
        await expect(inspector.page.locator("td.deciding[data-column='3']")).to_be_visible()
        await expect(inspector.page.locator(".limit output").first).to_contain_text("4 of 2 + 3")


async def test_a_pending_call_is_approved_or_denied_above_the_conversation() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    script = [call("pay", {"amount": 5}), call("pay", {"amount": 6}), text("Done.")]
    store, agent = MemoryStore(), Agent(ScriptedModel(script), [pay])
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Go.")
    async with inspecting(store, agent) as inspector:
        await inspector.show("#/s/a")
        await expect_headline(inspector, "Paused in step 1 by ApprovalRequired")
        await verdict(inspector).get_by_role("button", name="Approve and resume").click()
        dialog = inspector.page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Approve and resume").click()
        await expect_headline(inspector, "Paused in step 2 by ApprovalRequired")
        await verdict(inspector).get_by_role("button", name="Deny").click()
        await dialog.get_by_role("button", name="Deny").click()
        await expect_headline(inspector, "Completed after 3 steps")
        calls = [run for step in (await _state(store)).steps for run in step.tool_calls]
        assert [run.approvals[0].verdict for run in calls] == ["approved", "denied"]


async def _state(store: Store) -> AgentState:
    return await store.load("a")


async def test_a_fork_is_a_new_session_with_the_history_up_to_the_step() -> None:
    script = [turn(1, "a"), turn(2, "b"), turn(3, "c")]
    store, agent = MemoryStore(), Agent(ScriptedModel(script), [look], max_steps=3)
    await (await Session.open(store, agent, "a", create=True)).send("Go.")
    async with inspecting(store, agent) as inspector:
        await inspector.show("#/s/a")
        await verdict(inspector).get_by_role("button", name="Fork from step 3").click()
        dialog = inspector.page.get_by_role("dialog")
        await dialog.get_by_label("After step").fill("2")
        await dialog.get_by_role("button", name="Fork from step 2").click()
        await inspector.page.wait_for_function("() => !location.hash.endsWith('/a')")
        await expect(inspector.page.locator("th[data-column='1']")).to_be_visible()
        await expect(inspector.page.locator("th[data-column='2']")).to_have_count(0)
        assert len((await store.sessions()).sessions) == 2


async def test_a_read_only_page_offers_no_change() -> None:
    read_only: dict[str, Any] = {"public": False, "access": lambda _: Access("", may={"inspect"})}
    state = await record([turn(1, "a")], agent_id="a", max_steps=1)
    async with inspecting(await stored(state), **read_only) as inspector:
        await inspector.show("#/s/a")
        await expect(inspector.page.get_by_text("You may look here, and run nothing.")).to_be_visible()
        await expect(verdict(inspector).get_by_role("button")).to_have_count(0)
        await expect(verdict(inspector).get_by_role("link", name="Save as HTML")).to_have_count(1)


# Live


async def test_a_run_grows_in_the_page_and_is_stopped_there() -> None:
    async with dictated(stop_grace=0) as (inspector, told):
        page = inspector.page
        await ask(inspector)
        await expect_headline(inspector, "Running")
        await expect(page.locator(".live-tag")).to_be_visible()
        for number in range(3):
            await told.answer(turn(number + 1, f"name-{number}"))
            await expect(page.locator(f"td.va[data-rule=StepsLimit][data-column='{number}']")).to_be_visible()
        await verdict(inspector).get_by_role("button", name="Stop").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.locator("li").nth(1)).to_be_visible()
        await dialog.get_by_role("button", name="Stop").click()
        await expect_headline(inspector, "by StopRequestedCheck: Stopped in the inspector")
        await expect(page.locator("td.deciding[data-rule=StopRequestedCheck]")).to_be_visible()
        await expect(verdict(inspector).get_by_role("button", name="Resume")).to_be_visible()
        await expect(page.locator(".live-tag")).to_have_count(0)


async def test_a_lost_server_is_shown_and_what_was_missed_is_read_after_its_return() -> None:
    told, store = Dictation(), MemoryStore()
    agent = Agent(told.model, [look], max_steps=10)
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        await inspector.show("#/s/a")
        await expect(inspector.page.get_by_label("Next question")).to_be_visible()
        await ask(inspector)
        await told.answer(answer("First."))
        await expect_headline(inspector, "Completed after 1 step")
        await inspector.serving.stop()
        await expect(inspector.page.get_by_text("Connection lost")).to_be_visible()
        # Meanwhile another process asks.
        other = await Session.open(store, Agent(ScriptedModel([turn(1, "a"), "Second."]), [look]), "a")
        await other.send("Again.")
        await inspector.restart()
        await expect_headline(inspector, "Completed after 2 steps")
        await expect(inspector.page.locator("option", has_text="2 of 2: Again.")).to_be_attached()
        await expect(inspector.page.locator(".session-error")).to_have_count(0)


# Everybody


async def test_no_text_of_a_rule_a_tool_or_a_person_is_interpreted() -> None:
    class Hostile:
        def explain(self, state: AgentState) -> ContinuationEvaluation:
            decision = ContinuationDecision.ALLOW_CONTINUATION
            if len(state.steps) > 1:
                decision = ContinuationDecision.FORBID_CONTINUATION
            return ContinuationEvaluation(CANARY, decision, CANARY, {CANARY: CANARY})

    script = [call("look", {"name": CANARY}, text=CANARY), turn(2, CANARY)]
    state = await record(script, CANARY, agent_id=f"a{CANARY}", criteria=[Hostile()])
    state = replace(state, metadata={"user": CANARY})
    async with inspecting(await stored(state)) as inspector:
        page = inspector.page
        await inspector.show("#/sessions")
        await page.locator("[data-row] a").first.click()
        await expect(page.locator(".verdict h1", has_text="Stopped after 2 steps by <img")).to_be_visible()
        cell = page.locator("td.deciding")
        await cell.hover()
        await expect(page.locator(".tip", has_text="<img")).to_be_visible()
        await cell.click()
        await expect(page.locator(".pane-step")).to_be_visible()
        assert await page.evaluate("window.canary") is None
        await expect(page.locator("img, main script")).to_have_count(0)


async def test_at_phone_width_one_part_is_shown_at_a_time() -> None:
    state = await record([turn(1, "a"), turn(2, "b")], agent_id="a", max_steps=2)
    async with inspecting(await stored(state), Agent(ScriptedModel([])), width=390, height=844) as inspector:
        page = inspector.page
        await inspector.show("#/s/a")
        await expect(page.locator(".ledger-table")).to_be_visible()
        await expect(page.locator(".conversation")).not_to_be_visible()
        button = await verdict(inspector).get_by_role("button", name="Grant 10 steps").bounding_box()
        assert button["width"] > 340
        assert button["height"] == 40
        await page.get_by_role("tab", name="Conversation").click()
        await expect(page.locator(".conversation")).to_be_visible()
        await expect(page.locator(".ledger")).not_to_be_visible()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator(".timeline")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.emulate_media(reduced_motion="reduce")
        await page.get_by_role("tab", name="Why").click()
        await page.locator("td.deciding").click()
        sheet = await page.locator(".pane-step").bounding_box()
        assert (sheet["x"], sheet["width"]) == (0, 390)


async def test_actions_are_reached_with_the_keyboard_alone() -> None:
    state = await record([turn(1, "a"), turn(2, "b")], agent_id="a", max_steps=2)
    async with inspecting(await stored(state), Agent(ScriptedModel([answer()]), [look])) as inspector:
        page = inspector.page
        await inspector.show("#/s/a")
        await expect(page.locator(".ledger-table")).to_be_visible()
        reached = []
        for _ in range(60):
            await page.keyboard.press("Tab")
            reached.append(
                await page.evaluate(
                    "(document.activeElement.ariaLabel ?? document.activeElement.innerText).slice(0, 40)"
                )
            )
            if "Steps in time" in reached:
                break
        text = "\n".join(reached)
        for name in ("Grant 10 steps and resume", "Fork from step 2", "What if StepsLimit", "Steps in time"):
            assert name in text
        assert sum(label.startswith("Step ") and ", " in label for label in reached) == 1
        await verdict(inspector).get_by_role("button", name="Grant").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog").get_by_role("button", name="Grant 10 steps")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).not_to_be_attached()


async def test_a_printed_page_has_the_verdict_the_ledger_and_the_timeline() -> None:
    state = await record([turn(1, "a"), turn(2, "b")], agent_id="a", max_steps=2, max_tokens=9_000)
    async with inspecting(await stored(state), width=800) as inspector:
        await inspector.show("#/s/a")
        await expect(inspector.page.locator(".ledger-table")).to_be_visible()
        await inspector.page.emulate_media(media="print")
        for part in (".verdict h1", ".ledger-table", ".timeline-plot", ".conversation"):
            await expect(inspector.page.locator(part)).to_be_visible()
        await expect(inspector.page.locator(".to-continue")).not_to_be_visible()
        assert (
            await inspector.page.evaluate("getComputedStyle(document.querySelector('main')).overflow")
            == "visible"
        )


@pytest.mark.parametrize("width", [1440, 390])
async def test_axe_finds_nothing_severe(width: int) -> None:
    state = await record(
        [call("move", {"name": "x"}, usage=Usage(10, 2))],
        agent_id="a",
        tools=[Tool(failing, name="move", needs_approval=True)],
        error_policy=ErrorPolicy.retry_tool_errors(1),
    )
    async with inspecting(await stored(state), Agent(ScriptedModel([])), width=width) as inspector:
        await inspector.show("#/s/a")
        await expect(inspector.page.locator(".ledger-table")).to_be_visible()
        await check_both_themes(inspector.page)
