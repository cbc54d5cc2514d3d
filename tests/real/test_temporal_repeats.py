"""Models that repeat a request, on a real Temporal server: a wait moves no clock of active time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.temporal import TemporalServer, fleet
from whyloop import Agent, CumulativeExecutionTimeLimit
from whyloop.stores import SqliteStore
from whyloop.testing.engine_checks.repeats import RepeatingModel, refuse_wrong_clocks

pytestmark = [pytest.mark.slow]

LIMIT, WAIT = 2.0, 5.0


async def test_a_wait_longer_than_what_is_left_of_the_active_time_is_waited_out(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    limit = CumulativeExecutionTimeLimit(LIMIT)
    agent = Agent(RepeatingModel(["Hello."], WAIT), name="patient", criteria=[limit])
    async with SqliteStore(tmp_path / "s.db") as store, fleet(temporal, store, [agent]) as here:
        state = await (await here.session("patient", "a")).send("Hi")
        await here.replay("a")
    assert refuse_wrong_clocks(state) >= WAIT
    assert (state.status, state.last_response) == ("completed", "Hello.")
