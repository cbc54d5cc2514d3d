"""The ledger of the inspector: the vote of every rule after every step, also under other limits."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.runs import answer, long_run, record, turn
from tests.inspector.support import (
    Inspector,
    Smoothness,
    check_strictly,
    inspecting,
    stored,
    wait_for_text,
    watch_tasks,
)
from tests.real.browser import SHARES_BROWSER
from whyloop.errors import RateLimitError
from whyloop.replay import judge
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.rules.limits import CumulativeExecutionTimeLimit, StepsLimit, TokenUsageLimit
from whyloop.testing import Reply
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

WORDS = {"forbid": "forbid", "request": "request", "stop": "stop", "allow": "allow"}


async def twelve_steps(**options: Any) -> AgentState:
    """A run with parallel calls, a failure and a busy provider, that a limit ends after twelve steps."""
    script: list[Reply | Exception] = [
        turn(1, "a"),
        turn(2, "a", "b", "c"),
        turn(3, "missing"),
        RateLimitError("429: too many requests", retry_after=20),
        *[turn(number, f"name-{number}") for number in range(5, 13)],
    ]
    settings: dict[str, Any] = {
        "max_steps": 12,
        "max_tokens": 60_000,
        "error_policy": ErrorPolicy.retry_tool_errors(2),
    }
    return await record(script, agent_id="twelve", **(settings | options))


async def move_slider(inspector: Inspector, rule: str, value: float) -> None:
    """Move the slider of a rule as a drag does."""
    await inspector.page.get_by_label(f"What if {rule}").evaluate(
        """(input, value) => {
            input.value = value;
            input.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        value,
    )


async def votes_shown(inspector: Inspector) -> dict[tuple[int, str], str]:
    """Return the label of each cell by step and rule."""
    cells = await inspector.page.eval_on_selector_all(
        "td[data-rule]",
        "cells => cells.map(cell => [Number(cell.dataset.column) + 1, cell.dataset.rule, cell.ariaLabel])",
    )
    return {(step, rule): label for step, rule, label in cells}


async def test_every_cell_has_the_recorded_vote_and_reason() -> None:
    state = await twelve_steps()
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/twelve")
        await expect(inspector.page.locator(".ledger-table")).to_be_visible()
        shown = await votes_shown(inspector)
        expected = {}
        for step in state.steps:
            assert step.outcome is not None
            for each in step.outcome.evaluations:
                label = f"Step {step.number}, {each.criterion}: {WORDS[each.decision]}. {each.reason}"
                expected[step.number, each.criterion] = label
                if each.criterion == step.outcome.resolved_by:
                    expected[step.number, each.criterion] += ". Decided"
        assert shown == expected
        outlined = inspector.page.locator("td.deciding")
        await expect(outlined).to_have_count(1)
        await expect(outlined).to_have_attribute("data-rule", "StepsLimit")
        await expect(outlined).to_have_attribute("data-column", "11")


async def test_a_cell_shows_its_reason_and_numbers_at_once() -> None:
    async with inspecting(await stored(await twelve_steps())) as inspector:
        await inspector.show("#/s/twelve")
        cell = inspector.page.locator("td[data-rule=TokenUsageLimit][data-column='4']")
        await cell.hover()
        tip = await inspector.text(".tip")
        assert "TokenUsageLimit" in tip
        assert "of 60,000 tokens used" in tip
        assert "remaining" in tip
        await inspector.page.mouse.move(5, 5)
        await cell.evaluate("cell => cell.focus()")
        await expect(inspector.page.locator(".tip")).to_contain_text("TokenUsageLimit", use_inner_text=True)


async def test_arrow_keys_move_in_the_ledger_which_is_one_tab_stop() -> None:
    async with inspecting(await stored(await twelve_steps())) as inspector:
        await inspector.show("#/s/twelve")
        page = inspector.page
        await expect(page.locator(".ledger-table")).to_be_visible()
        await expect(page.locator("td[data-rule][tabindex='0']")).to_have_count(1)
        await page.locator("td[data-rule][tabindex='0']").focus()
        for key, expected in [
            ("ArrowLeft", ["StepsLimit", "10"]),
            ("ArrowUp", ["StopRequestedCheck", "10"]),
            ("Home", ["StopRequestedCheck", "0"]),
            ("ArrowLeft", ["StopRequestedCheck", "0"]),
            ("ArrowRight", ["StopRequestedCheck", "1"]),
            ("End", ["StopRequestedCheck", "11"]),
        ]:
            await page.keyboard.press(key)
            rule, column = expected
            await page.wait_for_function(
                "([rule, column]) => document.activeElement.dataset.rule === rule"
                " && document.activeElement.dataset.column === column",
                arg=[rule, column],
            )
            await expect(page.locator("td[data-rule][tabindex='0']")).to_have_count(1)
        await page.keyboard.press("ArrowLeft")
        await page.wait_for_function("() => document.activeElement.dataset.column === '10'")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash.endsWith('/step/11')")
        await expect(page.locator(".pane-step")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.wait_for_function("() => location.hash === '#/s/twelve'")


async def test_a_permalink_opens_the_step_and_marks_its_column() -> None:
    async with inspecting(await stored(await twelve_steps())) as inspector:
        await inspector.show("#/s/twelve/step/3")
        band, head = (
            inspector.page.locator(".ledger-band.selected"),
            inspector.page.locator("th[data-column='2']"),
        )
        await expect(band).to_be_visible()
        await expect(inspector.page.locator(".pane-step")).to_be_visible()
        marked, column = await band.bounding_box(), await head.bounding_box()
        assert marked["x"] == pytest.approx(column["x"], abs=1)


async def test_the_slider_says_what_judge_says() -> None:
    state = await twelve_steps()
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/twelve")
        for value in (1, 5, 8, 11):
            await check_what_if(inspector, state, value)
            await inspector.page.get_by_role("button", name="Reset").click()
            await expect(inspector.page.get_by_text("Ended at step 12, decided by")).to_be_visible()
            await expect(inspector.page.get_by_label("What if StepsLimit")).to_have_value("12")


async def check_what_if(inspector: Inspector, state: AgentState, value: int) -> None:
    """Move the slider of the steps, and compare all that the ledger shows with the rule itself."""
    expected = judge(state, StepsLimit(value)).latest
    saved = expected.saved
    await move_slider(inspector, "StepsLimit", value)
    bar = inspector.page.locator(".what-if.on")
    await expect(bar).to_be_visible()
    text = await bar.inner_text()
    assert f"Would have ended at step {expected.ending.stopped_at}, decided by StepsLimit." in text
    steps = f"{saved.steps} step{'' if saved.steps == 1 else 's'}"
    assert all(part in text for part in (steps, f"{saved.tokens:,} tokens", _money(saved.cost)))
    shown = await votes_shown(inspector)
    for number, outcome in enumerate(expected.outcomes, 1):
        for each in outcome.evaluations:
            label = shown[number, each.criterion]
            assert label.startswith(f"Step {number}, {each.criterion}: {each.decision}. {each.reason}")
    past = [label for (step, _), label in shown.items() if step > value]
    assert past
    assert all(label.endswith("Not reached in this what-if") for label in past)
    await expect(inspector.page.locator("td.deciding")).to_have_attribute("data-column", str(value - 1))
    announced = inspector.page.locator(".what-if [role=status]", has_text="Would have ended")
    await expect(announced).to_be_attached()


def _money(cost: Decimal | None) -> str:
    assert cost is not None
    return f"${cost:.2f}"


async def test_limits_are_moved_together_and_with_the_keyboard() -> None:
    state = await twelve_steps()
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/twelve")
        page = inspector.page
        slider = page.get_by_label("What if StepsLimit")
        await slider.focus()
        await page.keyboard.press("ArrowLeft")
        await page.keyboard.press("ArrowLeft")
        await expect(page.get_by_text("Would have ended at step 10").first).to_be_visible()
        await slider.evaluate("input => { window.slider = input }")
        tokens = page.get_by_label("What if TokenUsageLimit")
        await move_slider(inspector, "TokenUsageLimit", 10_000)
        await expect(page.get_by_text("What if StepsLimit 10, TokenUsageLimit 10,000")).to_be_visible()
        moved = float(await tokens.input_value())
        expected = judge(state, StepsLimit(10), TokenUsageLimit(int(moved))).latest.ending
        await expect(
            page.get_by_text(f"Would have ended at step {expected.stopped_at}, decided by").first
        ).to_be_visible()
        assert await slider.evaluate("input => window.slider === input"), "the input must not be replaced"
        await expect(slider).to_have_attribute("aria-valuetext", "10 steps")


async def test_the_limit_on_active_time_is_moved_too() -> None:
    state = await twelve_steps(cumulative_timeout=600.0)
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/twelve")
        await move_slider(inspector, "CumulativeExecutionTimeLimit", 10)
        page = inspector.page
        moved = float(await page.get_by_label("What if CumulativeExecutionTimeLimit").input_value())
        ending = judge(state, CumulativeExecutionTimeLimit(moved)).latest.ending
        assert ending.resolved_by == "CumulativeExecutionTimeLimit"
        await expect(
            page.get_by_text(f"Would have ended at step {ending.stopped_at}, decided by").first
        ).to_be_visible()


async def test_beyond_the_recorded_end_nothing_is_guessed() -> None:
    async with inspecting(await stored(await twelve_steps())) as inspector:
        await inspector.show("#/s/twelve")
        slider = inspector.page.get_by_label("What if StepsLimit")
        await move_slider(inspector, "StepsLimit", float(await slider.get_attribute("max") or 0))
        await expect(inspector.page.get_by_text("What follows is not recorded").first).to_be_visible()
        await expect(slider).to_have_attribute("aria-valuetext", "no limit")
        await expect(inspector.page.locator(".limit.moved output")).to_contain_text(
            "no limit", use_inner_text=True
        )
        await expect(inspector.page.locator("td.cut")).to_have_count(0)


async def test_a_completed_run_that_would_have_been_cut_is_a_warning() -> None:
    state = await record([turn(1, "a"), turn(2, "b"), answer(number=3)], agent_id="done", max_steps=10)
    async with inspecting(await stored(state)) as inspector:
        await inspector.show("#/s/done")
        await move_slider(inspector, "StepsLimit", 2)
        await expect(
            inspector.page.get_by_text("The run completed: its answer would be missing")
        ).to_be_visible()
        await expect(inspector.page.locator("h1")).to_contain_text(
            "Completed after 3 steps", use_inner_text=True
        )


async def test_each_execution_has_its_own_ledger() -> None:
    first = await record([turn(1, "a"), turn(2, "b"), answer("One.")], "First question", agent_id="two")
    both = await record([answer("Two.")], "Second question", state=first)
    async with inspecting(await stored(both)) as inspector:
        await inspector.show("#/s/two")
        page = inspector.page
        chooser = page.locator(".execution-chooser select")
        await expect(chooser).to_be_visible()
        options = await chooser.locator("option").all_inner_texts()
        assert options == ["2 of 2: Second question", "1 of 2: First question"]
        await expect(page.locator("th[data-column]")).to_have_count(1)
        await chooser.select_option(index=1)
        await expect(page.locator("th[data-column='2']")).to_be_visible()
        await move_slider(inspector, "StepsLimit", 2)
        await expect(page.get_by_text("Would have ended at step 2").first).to_be_visible()
        # A link to a step shows the execution of that step.
        await inspector.show("#/s/two/step/4")
        await page.wait_for_function("() => document.querySelectorAll('th[data-column]').length === 1")
        await inspector.show("#/s/two/step/2")
        await page.wait_for_function("() => document.querySelectorAll('th[data-column]').length === 3")


USE_LONG_RUN = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    const ledger = document.querySelector(".ledger-scroll");
    for (let at = 0; at < 40; at++) { ledger.scrollLeft -= 400; await frame(); }
    const timeline = document.querySelector(".timeline-pane");
    const zoom = document.querySelector("[aria-label='Zoom in']");
    for (let at = 0; at < 6; at++) { zoom.click(); await frame(); }
    for (let at = 0; at < 20; at++) { timeline.scrollLeft += 900; await frame(); }
    const slider = document.querySelector("input[type=range]");
    for (let at = 0; at < 20; at++) {
        slider.value = 1900 - 40 * at;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await frame();
    }
}"""


async def use_two_thousand_steps() -> Smoothness:
    """Open a session of 2,000 steps, scroll in its ledger and its timeline, and move its slider."""
    async with inspecting(await stored(await long_run(2_000))) as inspector:
        page = inspector.page
        async with watch_tasks(page) as found:
            await inspector.show("#/s/long-run")
            await wait_for_text(page, ".what-if", "Ended at step 2000, decided by")
            await wait_for_text(page, ".timeline-plot", "")
            await expect(page.locator("td.deciding[data-column='1999']")).to_have_count(1)
            assert await page.locator("td[data-rule]").count() < 600, "only what is visible is drawn"
            await page.evaluate(USE_LONG_RUN)
            await wait_for_text(page, ".what-if", "Would have ended at step 1140")
            await wait_for_text(page, "td.deciding[data-column='1139']", "")
    return found


async def test_two_thousand_steps_hold_nothing_up() -> None:
    (await use_two_thousand_steps()).check()


@pytest.mark.soak(suite="scale")
async def test_two_thousand_steps_have_no_long_task() -> None:
    await check_strictly(use_two_thousand_steps)


async def test_the_minimap_moves_the_ledger() -> None:
    async with inspecting(await stored(await long_run(300))) as inspector:
        page = inspector.page
        await inspector.show("#/s/long-run")
        minimap = page.get_by_role("slider", name="The steps that the ledger shows")
        await expect(minimap).to_be_visible()
        await expect(page.locator("th[data-column='299']")).to_be_visible()
        box = await minimap.bounding_box()
        await page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
        await expect(page.locator("th[data-column='150']")).to_be_visible()
        await expect(page.locator("th[data-column='299']")).to_have_count(0)
        await expect(minimap).to_have_attribute("aria-valuetext", re.compile("of 300"))
        await minimap.press("Home")
        await expect(page.locator("th[data-column='0']")).to_be_visible()
        await expect(page.locator(".minimap .mark.error")).to_have_attribute("d", re.compile("."))
        # Keys in the ledger bring columns that were not drawn.
        await minimap.press("End")
        await page.locator("td.deciding[data-column='299']").focus()
        await page.keyboard.press("Home")
        await page.wait_for_function("() => document.activeElement.dataset.column === '0'")


@pytest.mark.parametrize(("steps", "width"), [(12, 1440), (20, 1440), (3, 1000)])
async def test_a_short_run_has_the_reasons_beside_its_votes_and_no_minimap(steps: int, width: int) -> None:
    async with inspecting(await stored(await long_run(steps)), width=width) as inspector:
        page = inspector.page
        await inspector.show("#/s/long-run")
        await expect(page.locator("td.gutter", has_text="No stop was requested")).to_be_visible()
        await expect(page.locator(f"td.deciding[data-column='{steps - 1}']")).to_be_visible()
        await expect(page.locator("th[data-column='0']")).to_be_visible()
        await expect(page.locator(".minimap")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 1000, 390])
async def test_axe_finds_nothing_severe(width: int) -> None:
    async with inspecting(await stored(await twelve_steps()), width=width) as inspector:
        await inspector.show("#/s/twelve")
        await expect(inspector.page.locator(".ledger-table")).to_be_visible()
        await check_both_themes(inspector.page)
