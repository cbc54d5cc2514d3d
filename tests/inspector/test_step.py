"""The detail of a step in the inspector: what the model saw, said and called, and every vote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.runs import answer, long_run, record, turn
from tests.inspector.support import Inspector, inspecting, stored
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session, tool
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def three_steps() -> MemoryStore:
    script = [
        turn(1, "Aurora", "missing", said="I look **twice**."),
        turn(2, "Polar"),
        answer("Both are known."),
    ]
    policy = ErrorPolicy.retry_all(3)
    return await stored(await record(script, agent_id="a", instructions="Be brief.", error_policy=policy))


def detail(inspector: Inspector) -> Any:
    return inspector.page.locator(".step-detail")


async def choose(inspector: Inspector, name: str) -> None:
    await detail(inspector).get_by_role("tab", name=name, exact=True).click()


async def test_a_step_has_an_address_and_shows_every_vote_with_its_numbers() -> None:
    async with inspecting(await three_steps()) as inspector:
        await inspector.show("#/s/a/step/2")
        await expect(detail(inspector).get_by_role("heading", name="Step 2 of 3")).to_be_visible()
        await expect(detail(inspector).get_by_text("decided by")).to_be_visible()
        await expect(detail(inspector).locator(".votes li").nth(4)).to_be_visible()
        decided = detail(inspector).locator(".votes .deciding")
        await expect(decided).to_contain_text("ToolCallPresenceCheck", use_inner_text=True)
        steps = detail(inspector).locator(".votes li", has_text="StepsLimit")
        assert "used2" in (await steps.inner_text()).replace("\n", "").replace(" ", "")
        await expect(detail(inspector)).to_contain_text("Tokens read", use_inner_text=True)


async def test_the_request_is_shown_as_the_model_got_it() -> None:
    async with inspecting(await three_steps()) as inspector:
        await inspector.show("#/s/a/step/2")
        await choose(inspector, "Request")
        await expect(
            detail(inspector).get_by_text("As sent to the model: 4 messages, 2 tools.")
        ).to_be_visible()
        await detail(inspector).get_by_role("button", name="Show 1 earlier message").click()
        headings = ["instructions", "user", "assistant", "tool · look", "tool · look"]
        await expect(detail(inspector).locator(".sent h4")).to_have_text(headings)
        await expect(detail(inspector)).to_contain_text("Be brief.", use_inner_text=True)
        await detail(inspector).locator("summary", has_text="look").click()
        await expect(detail(inspector).locator(".sent-tool[open]")).to_contain_text(
            '"name"', use_inner_text=True
        )


async def test_the_response_shows_what_was_said_called_and_came_back() -> None:
    async with inspecting(await three_steps()) as inspector:
        await inspector.show("#/s/a/step/1")
        await choose(inspector, "Response")
        await expect(detail(inspector).locator("b", has_text="twice")).to_be_visible()
        succeeded, failed = (detail(inspector).locator(f".call.{state}") for state in ("succeeded", "failed"))
        await expect(succeeded).to_contain_text("Aurora is known", use_inner_text=True)
        await expect(succeeded).to_contain_text('"name": "Aurora"', use_inner_text=True)
        await expect(failed).to_contain_text("the registry did not answer", use_inner_text=True)


async def test_a_step_its_envelopes_and_the_snapshot_are_there_as_json() -> None:
    agent = Agent(ScriptedModel([call("look", {"name": "a"}), text("Done.")]), [look])
    store = MemoryStore()
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Go.")
    async with inspecting(store, agent) as inspector:
        await inspector.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await inspector.show("#/s/a/step/1")
        await choose(inspector, "JSON")
        shown = detail(inspector).locator(".json")
        await expect(shown.get_by_text('"request_sent"')).to_be_visible()
        await detail(inspector).get_by_role("button", name="Copy as JSON").click()
        await expect(detail(inspector).get_by_text("Copied")).to_be_visible()
        copied = json.loads(await inspector.page.evaluate("navigator.clipboard.readText()"))
        assert copied["tool_calls"][0]["arguments"] == {"name": "a"}
        await detail(inspector).get_by_role("button", name="Envelopes").click()
        await expect(shown.get_by_text("agent.step.completed")).to_be_visible()
        events = [each["event"] for each in json.loads(await shown.inner_text())]
        assert events == [
            "agent.status",
            "agent.tool.started",
            "agent.tool.completed",
            "agent.step.completed",
        ]
        await detail(inspector).get_by_role("button", name="Snapshot").click()
        await expect(shown.get_by_text('"execution"').first).to_be_visible()


@tool
async def look(name: str) -> str:
    """Look something up."""
    return f"{name} is known"


async def test_the_next_step_and_the_conversation_are_one_key_away() -> None:
    async with inspecting(await three_steps()) as inspector:
        await inspector.show("#/s/a")
        await inspector.page.locator(".conversation").get_by_role("link", name="Step 2", exact=True).click()
        await detail(inspector).get_by_role("link", name="Next step").click()
        await expect(detail(inspector).get_by_role("heading", name="Step 3 of 3")).to_be_visible()
        assert inspector.page.url.endswith("#/s/a/step/3")
        await expect(detail(inspector).get_by_role("link", name="Next step")).to_have_count(0)
        await detail(inspector).get_by_role("tab", name="Decision").focus()
        await inspector.page.keyboard.press("ArrowRight")
        await expect(detail(inspector).get_by_text("As sent to the model")).to_be_visible()
        await inspector.page.keyboard.press("Escape")
        await expect(detail(inspector)).not_to_be_attached()
        assert inspector.page.url.endswith("#/s/a")


async def test_nothing_in_a_step_is_interpreted() -> None:
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    script = [calls(call("look", {"name": evil}), text=evil, reasoning=evil), text(evil)]
    agent = Agent(ScriptedModel(script), [look], instructions=evil)
    state = await agent.run(evil, state=AgentState(agent_id="a"))
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/a/step/1")
        for name in ("Request", "Response", "JSON"):
            await choose(inspector, name)
            await expect(detail(inspector).get_by_text("onerror").first).to_be_visible()
        assert await inspector.page.evaluate("window.hacked") is None
        await expect(inspector.page.locator("main img")).to_have_count(0)


async def test_a_step_that_is_not_there_says_how_many_there_are() -> None:
    async with inspecting(await three_steps()) as inspector:
        await inspector.show("#/s/a/step/9")
        await expect(detail(inspector).get_by_text("This session has 3 steps.")).to_be_visible()


@pytest.mark.parametrize(("width", "parts"), [(1440, ["Decision", "Request"]), (390, ["Response", "JSON"])])
async def test_axe_finds_nothing_severe(width: int, parts: list[str]) -> None:
    async with inspecting(await stored(await long_run(8)), width=width) as inspector:
        await inspector.show("#/s/long-run/step/8")
        for name in parts:
            await choose(inspector, name)
            await check_both_themes(inspector.page)
        overflow = "body => body.scrollWidth - body.clientWidth"
        assert await inspector.page.locator(".step-body").evaluate(overflow) <= 1
