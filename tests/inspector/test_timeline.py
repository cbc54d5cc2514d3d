"""The timeline of a session: what took how long, to scale."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.dictation import Dictation
from tests.inspector.runs import look, record, turn
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session
from whyloop.errors import RateLimitError
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.stores import MemoryStore
from whyloop.testing import Reply, call
from whyloop.values.model import Usage
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def eventful() -> AgentState:
    """Five steps: parallel calls, a failure, a busy provider and a decision of a person."""
    script: list[Reply | Exception] = [
        turn(1, "a", "b", "c"),
        turn(2, "missing"),
        RateLimitError("429: too many requests", retry_after=20),
        call("move", {"name": "x"}, usage=Usage(900, 60)),
        turn(5, "d"),
    ]
    policy = ErrorPolicy.retry_tool_errors(2)
    return await record(script, agent_id="a", max_steps=5, wait_for_person=300, error_policy=policy)


async def shown(state: AgentState) -> MemoryStore:
    store = MemoryStore()
    await store.add(state)
    return store


async def boxes(inspector: Inspector, kind: str) -> list[tuple[float, float, float]]:
    """Return where each segment of a kind begins, its width and its top, in pixels."""
    path = await inspector.page.locator(f".timeline-plot .segment.{kind}").get_attribute("d")
    script = """d => d.split("M").slice(1).map(part => {
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.setAttribute("d", "M" + part);
        document.querySelector(".timeline-plot").append(path);
        const box = path.getBBox();
        path.remove();
        return [box.x, box.width, box.y];
    })"""
    found = await inspector.page.evaluate(script, path or "")
    return [(x, width, top) for x, width, top in found]


async def seconds_on_axis(inspector: Inspector) -> float:
    """Return how many pixels a second has, by the labels of the axis."""
    ticks = await inspector.page.eval_on_selector_all(
        ".timeline-plot .ticks text",
        "texts => texts.map(text => [text.textContent, Number(text.getAttribute('x'))])",
    )
    (first, from_x), (second, to_x) = ticks[0], ticks[1]
    return float(to_x - from_x) / (_seconds(second) - _seconds(first))


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 0.001, "s": 1, "min": 60, "h": 3600}[unit]


async def test_work_is_drawn_to_scale_with_parallel_calls_in_lanes() -> None:
    state = await eventful()
    async with inspecting(await shown(state)) as inspector:
        await inspector.show("#/s/a")
        await expect(inspector.page.locator(".timeline-plot .segment.model")).to_be_attached()
        tools = await boxes(inspector, "tool")
        assert len(tools) == 5
        ratio = await seconds_on_axis(inspector)
        assert [width for _, width, _ in tools[:3]] == pytest.approx([0.6 * ratio - 1] * 3, abs=1)
        assert len({top for _, _, top in tools[:3]}) == 3, "calls at the same time are in lanes of their own"
        assert len({x for x, _, _ in tools[:3]}) == 1
        ((_, backoff, _),) = await boxes(inspector, "backoff")
        assert backoff == pytest.approx(20 * ratio - 1, abs=2)
        model, failed = await boxes(inspector, "model"), await boxes(inspector, "failed")
        assert (len(model), len(failed)) == (4, 2)
        legend = (await inspector.text(".timeline-legend")).split()
        assert legend == ["model", "tool", "failed", "backoff", "person"]
        amounts = await inspector.page.locator(".timeline-plot .amounts text").text_content()
        assert f"{state.usage.total:,} tokens" in (amounts or "")
        plot = inspector.page.locator(".timeline-plot")
        line = await plot.locator(".amounts .line").bounding_box()
        behind = await plot.locator(".amounts .behind").bounding_box()
        assert line
        assert behind
        assert behind["x"] + behind["width"] >= line["x"] + line["width"] - 1, "no line beside the digits"


async def test_waiting_is_a_break_on_the_active_clock_and_to_scale_on_the_wall_clock() -> None:
    async with inspecting(await shown(await eventful())) as inspector:
        await inspector.show("#/s/a")
        await expect(inspector.page.locator(".timeline-plot .segment.person")).to_be_attached()
        ((_, folded, _),) = await boxes(inspector, "person")
        assert folded == pytest.approx(25, abs=1)
        await inspector.page.get_by_role("button", name="Wall clock").click()
        await expect(inspector.page.get_by_text("waiting for a person 5 min")).to_be_visible()
        ((_, waited, _),) = await boxes(inspector, "person")
        assert waited == pytest.approx(300 * await seconds_on_axis(inspector), abs=2)


async def test_zoom_keeps_what_is_in_the_middle() -> None:
    async with inspecting(await shown(await eventful())) as inspector:
        page = inspector.page
        await inspector.show("#/s/a")
        pane = page.get_by_role("slider", name="Steps in time")
        await expect(pane).to_be_visible()
        before = await seconds_on_axis(inspector)
        await page.get_by_role("button", name="Zoom in").click()
        await page.wait_for_function("() => document.querySelector('.timeline-pane').scrollLeft > 0")
        assert await seconds_on_axis(inspector) == pytest.approx(2 * before, rel=0.1)
        await pane.press("-")
        await page.wait_for_function("() => document.querySelector('.timeline-pane').scrollLeft === 0")
        await expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()
        box = await pane.bounding_box()
        await page.mouse.move(box["x"] + 300, box["y"] + 30)
        await page.keyboard.down("Control")
        await page.mouse.wheel(0, -200)
        await page.keyboard.up("Control")
        await page.wait_for_function("() => document.querySelector('.timeline-pane').scrollLeft > 200")


async def test_a_step_is_marked_everywhere_and_opened() -> None:
    async with inspecting(await shown(await eventful())) as inspector:
        page = inspector.page
        await inspector.show("#/s/a")
        pane = page.get_by_role("slider", name="Steps in time")
        await pane.focus()
        await page.keyboard.press("Home")
        await page.keyboard.press("ArrowRight")
        await expect(pane).to_have_attribute("aria-valuenow", "2")
        await expect(pane).to_have_attribute("aria-valuetext", re.compile("1 failed"))
        await expect(page.locator(".tip", has_text="Step 2")).to_be_visible()
        band = await page.locator(".ledger-band.hot").bounding_box()
        column = await page.locator("th[data-column='1']").bounding_box()
        assert band["x"] == pytest.approx(column["x"], abs=1)
        await page.locator("th[data-column='3']").hover()
        await page.wait_for_function(
            "() => document.querySelector('[aria-label=\"Steps in time\"]').ariaValueNow === '4'"
        )
        await expect(page.locator(".timeline-band.hot")).to_have_count(1)
        await pane.focus()
        await page.keyboard.press("Home")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash.endsWith('/step/1')")
        await expect(page.locator(".timeline-band.selected")).to_be_visible()


async def test_steps_that_would_not_have_happened_are_dim() -> None:
    async with inspecting(await shown(await eventful())) as inspector:
        page = inspector.page
        await inspector.show("#/s/a")
        slider = page.get_by_label("What if StepsLimit")
        await slider.focus()
        for _ in range(3):
            await page.keyboard.press("ArrowLeft")
        await expect(page.get_by_text("Would have ended at step 2").first).to_be_visible()
        line = await page.locator(".what-if-end path").get_attribute("d")
        model = await boxes(inspector, "model")
        x = float((line or "").removeprefix("M").split()[0])
        assert model[1][0] < x < model[2][0]


async def test_a_running_step_grows_until_now() -> None:
    told, store = Dictation(), MemoryStore()
    agent: Agent[Any, Any] = Agent(told.model, [look])
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        page = inspector.page
        await inspector.show("#/s/a")
        await page.get_by_label("Next question").fill("Go.")
        await page.keyboard.press("Enter")
        await told.answer(turn(1, "a"))
        await expect(page.locator(".timeline-plot .now")).to_be_attached()
        await page.wait_for_function("() => document.querySelector('.segment.running')?.getAttribute('d')")
        await told.answer("Done.")
        await expect(page.locator("h1", has_text="Completed after 2 steps")).to_be_visible()
        await page.wait_for_function("() => !document.querySelector('.timeline-plot .now')")


async def test_axe_finds_nothing_severe() -> None:
    async with inspecting(await shown(await eventful()), width=1000) as inspector:
        await inspector.show("#/s/a")
        await inspector.page.get_by_role("tab", name="Timeline").click()
        await expect(inspector.page.locator(".timeline-plot")).to_be_visible()
        await check_both_themes(inspector.page)
