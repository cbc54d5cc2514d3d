"""Runs in a real PostgreSQL are judged, surveyed and tuned as those of any other store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.real.postgres import PostgresServer
from tests.replay.test_judge import agent, look
from whyloop import Session, StepsLimit, TokenUsageLimit
from whyloop.cli import main, tune
from whyloop.replay import Recording, RunProblem, judge, read_runs, survey
from whyloop.stores import MemoryStore, PostgresStore, Store

pytestmark = pytest.mark.slow

RULES = [*map(StepsLimit, range(1, 12)), *map(TokenUsageLimit, (100, 250, 600))]


@pytest.fixture
async def store(postgres: PostgresServer, schema: str) -> AsyncIterator[Store]:
    async with PostgresStore(postgres.address(), schema=schema, max_connections=4) as store:
        yield store


async def fill(store: Store, count: int = 12) -> None:
    for number in range(count):
        session = await Session.open(store, agent(*[look()] * number, "done"), f"s{number}", create=True)
        await session.send("go")


async def test_a_survey_counts_the_same_as_in_memory(store: Store) -> None:
    memory = MemoryStore()
    await fill(store)
    await fill(memory)
    found, expected = await survey(store, RULES), await survey(memory, RULES)
    assert (found.runs, found.used) == (12, expected.used)
    assert found.rows == expected.rows
    assert judge(await Recording.read(store, "s9"), StepsLimit(4)).stopped_at == 4


async def test_a_store_that_changes_while_it_is_read_is_read_completely(store: Store) -> None:
    await fill(store, 30)
    seen: set[str] = set()
    problems = []
    async for found in read_runs(store):
        if isinstance(found, RunProblem):
            problems.append(found)
            continue
        if not seen:
            for number in range(0, 30, 3):  # Some of them were read already.
                await store.delete(f"s{number}")
            await fill_more(store)
        seen.add(found.agent_id)
    assert problems == []
    assert {f"s{number}" for number in range(30) if number % 3} <= seen


async def fill_more(store: Store) -> None:
    session = await Session.open(store, agent(look(), "done", look(), "done"), "new", create=True)
    await session.send("go")
    again = await Session.open(store, agent(look(), "more"), "s1")
    await again.send("again")


async def test_the_commands_read_it_with_several_processes(
    postgres: PostgresServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "PAGE", 5)
    address = postgres.address()
    async with PostgresStore(address, max_connections=4) as store:
        await fill(store)
        try:
            argv = ["--store", address, "--limits", "max_steps", "--processes", "2", "--json"]
            assert await asyncio.to_thread(main, ["tune", *argv]) == 0
            assert json.loads(capsys.readouterr().out)["runs"] == 12
            argv = ["--store", address, "--all", "--max-steps", "3"]
            assert await asyncio.to_thread(main, ["what-if", *argv]) == 0
            assert "9 would end differently." in capsys.readouterr().out
        finally:
            for number in range(12):
                await store.delete(f"s{number}")
