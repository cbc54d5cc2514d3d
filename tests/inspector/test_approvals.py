"""The approvals inbox in a real browser: questions of all sessions, and decisions on them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.accessibility import check_both_themes
from tests.inspector.support import Inspector, inspecting
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session, tool
from whyloop.server import Access
from whyloop.stores import MemoryStore
from whyloop.testing import Reply, ScriptedModel, call

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

HOSTILE = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'`'


class Desk:
    """A store with sessions that wait for a person, the server for them, and what its tool did."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.paid: list[tuple[int, int]] = []

        @tool(needs_approval=True)
        async def refund(order: int, amount: int, note: str = "") -> str:
            """Give money back."""
            self.paid.append((order, amount))
            return f"{amount} given back"

        self.tool = refund
        self.model = ScriptedModel([])
        self.agent = Agent(self.model, [refund], name="desk")

    async def ask(
        self, agent_id: str, order: int, *, note: str = "", query: str = "I want my money."
    ) -> None:
        """Make a session wait for a decision."""
        script: list[Reply | str] = [call("refund", {"order": order, "amount": 250, "note": note})]
        agent = Agent(ScriptedModel(script), [self.tool], name="desk")
        await (await Session.open(self.store, agent, agent_id, create=True)).send(query)


@asynccontextmanager
async def inbox(
    *replies: str, orders: int = 1, width: int = 1440, **options: Any
) -> AsyncIterator[tuple[Desk, Inspector]]:
    """Show the questions of some sessions; the model of the server continues with these replies."""
    desk = Desk()
    desk.agent = Agent(ScriptedModel(list(replies)), [desk.tool], name="desk")
    for order in range(1, orders + 1):
        await desk.ask(f"order-{order}", order)
    async with inspecting(desk.store, desk.agent, width=width, **options) as inspector:
        await inspector.show("#/approvals")
        yield desk, inspector


async def wait_for_status(inspector: Inspector, desk: Desk, agent_id: str, status: str) -> None:
    async def is_there() -> bool:
        return (await desk.store.read(agent_id, limit=0)).summary.status == status

    for _ in range(500):
        if await is_there():
            return
        await inspector.page.wait_for_timeout(20)
    raise AssertionError(f"{agent_id} is not {status}")


async def test_questions_are_listed_oldest_first_and_counted_in_the_top_bar() -> None:
    async with inbox(orders=2) as (_, inspector):
        page = inspector.page
        cards = page.locator("article.question")
        await expect(cards.nth(1)).to_be_visible()
        await expect(inspector.page.locator("main")).to_contain_text(
            "2 questions, oldest first.", use_inner_text=True
        )
        first = await cards.first.inner_text()
        assert "refund" in first
        assert "order-1" in first
        assert '"amount": 250' in first
        await expect(page.locator("nav .count")).to_have_text("2")
        await check_both_themes(page)


async def test_an_approval_runs_the_call_and_resumes_the_session() -> None:
    async with inbox("You have it back.") as (desk, inspector):
        page = inspector.page
        await page.get_by_role("button", name="Approve").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("refund runs once, with these arguments.", use_inner_text=True)
        await expect(dialog).to_contain_text("Then the run continues.", use_inner_text=True)
        assert desk.paid == []
        await dialog.get_by_label("Your name").fill("ann")
        await dialog.get_by_role("button", name="Approve and resume").click()
        await expect(page.get_by_role("heading", name="Nothing waits for a person")).to_be_visible()
        await expect(page.get_by_text("Approved by ann")).to_be_visible()
        await wait_for_status(inspector, desk, "order-1", "completed")
        assert desk.paid == [(1, 250)]
        await expect(page.locator("nav .count")).to_have_count(0)


async def test_a_denial_gives_the_model_the_reason() -> None:
    async with inbox("I will ask again.") as (desk, inspector):
        page = inspector.page
        await page.get_by_role("button", name="Deny").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("The order was never paid.")
        await dialog.get_by_role("button", name="Deny and resume").click()
        await expect(page.get_by_text("Denied by")).to_be_visible()
        await wait_for_status(inspector, desk, "order-1", "completed")
        assert desk.paid == []
        state = await desk.store.load("order-1")
        assert any("The order was never paid." in message.text for message in state.messages)


async def test_edited_arguments_are_checked_as_they_are_typed_and_by_the_server() -> None:
    async with inbox("Done.") as (desk, inspector):
        page = inspector.page
        await page.get_by_role("button", name="Edit arguments").click()
        dialog = page.get_by_role("dialog")
        field, button = (
            dialog.get_by_label("Arguments"),
            dialog.get_by_role("button", name="Approve the change"),
        )
        await field.fill('{"order": 1, "amount": ')
        await expect(dialog.get_by_text("This is not JSON")).to_be_visible()
        await expect(button).to_be_disabled()
        await field.fill("[1]")
        await expect(dialog.get_by_text("Arguments are a JSON object")).to_be_visible()
        await field.fill('{"order": 1, "amount": "many"}')
        await button.click()
        await expect(dialog.get_by_role("alert")).to_be_visible()
        await expect(dialog.get_by_role("alert")).to_contain_text("amount", use_inner_text=True)
        await field.fill('{"order": 1, "amount": 20}')
        await button.click()
        await expect(page.get_by_text("Approved with other arguments")).to_be_visible()
        await wait_for_status(inspector, desk, "order-1", "completed")
        assert desk.paid == [(1, 20)]


async def test_the_second_of_two_tabs_sees_the_decision_and_its_author() -> None:
    async with inbox("Done.") as (desk, inspector):
        page = inspector.page
        second = await page.context.browser.new_page()
        await second.goto(page.url)
        await second.get_by_role("button", name="Deny").click()
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_label("Your name").fill("ann")
        await page.get_by_role("button", name="Approve and resume").click()
        await expect(page.get_by_text("Approved by ann")).to_be_visible()
        # The dialog of the second tab is still open, and its question is decided.
        dialog = second.get_by_role("dialog")
        await dialog.get_by_role("button", name="Deny and resume").click()
        problem = "Nothing was changed: the question was decided before. Approved by ann"
        await expect(dialog.get_by_text(problem)).to_be_visible()
        await dialog.get_by_role("button", name="Close").click()
        await expect(second.get_by_text("Decided just now")).to_be_visible()
        await expect(second.locator("article.question")).to_have_count(0)
        await wait_for_status(inspector, desk, "order-1", "completed")
        assert desk.paid == [(1, 250)]


async def test_the_list_of_sessions_decides_in_place() -> None:
    async with inbox("Done.") as (desk, inspector):
        page = inspector.page
        await inspector.show("#/sessions")
        card = page.get_by_role("region", name="Waiting for a person")
        await card.get_by_role("button", name="Approve refund").click()
        await page.get_by_role("button", name="Approve and resume").click()
        await expect(card.get_by_text("Nothing.")).to_be_visible()
        await expect(page.locator("[data-row]", has_text="order-1").get_by_text("Completed")).to_be_visible()
        assert desk.paid == [(1, 250)]


async def test_the_number_of_questions_stays_current_on_every_page() -> None:
    async with inbox() as (desk, inspector):
        page = inspector.page
        for route in ("#/sessions", "#/s/order-1", "#/approvals"):
            await inspector.show(route)
            shown = page.locator("nav .count")
            await expect(shown).to_be_visible()
            before = int(await shown.inner_text())
            await inspector.serving.do(partial(desk.ask, f"more-{before}", before))
            await page.wait_for_function(
                "(before) => document.querySelector('nav .count')?.textContent === String(before + 1)",
                arg=before,
            )
            await expect(page).to_have_title(re.compile(rf"^\({before + 1}\) "))


async def test_a_reader_without_rights_sees_no_buttons_and_why() -> None:
    reader = Access("", may={"inspect"})
    async with inbox(access=lambda _: reader, public=False) as (_, inspector):
        page = inspector.page
        await expect(page.get_by_text("Other people decide here")).to_be_visible()
        await expect(page.locator("article.question")).to_have_count(1)
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        await inspector.show("#/sessions")
        await expect(page.get_by_text("Other people decide here")).to_be_visible()
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)


async def test_nothing_of_a_question_is_interpreted() -> None:
    async with inbox(orders=0) as (desk, inspector):
        page = inspector.page
        await inspector.serving.do(lambda: desk.ask(f"id {HOSTILE}", 1, note=HOSTILE, query=HOSTILE))
        card = page.locator("article.question")
        await expect(card).to_be_visible()
        await expect(card).to_contain_text("<script>window.hacked=1</script>", use_inner_text=True)
        for name in ("Approve", "Edit arguments", "Deny"):
            await card.get_by_role("button", name=name).click()
            await expect(page.get_by_role("dialog")).to_be_visible()
            await page.keyboard.press("Escape")
        await inspector.show("#/sessions")
        await expect(page.get_by_role("button", name="Approve refund")).to_be_visible()
        await expect(page.locator("main img, main script")).to_have_count(0)
        assert await page.evaluate("window.hacked") is None


TRICK = "pay \u202e05.2 RUE\u202c to p\u0430ypal"
STEERS = re.compile("[\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


async def test_nothing_turns_hides_or_imitates_the_text_of_a_question() -> None:
    async with inbox(orders=0) as (desk, inspector):
        page = inspector.page
        await inspector.serving.do(lambda: desk.ask("tricked", 1, note=TRICK, query=f"Please {TRICK}"))
        card = page.locator("article.question")
        for _ in range(2):
            await expect(card).to_contain_text(
                r"pay \u202e05.2 RUE\u202c to pаypal⟦mixes Latin and Cyrillic⟧"
            )
            assert not STEERS.search(await page.locator("main").inner_text())
            await card.get_by_role("button", name="Approve").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text(
                r"pay \u202e05.2 RUE\u202c to pаypal⟦mixes Latin and Cyrillic⟧"
            )
            await page.keyboard.press("Escape")
            await card.get_by_role("button", name="Edit arguments").click()
            written = await dialog.locator("textarea").input_value()
            assert not STEERS.search(written)
            assert json.loads(written)["note"] == TRICK
            await page.keyboard.press("Escape")
            await page.reload()
        await inspector.show("#/sessions")
        waiting = page.locator(".waiting-card")
        await expect(waiting).to_contain_text(r"\u202e05")
        assert not STEERS.search(await waiting.inner_text())


async def test_a_question_is_decided_with_keys_alone() -> None:
    async with inbox("Done.") as (desk, inspector):
        page = inspector.page
        await expect(page.locator("article.question")).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Approve")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.get_by_label("Your name").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Approved by")).to_be_visible()
        await wait_for_status(inspector, desk, "order-1", "completed")


async def test_on_a_phone_nothing_is_cut_off() -> None:
    async with inbox(orders=2, width=390) as (_, inspector):
        page = inspector.page
        await expect(page.locator("article.question").nth(1)).to_be_visible()
        assert await page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
        await check_both_themes(page)


async def test_an_empty_inbox_says_how_questions_arise() -> None:
    async with inbox(orders=0) as (_, inspector):
        await expect(inspector.page.get_by_role("heading", name="Nothing waits for a person")).to_be_visible()
        await expect(inspector.page.locator("main")).to_contain_text(
            "needs_approval=True", use_inner_text=True
        )
        await check_both_themes(inspector.page)


async def test_an_inbox_that_cannot_be_read_says_so_and_is_read_again() -> None:
    async with inbox() as (_, inspector):
        page = inspector.page
        await expect(page.locator("article.question")).to_be_visible()
        await page.route("**/questions?*", lambda route: route.fulfill(status=503, body="{}"))
        await page.reload()
        await expect(page.get_by_text("The store is not available")).to_be_visible()
        await page.unroute("**/questions?*")
        await expect(page.locator("article.question")).to_be_visible()
        await expect(page.get_by_text("The store is not available")).not_to_be_attached()
