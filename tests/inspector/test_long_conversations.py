"""Long conversations in the inspector stay smooth."""

from __future__ import annotations

import pytest

from tests.inspector.conversations import (
    ROUTE,
    ask,
)
from tests.inspector.dictation import Dictation
from tests.inspector.support import (
    Inspector,
    Smoothness,
    check_strictly,
    inspecting,
    wait_for_text,
    watch_tasks,
)
from tests.real.browser import SHARES_BROWSER, open_page
from whyloop import Agent
from whyloop.stores import MemoryStore
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow, *SHARES_BROWSER]


async def use_five_thousand_messages() -> Smoothness:
    """Open a session of 5,000 messages, let text stream into it, and scroll meanwhile."""
    messages = [
        Message.user(f"Question {index // 2}")
        if index % 2 == 0
        else Message.assistant(f"**Answer** {index // 2}")
        for index in range(5_000)
    ]
    told = Dictation()
    agent = Agent(told.model)
    store = MemoryStore()
    await store.add(AgentState(agent_id="a", messages=Log(messages)))
    async with inspecting(store, agent) as inspector:
        told.serve(inspector.serving)
        page = inspector.page
        async with watch_tasks(page) as found:
            await inspector.show(ROUTE)
            await wait_for_text(page, ".talk", "Answer 2499")
            await ask(inspector, "One more.")
            await told.write_until(page.locator(".streaming", has_text="Well"), "Well")
            for index in range(200):
                await told.write(f" word-{index}" + ("\n\n" if index % 20 == 19 else ""))
            await wait_for_text(page, ".talk", "word-199")
            assert await page.locator(".block").count() < 200
            await wait_for_end(inspector)
            await scroll_up_to(inspector, "Question 2300")
            await told.write(" and an end")
            await page.locator("button", has_text="Jump to the end").click()
            await wait_for_text(page, ".talk", "and an end")
            await wait_for_end(inspector)
            await scroll_up_to(inspector, "Question 1500")  # Older ones are loaded on the way.
    return found


async def test_five_thousand_messages_hold_nothing_up_while_text_streams() -> None:
    (await use_five_thousand_messages()).check()


@pytest.mark.soak(suite="scale")
async def test_five_thousand_messages_have_no_long_task_while_text_streams() -> None:
    await check_strictly(use_five_thousand_messages)


async def test_a_task_that_holds_the_page_up_is_noticed() -> None:
    busy = "const until = performance.now() + 200; while (performance.now() < until);"
    async with open_page() as page:
        async with watch_tasks(page) as found:
            await page.goto("about:blank")
            await page.set_content("<p>Work</p>")
            await page.evaluate(f"new Promise((done) => setTimeout(() => {{ {busy} setTimeout(done) }}))")
        assert found.longest >= 0.2
        assert not found.is_smooth
        assert found.computed <= found.longest


async def wait_for_end(inspector: Inspector) -> None:
    """Wait until the end of the conversation is visible."""
    is_at_end = """() => {
        const pane = document.querySelector('.talk');
        return pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
    }"""
    await inspector.page.wait_for_function(is_at_end, polling=100)


async def scroll_up_to(inspector: Inspector, words: str) -> None:
    """Scroll up until words are in the page; older messages are loaded on the way."""
    scroll = """(words) => new Promise((done) => {
        const pane = document.querySelector('.talk');
        const look = () => {
            pane.scrollTop = 0;
            if (pane.textContent.includes(words)) done();
            else setTimeout(look, 20);
        };
        look();
    })"""
    await inspector.page.evaluate(scroll, words)
