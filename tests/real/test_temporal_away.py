"""A real Temporal server that goes away, and comes back, while clients use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.real.temporal import NoTemporalError, TemporalServer, fleet
from tests.real.test_temporal_server import at_rest, cashier, lab_of, paused
from whyloop import Agent, AgentStatus, tool
from whyloop.errors import StoreUnavailableError
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[TemporalServer]:
    """A server of its own for each test, which stops it."""
    try:
        server = TemporalServer()
    except NoTemporalError as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.remove()


async def test_a_client_that_waits_is_told_that_temporal_is_away_and_waits_again(
    server: TemporalServer, store: SqliteStore
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        begun.set()
        await free.wait()
        return "worked"

    agent = Agent(ScriptedModel([call("work"), "done"]), [work], name="worker", timeout=None)
    async with fleet(server, store, [agent]) as here:
        session = await here.session("worker", "away")
        accepted = await session.begin("Work")
        await asyncio.wait_for(begun.wait(), 30)
        waiting = asyncio.create_task(session.wait(accepted))
        server.stop()
        with pytest.raises(StoreUnavailableError, match=f"Temporal could not be reached at {server.address}"):
            await asyncio.wait_for(waiting, 60)
        free.set()
        server.start()
        state = await asyncio.wait_for(session.wait(accepted), 60)
        server.stop()
        again = await asyncio.wait_for(session.wait(accepted), 60)  # The store has the end.
    assert state.status is again.status is AgentStatus.COMPLETED
    assert state.messages[-1].content == "done"


async def test_a_server_answers_503_while_temporal_is_away_and_still_records_a_stop(
    server: TemporalServer, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(server, store, [cashier()]) as here:
        lab = lab_of(here)
        path, question = await paused(lab)
        new = await lab.made("b")
        edit = {"question_id": question, "arguments": {"amount": 4}}
        server.stop()
        away = await asyncio.gather(
            lab.post(f"{new}/messages", {"text": "Pay 5"}),
            lab.post(f"{path}/resume"),
            lab.post(f"{path}/approve", edit),
        )
        stopped = await lab.post(f"{path}/stop", {"reason": "enough"})
        server.start()
        begun = await lab.post(f"{new}/messages", {"text": "Hi"}, headers={"idempotency-key": "one"})
        await at_rest(lab, new, "completed")
    for answer in away:
        assert (answer.status, answer.error) == (503, "unavailable")
        assert answer.message == "Sessions cannot be used at the moment. Try again."
        assert answer.headers["retry-after"] == "1"
    assert f"Temporal could not be reached at {server.address}" in caplog.text
    assert stopped.json == {"stopped": True}
    assert begun.status == 202
