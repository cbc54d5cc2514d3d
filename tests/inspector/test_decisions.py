"""Decisions in the conversation of a session: approve, deny and edit a call in its place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from tests.inspector.conversations import (
    ROUTE,
    confirm,
    conversation,
    expect_text,
    press,
    showing,
    tabs,
    waiting_session,
)
from tests.inspector.support import inspecting
from tests.loop.test_recovery import crashed_too_often
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session, tool
from whyloop.server import Access
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def test_a_call_is_approved_in_place_and_the_run_continues() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await expect(inspector.page.get_by_label("Next question")).to_be_disabled()
        await press(inspector, "Approve")
        dialog = inspector.page.get_by_role("dialog")
        await expect(dialog).to_contain_text('"amount": 250', use_inner_text=True)
        await confirm(inspector, "Approve and resume")
        await expect_text(inspector, "All done.")
        await expect(inspector.page.locator(".call.succeeded", has_text="Approved by")).to_be_visible()


async def test_a_call_is_denied_in_place_with_a_reason() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await press(inspector, "Deny")
        await inspector.page.get_by_role("dialog").get_by_label("Reason").fill("the order is too old")
        await confirm(inspector, "Deny and resume")
        await expect(inspector.page.locator(".call.denied", has_text="the order is too old")).to_be_visible()
        await expect_text(inspector, "All done.")


async def test_arguments_are_edited_in_place() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await press(inspector, "Edit")
        field = inspector.page.get_by_role("dialog").locator("textarea").first
        await field.fill('{"order": 17, "amount": 5}')
        await inspector.page.get_by_role("dialog").locator("button[type=submit]").click()
        await expect_text(inspector, "All done.")
        card = inspector.page.locator(".call.succeeded")
        await card.locator(".call-line").click()
        await expect(card.get_by_text("refunded 5 for 17")).to_be_visible()


async def test_a_question_about_the_run_is_not_shown_as_one_about_a_tool() -> None:
    _, state = await crashed_too_often()
    store = await showing(replace(state, agent_id="a"))
    async with inspecting(store, Agent(ScriptedModel([]))) as inspector:
        await inspector.show(ROUTE)
        page, dialog = inspector.page, inspector.page.get_by_role("dialog")
        await expect(page.get_by_text("A decision about the run itself.")).to_be_visible()
        await expect(page.get_by_role("button", name="Edit")).to_have_count(0)
        await page.get_by_role("button", name="Approve and resume").first.click()
        await expect(dialog).to_contain_text("recovered 3 times without finishing a step")
        await expect(dialog).not_to_contain_text("with these arguments")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Deny").first.click()
        await expect(dialog).to_contain_text("The run ends here.")
        await expect(dialog).not_to_contain_text("continues")
        await dialog.get_by_label("Reason").fill("it is broken")
        await confirm(inspector, "Deny")
        await expect(page.get_by_role("heading", name="it is broken")).to_be_visible()


async def test_of_two_tabs_that_decide_the_later_one_learns_of_it() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector, tabs(inspector, 2) as (one, other):
        for tab in (one, other):
            await tab.show(ROUTE)
        await press(other, "Deny")
        await press(one, "Approve")
        await confirm(one, "Approve and resume")
        await expect_text(one, "All done.")
        await confirm(other, "Deny and resume")
        await expect(other.page.get_by_role("dialog").get_by_role("alert")).not_to_be_empty()
        await expect_text(other, "All done.")
        await expect(other.page.locator(".call.succeeded")).to_be_visible()


async def test_a_server_without_an_agent_takes_decisions_and_no_questions() -> None:
    store, _ = await waiting_session()
    async with inspecting(store, None) as inspector:
        await inspector.show(ROUTE)
        await expect(inspector.page.get_by_placeholder("This server runs no agent")).to_be_visible()
        await expect(inspector.page.get_by_label("Next question")).to_be_disabled()
        await press(inspector, "Approve")
        await confirm(inspector, "Approve")
        await expect(conversation(inspector).get_by_text("approved by")).to_be_visible()


async def test_a_client_that_may_only_read_is_offered_nothing() -> None:
    store, agent = await waiting_session()

    def access(_: object) -> Access:
        return Access("ann", may={"inspect"})

    async with inspecting(store, agent, public=False, access=access) as inspector:
        await inspector.show(ROUTE)
        await expect(inspector.page.locator(".call.waiting")).to_be_visible()
        await expect(inspector.page.get_by_placeholder("You may read here, and not ask")).to_be_visible()
        for name in ("Approve", "Deny", "Edit", "Resume"):
            await expect(conversation(inspector).get_by_role("button", name=name)).to_have_count(0)


async def test_a_conversation_is_used_with_the_keyboard_alone() -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent) as inspector:
        await inspector.show(ROUTE)
        await expect(inspector.page.locator(".call.waiting")).to_be_visible()
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
        await expect_text(inspector, "All done.")


async def test_a_long_number_is_shown_and_edited_without_rounding() -> None:
    long = 2**60 + 1
    paid: list[tuple[int, str]] = []

    @tool(needs_approval=True)
    def pay(account: int, memo: str) -> str:
        """Pay an account."""
        paid.append((account, memo))
        return "paid"

    agent = Agent(ScriptedModel([call("pay", {"account": long, "memo": "rent"}), "All done."]), [pay])
    store = MemoryStore()
    await (await Session.open(store, agent, "a", create=True)).send("Pay")
    async with inspecting(store, agent) as inspector:
        dialog = inspector.page.get_by_role("dialog")
        await inspector.show(ROUTE)
        await expect(inspector.page.locator(".call.waiting")).to_contain_text(str(long))
        await press(inspector, "Approve")
        await expect(dialog).to_contain_text(f'"account": {long}', use_inner_text=True)
        await inspector.page.keyboard.press("Escape")
        await press(inspector, "Edit")
        field = dialog.locator("textarea").first
        await expect(field).to_have_value(f'{{\n  "account": {long},\n  "memo": "rent"\n}}')
        await field.fill(f'{{"account": {long}, "memo": "May"}}')
        await dialog.locator("button[type=submit]").click()
        await expect_text(inspector, "All done.")
    assert paid == [(long, "May")]
