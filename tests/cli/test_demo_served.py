"""`whyloop demo --serve`: the scenarios live in the inspector."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from urllib.parse import urlsplit

import pytest

from tests.cli.shop import WHYLOOP, environment
from tests.cli.test_serve import asked
from whyloop import Session
from whyloop.cli.demo import agent_for
from whyloop.cli.demo.scenarios import CLEANUP, SCENARIOS
from whyloop.stores import MemoryStore
from whyloop.values.continuation import Budget


@pytest.mark.slow
def test_scenarios_run_live_and_ctrl_c_ends_them() -> None:
    command = [*WHYLOOP, "demo", "--serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            address = urlsplit(process.stderr.readline().split()[0]).netloc
            while not (listed := asked(address, "GET", "/sessions")[1]["sessions"]):
                pass
            assert listed[0]["agent_id"] == CLEANUP.name
            assert asked(address, "GET", "/")[1].startswith("<!doctype html>")
            # A session of the reader's own has the agent of the first scenario.
            assert asked(address, "POST", "/sessions", {"agent_id": "mine"})[0] == 201
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) in (0, 130, -signal.SIGINT)
        finally:
            process.kill()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits in these tests."""
    rest = asyncio.sleep
    monkeypatch.setattr("whyloop.cli.demo.asyncio.sleep", lambda _: rest(0))
    monkeypatch.setattr("whyloop.loop.local_world.asyncio.sleep", lambda _: rest(0))


@pytest.mark.usefixtures("quick")
async def test_the_long_task_reaches_its_limit_and_completes_with_more_steps() -> None:
    session = await Session.open(MemoryStore(), agent_for(CLEANUP), metadata={"scenario": CLEANUP.name})
    state = await session.send(CLEANUP.queries[0].text)
    while state.pending_calls:
        await session.approve(state.pending_calls[0].id, by="Kim")
        state = await session.resume()
    assert (state.stop_reason, state.step_count) == ("steps_limit", 20)
    assert state.usage.cost is not None
    state = await session.resume(grant=Budget(steps=10))
    assert "Two copies were deleted" in str(state.last_response)


@pytest.mark.usefixtures("quick")
async def test_any_question_after_a_script_is_answered() -> None:
    session = await Session.open(MemoryStore(), agent_for(SCENARIOS["natural-end"]))
    await session.send(SCENARIOS["natural-end"].queries[0].text)
    for _ in range(2):
        state = await session.send("And now?")
        assert "script of this demo ends" in str(state.last_response)
