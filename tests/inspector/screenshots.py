"""The pictures of the inspector in the documentation: `python -m tests.inspector.screenshots [FOLDER]`."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from tests.inspector.support import Inspector, inspecting
from whyloop import Agent
from whyloop.cli.demo import priced
from whyloop.cli.demo.scenarios import CLEANUP, SCENARIOS, Scenario, record
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel
from whyloop.values.state import AgentState

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
DAYS = 14
# How often each ending occurs among the sessions of the days before.
OFTEN = {"natural-end": 12, "last-step": 4, "three-days": 0, "approval": 0}

Act = Callable[[Any], Awaitable[object]]


async def example_store(now: datetime) -> MemoryStore:
    """Return a store with the runs of the demo, and those of two weeks before."""
    store, chance = MemoryStore(), random.Random(7)
    for day in range(DAYS, -1, -1):
        busy = 4 if (now - timedelta(days=day)).weekday() >= 5 else 14
        for number in range(busy):
            weights = [OFTEN.get(name, 1) for name in SCENARIOS]
            (name,) = chance.choices(list(SCENARIOS), weights)
            start = now - timedelta(days=day, minutes=chance.randint(180, 900))
            await _add(store, SCENARIOS[name], start, f"{name}-{DAYS - day}{number:02}")
    for number, scenario in enumerate(reversed(SCENARIOS.values())):
        waits = replace(scenario, approval=None, script=scenario.script[:2])
        is_waiting = scenario.name == "approval"
        start = now - timedelta(minutes=20 + 11 * (len(SCENARIOS) - number))
        await _add(store, waits if is_waiting else scenario, start, scenario.name)
    await _add(store, CLEANUP, now - timedelta(minutes=4), CLEANUP.name)
    return store


async def _add(store: MemoryStore, scenario: Scenario, start: datetime, agent_id: str) -> None:
    decided = scenario.approval
    script = tuple(priced(scenario.script))
    if scenario is CLEANUP:  # A person decides twice.
        script = script[:20]
    state = await record(replace(scenario, script=script, approval=decided), start=start)
    await store.add(_named(state, agent_id))


def _named(state: AgentState, agent_id: str) -> AgentState:
    return with_fields(state, agent_id=agent_id, metadata={"app": "crm"})


async def take(inspector: Inspector, route: str, name: str, folder: Path, act: Act | None = None) -> None:
    """Show a page, do something in it, and save its picture."""
    await inspector.show(route)
    await inspector.page.wait_for_selector("h1")
    await inspector.page.wait_for_timeout(1_500)  # A stream stays open, so the network is never idle.
    if act is not None:
        await act(inspector.page)
    await inspector.page.wait_for_timeout(400)
    await inspector.page.screenshot(path=folder / f"inspector-{name}.png")
    sys.stdout.write(f"{folder / f'inspector-{name}.png'}\n")


async def main(folder: Path) -> None:
    """Take every picture, light and dark, wide and on a phone."""
    store = await example_store(datetime.now(UTC))
    agent = Agent(ScriptedModel([]), name="partner-desk")
    session = f"#/s/{CLEANUP.name}"
    async with inspecting(store, agent) as wide:
        await take(wide, "#/sessions", "sessions", folder)
        await take(wide, "#/sessions?limit=max_steps&value=3", "list-what-if", folder)
        await take(wide, session, "session", folder)
        await take(wide, session, "what-if", folder, _move_slider)
        await take(wide, f"{session}/step/8", "step", folder)
        await take(wide, "#/approvals", "approvals", folder)
        await take(wide, "#/compare/tool-retry/retries-exhausted", "compare", folder)
        await wide.page.emulate_media(color_scheme="dark")
        await take(wide, session, "dark", folder)
    async with inspecting(store, agent, width=390, height=844) as phone:
        await take(phone, "#/sessions", "phone-list", folder)
        await take(phone, session, "phone", folder)


async def _move_slider(page: Any) -> None:
    slider = page.locator("input[type=range]").first
    await slider.focus()
    for _ in range(8):
        await page.keyboard.press("ArrowLeft")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
