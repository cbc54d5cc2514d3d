"""Two runs beside each other in the inspector: aligned by step, with the first difference in words."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.runs import answer, long_run, record, turn
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.stores import MemoryStore
from whyloop.testing import Reply

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def runs(**scripts: list[Reply]) -> MemoryStore:
    """A store with a session for each script."""
    store = MemoryStore()
    for name, script in scripts.items():
        policy, most = ErrorPolicy.retry_all(3), len(script)
        state = await record(script, f"Ask {name}.", agent_id=name, error_policy=policy, max_steps=most)
        await store.add(state)
    return store


def bar(inspector: Inspector) -> Any:
    return inspector.page.locator(".difference-bar")


async def difference(left: list[Reply], right: list[Reply]) -> tuple[str, list[str]]:
    """What the page says of two runs, and which steps it calls the same."""
    async with inspecting(await runs(left=left, right=right)) as inspector:
        await inspector.show("#/compare/left/right")
        await expect(bar(inspector)).to_be_visible()
        words = await inspector.page.locator(".step-row .middle .quiet").all_inner_texts()
        return await bar(inspector).inner_text(), words


COMMAS_BEGIN_LINES = """(side) => {
    const text = side.firstChild;
    const range = document.createRange();
    const rect = (at) => {
        range.setStart(text, at);
        range.setEnd(text, at + 1);
        return range.getBoundingClientRect();
    };
    return [...text.data].some((char, at) => char === "," && rect(at).top > rect(at - 1).top);
}"""


async def test_limits_fit_beside_each_other_on_a_phone() -> None:
    store = MemoryStore()
    for name in ("left", "right"):
        await store.add(await record([answer()], agent_id=name, max_steps=3, max_tokens=8_000, timeout=300))
    async with inspecting(store, width=390) as inspector:
        await inspector.show("#/compare/left/right")
        limits = inspector.page.locator(".facts-row .side", has_text="max_tokens=8000, timeout")
        await expect(limits).to_have_count(2)
        assert [await each.evaluate(COMMAS_BEGIN_LINES) for each in await limits.all()] == [False, False]


async def test_the_first_difference_is_described() -> None:
    left = [turn(1, "Aurora"), turn(2, "Polar"), answer("Both.")]
    right = [turn(1, "Aurora"), turn(2, "Polar"), answer("One.")]
    text, words = await difference(left, right)
    assert text == "First difference: step 3. The model wrote different texts."
    assert words == ["same", "same", "differs"]


async def test_other_arguments_and_other_results_of_a_call_are_differences() -> None:
    text, words = await difference([turn(1, "Aurora"), answer()], [turn(1, "missing"), answer()])
    expected = "look succeeded on the left and failed on the right. The arguments differ."
    assert text == f"First difference: step 1. {expected}"
    assert words[0] == "differs"


async def test_a_step_that_only_one_run_took_differs() -> None:
    text, words = await difference(
        [turn(1, "Aurora"), answer()], [turn(1, "Aurora"), turn(2, "Polar"), answer()]
    )
    expected = "Only the run on the right took this step. What follows is aligned again."
    assert text == f"First difference: step 2. {expected}"
    assert words == ["same", "differs", "same"]


async def test_a_run_that_has_ended_is_shown_as_ended() -> None:
    store = await runs(left=[turn(1, "Aurora")], right=[turn(1, "Aurora"), turn(2, "Polar")])
    async with inspecting(store) as inspector:
        await inspector.show("#/compare/left/right")
        await expect(bar(inspector)).to_have_text("First difference: step 1. StepsLimit voted differently.")
        await expect(inspector.page.get_by_text("The run has ended before this step.")).to_be_visible()


async def test_steps_after_a_detour_are_beside_each_other_again() -> None:
    left = [turn(1, "Aurora"), turn(2, "Polar"), turn(3, "Fjord"), answer("All.")]
    right = [turn(1, "Aurora"), turn(2, "missing"), turn(3, "Polar"), turn(4, "Fjord"), answer("All.")]
    async with inspecting(await runs(left=left, right=right)) as inspector:
        await inspector.show("#/compare/left/right")
        numbers = inspector.page.locator(".step-row .step-number")
        await expect(numbers).to_have_text(["1", "2", "2 · 3", "3 · 4", "4 · 5"])
        await expect(inspector.page.locator(".step-row.differs")).to_have_count(1)
        await expect(inspector.page.get_by_text("This run has no such step.")).to_be_visible()


async def test_equal_runs_have_no_difference() -> None:
    script = [turn(1, "Aurora"), answer("Both.")]
    async with inspecting(await runs(left=script, right=script)) as inspector:
        await inspector.show("#/compare/left/right")
        await expect(
            inspector.page.get_by_text("No difference: both runs did the same in 2 steps.")
        ).to_be_visible()


async def test_runs_are_found_by_typing_and_chosen_with_the_keyboard() -> None:
    store = await runs(alpha=[answer("One.")], beta=[answer("Two.")], gamma=[answer("Three.")])
    async with inspecting(store) as inspector:
        await inspector.show("#/compare")
        for side, wanted in (("left", "beta"), ("right", "gamma")):
            field = inspector.page.get_by_role("combobox", name=f"Session on the {side}")
            await field.fill(wanted)
            await expect(inspector.page.get_by_role("option", name=wanted)).to_be_visible()
            chosen = inspector.page.get_by_role("option", name=wanted, selected=True)
            while not await chosen.count():
                await inspector.page.keyboard.press("ArrowDown")
            await inspector.page.keyboard.press("Enter")
        await expect(bar(inspector)).to_be_visible()
        assert inspector.page.url.endswith("#/compare/beta/gamma")


async def test_a_session_that_does_not_exist_is_named_as_the_problem() -> None:
    async with inspecting(await runs(left=[answer()])) as inspector:
        await inspector.show("#/compare/left/none")
        await expect(inspector.page.get_by_role("alert")).to_be_visible()


async def test_nothing_in_a_comparison_is_interpreted() -> None:
    evil = "<img src=x onerror='window.hacked=1'>"
    store = await runs(left=[turn(1, evil, said=evil), answer(evil)], right=[turn(1, evil), answer()])
    async with inspecting(store) as inspector:
        await inspector.show("#/compare/left/right")
        await expect(bar(inspector)).to_be_visible()
        await expect(inspector.page.locator("main")).to_contain_text("onerror", use_inner_text=True)
        assert await inspector.page.evaluate("window.hacked") is None


@pytest.mark.parametrize("width", [1440, 390])
async def test_axe_finds_nothing_severe(width: int) -> None:
    store = await runs(left=[turn(1, "Aurora"), answer()], right=[turn(1, "missing"), answer()])
    async with inspecting(store, width=width) as inspector:
        await inspector.show("#/compare/left/right")
        await expect(bar(inspector)).to_be_visible()
        await check_both_themes(inspector.page)
        assert (
            await inspector.page.locator("main").evaluate("main => main.scrollWidth - main.clientWidth") <= 1
        )


async def test_long_runs_are_drawn_in_parts() -> None:
    store = MemoryStore()
    for name in ("left", "right"):
        await store.add(await long_run(300, agent_id=name))
    async with inspecting(store) as inspector:
        await inspector.show("#/compare/left/right")
        await inspector.page.get_by_role("button", name="Show 240 more steps").click()
        await expect(inspector.page.get_by_role("button", name="Show 180 more steps")).to_be_visible()
