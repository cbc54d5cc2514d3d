"""Filters, the search and the what-if of the list of sessions."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.lists import (
    ROWS,
    listing,
    requests_of,
    wait_for_ids,
)
from tests.real.browser import SHARES_BROWSER

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def test_a_link_with_filters_shows_the_same_list() -> None:
    async with listing("#/sessions?status=stopped") as inspector:
        await wait_for_ids(inspector, "cut")
        page = inspector.page
        await expect(page.get_by_role("button", name="Stopped")).to_have_attribute("aria-pressed", "true")
        await page.get_by_role("button", name="Completed").click()
        await wait_for_ids(inspector, "done")
        assert page.url.endswith("#/sessions?status=completed")
        await page.reload()
        await wait_for_ids(inspector, "done")
        await page.go_back()
        await wait_for_ids(inspector, "cut")


async def test_sessions_are_filtered_by_stop_reason_metadata_and_time() -> None:
    async with listing() as inspector:
        page = inspector.page
        await page.get_by_label("Stop reason", exact=True).select_option("steps_limit")
        await wait_for_ids(inspector, "cut")
        await page.get_by_label("Stop reason", exact=True).select_option("")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        await page.get_by_label("Metadata", exact=True).fill("team=sales, order=17")
        await page.get_by_label("Metadata", exact=True).press("Enter")
        await wait_for_ids(inspector, "done")
        assert "metadata=team" in page.url
        await page.get_by_label("Metadata", exact=True).fill("")
        await page.get_by_label("Metadata", exact=True).press("Enter")
        await page.get_by_label("Time", exact=True).select_option("1h")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        assert page.url.endswith("#/sessions?since=1h")


# Both within one task, before the browser reports that the address has changed.
CHANGE_TWO_FILTERS = """() => {
  for (const [label, value] of [["Stop reason", "steps_limit"], ["Time", "1h"]]) {
    const choice = document.querySelector(`select[aria-label="${label}"]`);
    choice.value = value;
    choice.dispatchEvent(new Event("change", { bubbles: true }));
  }
}"""


async def test_a_filter_that_is_changed_right_after_another_keeps_the_first() -> None:
    async with listing() as inspector:
        await inspector.page.evaluate(CHANGE_TWO_FILTERS)
        await wait_for_ids(inspector, "cut")
        assert inspector.page.url.endswith("#/sessions?stop_reason=steps_limit&since=1h")


async def test_a_click_on_a_rule_shows_its_sessions_and_another_one_shows_all() -> None:
    async with listing() as inspector:
        page = inspector.page
        bar = page.get_by_role("button", name="StepsLimit 1 session")
        await bar.click()
        await wait_for_ids(inspector, "cut")
        assert page.url.endswith("#/sessions?resolved_by=StepsLimit")
        # The others stay, so that one can choose another.
        await page.get_by_role("button", name="ToolCallPresenceCheck 1 session").click()
        await wait_for_ids(inspector, "done")
        await page.get_by_role("button", name="ToolCallPresenceCheck 1 session").click()
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")


async def test_a_search_finds_queries_answers_and_metadata() -> None:
    async with listing("#/sessions?search=polar") as inspector:
        page = inspector.page
        await wait_for_ids(inspector, "broken")
        field = page.get_by_role("searchbox")
        await expect(field).to_have_value("polar")
        for text, found in (
            ("ALL tidy", "done"),
            ("support", "cut"),
            ("2 of 2 steps", "cut"),
            ("waits", "waits"),
        ):
            await field.fill(text)
            await wait_for_ids(inspector, found)
        assert page.url.endswith("#/sessions?search=waits")
        await field.fill("")
        await wait_for_ids(inspector, "cut", "done", "broken", "waits")
        assert page.url.endswith("#/sessions")


# All keys within one task: on a machine that does a lot at once real keys may come far apart.
TYPE_QUICKLY = """(text) => {
  const field = document.querySelector("input[type=search]");
  for (let end = 1; end <= text.length; end += 1) {
    field.value = text.slice(0, end);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""


async def test_typing_asks_once_and_not_with_every_key() -> None:
    async with listing() as inspector:
        page = inspector.page
        asked = requests_of(page, "/sessions?search")
        await page.evaluate(TYPE_QUICKLY, "polar")
        await wait_for_ids(inspector, "broken")
        assert len(asked) == 1


async def test_a_list_without_a_match_offers_to_remove_each_filter() -> None:
    async with listing("#/sessions?status=failed&resolved_by=StepsLimit") as inspector:
        page = inspector.page
        await expect(inspector.page.locator("main")).to_contain_text(
            "No session matches all of these filters", use_inner_text=True
        )
        await page.get_by_role("button", name="status failed").click()
        await wait_for_ids(inspector, "cut")
        assert page.url.endswith("#/sessions?resolved_by=StepsLimit")


async def test_without_a_match_no_rule_is_said_to_have_decided() -> None:
    async with listing("#/sessions?search=nowhere") as inspector:
        decided = inspector.page.locator(".card", has_text="Decided by")
        await expect(decided).to_contain_text("No rule decided any of these sessions.")


async def test_a_slider_shows_which_sessions_a_limit_would_have_cut() -> None:
    async with listing() as inspector:
        page = inspector.page
        asked = requests_of(page, "/what-if?")
        await page.get_by_role("button", name="What if").click()
        slider = page.get_by_role("slider")
        await expect(slider).to_be_visible()
        await slider.press("Home")
        await expect(page.get_by_text("max_steps=1 would have cut 2 of")).to_be_visible()
        result = await page.locator(".list-what-if .result").inner_text()
        assert "1 of them completed" in result
        assert "tokens (" in result
        cut = page.locator(ROWS, has=page.get_by_text("CUT", exact=True))
        await expect(cut).to_have_count(2)
        assert sorted(await cut.locator(".column-session a").all_inner_texts()) == ["cut", "done"]
        await slider.press("ArrowRight")
        await expect(page.get_by_text("max_steps=2 would have cut 0 of")).to_be_visible()
        await expect(cut).to_have_count(0)
        assert len(asked) == 1, "moving the slider asks nothing"
        await slider.press("Home")
        await page.wait_for_url("**/#/sessions?limit=max_steps&value=1")
        await page.reload()
        await expect(page.get_by_text("max_steps=1 would have cut 2 of")).to_be_visible()
        await page.get_by_label("What if").select_option("max_tokens")
        await expect(page.get_by_text("Move the slider")).to_be_visible()
        assert len(asked) == 3
        await check_both_themes(page)


async def test_a_filter_that_is_not_valid_can_be_removed() -> None:
    async with listing("#/sessions?status=nonsense") as inspector:
        page = inspector.page
        await expect(page.get_by_text("A filter in the address is not valid.")).to_be_visible()
        await page.get_by_role("button", name="Clear all filters").click()
        await expect(page.locator(ROWS).first).to_be_visible()
