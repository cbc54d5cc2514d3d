"""The page shows each reader the buttons and the parts that their rights allow."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.inspector.conversations import ROUTE, waiting_session
from tests.inspector.runs import record, turn
from tests.inspector.support import inspecting, stored
from tests.real.browser import SHARES_BROWSER
from whyloop import Agent, Session, tool
from whyloop.server import Access
from whyloop.server.bodies import RIGHTS, Right
from whyloop.stores import MemoryStore
from whyloop.testing import FakeClock, ScriptedModel, call

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]

# The buttons of a session that ended at a limit, and the right that each needs besides `inspect`.
OF_A_LIMIT: list[tuple[str, set[Right]]] = [
    ("Grant", {"send", "manage"}),
    ("Fork from step", {"manage"}),
]


@pytest.mark.parametrize("missing", [*RIGHTS[:2], RIGHTS[3], None])
async def test_the_buttons_of_a_session_are_those_that_a_reader_may_use(missing: Right | None) -> None:
    may = frozenset(RIGHTS) - {missing}
    state = await record([turn(1, "a")], agent_id="a", max_steps=1)
    agent = Agent(ScriptedModel([]))
    async with inspecting(
        await stored(state), agent, public=False, access=lambda _: Access("ann", may=may)
    ) as it:
        await it.show("#/s/a")
        await expect(it.page.locator(".to-continue")).to_be_visible()
        await expect(it.page.get_by_role("link", name="Save as HTML")).to_be_visible()
        for name, needed in OF_A_LIMIT:
            buttons = it.page.locator(".to-continue").get_by_role("button", name=name)
            await expect(buttons).to_have_count(1 if needed <= may else 0)
        await it.show("#/s/a/step/1")
        forks = it.page.locator(".step-detail").get_by_role("button", name="Fork")
        await expect(it.page.locator(".step-detail h2")).to_be_visible()
        await expect(forks).to_have_count(1 if "manage" in may else 0)
        await it.show("#/s/a")
        field = it.page.get_by_label("Next question")
        await (expect(field).to_be_enabled() if "send" in may else expect(field).to_be_disabled())


@pytest.mark.parametrize("may", [frozenset({"decide", "inspect"}), frozenset({"send", "inspect"})])
async def test_only_a_reader_that_may_decide_is_offered_decisions(may: frozenset[Right]) -> None:
    store, agent = await waiting_session()
    async with inspecting(store, agent, public=False, access=lambda _: Access("ann", may=may)) as it:
        await it.show(ROUTE)
        await expect(it.page.locator(".call.waiting")).to_be_visible()
        # Who may not run sessions leaves that to a worker.
        await expect(it.page.get_by_role("button", name="Approve and resume")).to_have_count(0)
        for name in ("Approve", "Deny"):
            buttons = it.page.locator(".call.waiting").get_by_role("button", name=name, exact=True)
            await expect(buttons).to_have_count(1 if "decide" in may else 0)


async def test_a_customer_sees_conversations_and_nothing_of_how_they_work() -> None:
    store, agent = await waiting_session()
    refused: list[str] = []
    async with inspecting(store, agent, public=False, access=lambda _: Access("ann")) as it:
        it.page.on("response", lambda answer: refused.append(answer.url) if answer.status == 403 else None)
        await it.show()
        await expect(it.page.locator("[data-row]")).to_be_visible()
        await expect(it.page.get_by_text("Stop reasons")).to_have_count(0)
        await expect(it.page.get_by_role("button", name="What if")).to_have_count(0)
        await expect(it.page.get_by_role("link", name="Compare")).to_have_count(0)
        await it.page.locator("[data-row] a").first.click()
        await expect(it.page.locator(".call.waiting")).to_be_visible()
        await expect(it.page.get_by_label("Next question")).to_be_visible()
        await expect(it.page.locator(".evidence, .to-continue, .session-error")).to_have_count(0)
        for name in ("Approve", "Deny", "Edit", "Fork"):
            await expect(it.page.get_by_role("button", name=name)).to_have_count(0)
    assert not refused  # The page asks for nothing that the reader may not see.


@pytest.mark.parametrize("may", [frozenset({"send"}), frozenset({"send", "inspect"})])
async def test_only_a_reader_that_inspects_sees_the_message_of_an_exception(may: frozenset[Right]) -> None:
    @tool
    async def parse(iban: str) -> int:
        return int(iban)

    store = MemoryStore()
    agent = Agent(ScriptedModel([call("parse", {"iban": "DE89370400440532"})]), [parse], clock=FakeClock())
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Is it valid?")
    async with inspecting(store, agent, public=False, access=lambda _: Access("ann", may=may)) as it:
        await it.show(ROUTE)
        shown = "invalid literal for int()" if "inspect" in may else "ValueError in parse"
        await expect(it.page.locator(".call.failed .call-note", has_text=shown)).to_be_visible()
        if "inspect" not in may:
            await expect(it.page.get_by_text("invalid literal")).to_have_count(0)
