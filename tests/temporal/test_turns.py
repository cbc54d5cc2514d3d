"""The turns of a workflow's handlers: a handler that no longer waits disturbs nobody."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("temporalio", reason="these tests need Temporal's SDK")

from temporalio.exceptions import ApplicationError

from whyloop.temporal.turns import Turns


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_was_cancelled_does_not_disturb_the_turn_after_it(fails: bool) -> None:
    turns = Turns()

    async def work() -> str:
        if fails:
            raise ApplicationError("refused")
        return "done"

    async def nothing() -> None:
        return None

    first, second = [asyncio.create_task(turns.ask(work)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    for _ in range(2):
        failure = await turns.answer_next(nothing)
        assert (failure is not None) is fails
    if fails:
        with pytest.raises(ApplicationError, match="refused"):
            await second
    else:
        assert await second == "done"
