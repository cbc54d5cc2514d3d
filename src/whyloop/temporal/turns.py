"""Requests that wait for their turn in a workflow, and how each of them is answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from whyloop.temporal.fleet import refused
from whyloop.temporal.world import outcome_of

Work = Callable[[], Awaitable[Any]]


class _Request(NamedTuple):
    """Work on a session, and the answer for which a handler waits."""

    do: Work
    answer: asyncio.Future[Any]
    stop: str | None
    """The reason of a stop request."""

    def refuse(self, failure: Exception) -> None:
        """Answer with an error, unless the handler no longer waits.

        Args:
            failure: The error.
        """
        if not self.answer.done():
            self.answer.set_exception(failure)


class Turns:
    """The requests of a workflow's handlers, which are answered one after another in the order of arrival.

    An error of a request is its answer, so it never reaches Temporal as that of a workflow task.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Request] = deque()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    async def ask(self, do: Work) -> Any:
        """Wait for a turn, and return the answer.

        Args:
            do: The work on the session.
        """
        return await self._add(do).answer

    def add(self, do: Work, stop: str | None = None) -> None:
        """Add a request for whose answer nobody waits: an error is logged.

        Args:
            do: The work on the session.
            stop: The reason of a stop request, for a run that begins first. Default: none.
        """
        self._add(do, stop).answer.add_done_callback(_log_refusal)

    def _add(self, do: Work, stop: str | None = None) -> _Request:
        request = _Request(do, asyncio.get_running_loop().create_future(), stop)
        self._waiting.append(request)
        return request

    async def answer_next(self, clean_up: Callable[[], Awaitable[None]]) -> ApplicationError | None:
        """Answer the first request, and return its error, if it has one.

        A cancellation does not interrupt it.

        Args:
            clean_up: What to do after an error, before it is the answer.
        """
        request = self._waiting.popleft()
        try:
            answer, _ = await outcome_of(request.do())
        except Exception as error:
            failure = refused(error)
            try:
                await clean_up()
            finally:
                request.refuse(failure)
            return failure
        if not request.answer.done():
            request.answer.set_result(answer)
        return None

    def refuse(self, failure: Exception) -> str | None:
        """Refuse all that wait; return the reason of the last stop request among them.

        Args:
            failure: The answer.
        """
        stop = None
        while self._waiting:
            request = self._waiting.popleft()
            stop = stop if request.stop is None else request.stop
            request.refuse(failure)
        return stop

    async def close(self, failure: Exception) -> None:
        """Refuse all that wait or arrive, until the last handler has finished.

        Args:
            failure: The answer.
        """
        while self._waiting or not workflow.all_handlers_finished():
            self.refuse(failure)
            await workflow.wait_condition(lambda: bool(self._waiting) or workflow.all_handlers_finished())


def _log_refusal(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and (error := answer.exception()) is not None:
        workflow.logger.info("the session is left as it is: %s", error)
