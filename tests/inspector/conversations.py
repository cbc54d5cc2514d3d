"""The conversation of a session in the inspector, for the tests of what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import expect

from tests.inspector.dictation import Dictation
from tests.inspector.support import Inspector, inspecting
from whyloop import Agent, Session, tool
from whyloop.stores import MemoryStore, Store
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.values.state import AgentState

ROUTE = "#/s/a"


@tool(needs_approval=True)
async def refund(order: int, amount: int = 20) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


@tool
async def look(name: str) -> str:
    """Look something up."""
    if name == "missing":
        raise ConnectionError("the registry did not answer")
    return f"{name} is known"


@asynccontextmanager
async def dictated(
    *tools: Any, store: Store | None = None, **options: Any
) -> AsyncIterator[tuple[Inspector, Dictation]]:
    """The page of a session `a` whose model writes what the test dictates."""
    told, store = Dictation(), store or MemoryStore()
    width = options.pop("width", 1440)
    agent = Agent(told.model, tools or [look], **options)
    await Session.open(store, agent, "a", create=True)
    async with inspecting(store, agent, width=width) as inspector:
        told.serve(inspector.serving)
        await inspector.show(ROUTE)
        await expect(conversation(inspector)).to_be_visible()
        yield inspector, told


def conversation(inspector: Inspector) -> Any:
    return inspector.page.locator(".conversation")


async def expect_text(inspector: Inspector, shown: str) -> None:
    """Expect a text in the conversation."""
    await expect(conversation(inspector).get_by_text(shown).first).to_be_visible()


@asynccontextmanager
async def tabs(inspector: Inspector, count: int) -> AsyncIterator[list[Inspector]]:
    """Tabs of one browser, which share their connection."""
    async with await inspector.page.context.browser.new_context() as context:
        opened = [Inspector(await context.new_page(), inspector.serving) for _ in range(count)]
        yield opened
    assert not [problem for each in opened for problem in each.problems]


async def ask(inspector: Inspector, question: str) -> None:
    await inspector.page.get_by_label("Next question").fill(question)
    await inspector.page.keyboard.press("Enter")


async def showing(state: AgentState) -> MemoryStore:
    """A store with one session."""
    store = MemoryStore()
    await store.add(state)
    return store


async def waiting_session(*, calls_: int = 1) -> tuple[MemoryStore, Agent]:
    """A session that waits for decisions."""
    asked = calls(
        *[call("refund", {"order": 17 + each, "amount": 250}) for each in range(calls_)], text="I prepare it."
    )
    agent = Agent(ScriptedModel([asked, text("All done."), text("More.")]), [refund])
    store = MemoryStore()
    session = await Session.open(store, agent, "a", create=True)
    await session.send("Refund it.")
    return store, agent


async def press(inspector: Inspector, name: str) -> None:
    await conversation(inspector).get_by_role("button", name=name, exact=True).first.click()


async def confirm(inspector: Inspector, name: str) -> None:
    await inspector.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
