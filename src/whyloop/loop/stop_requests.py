"""Who was asked to stop, and in which words."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.values.state import AgentState
from whyloop.values.text import clean


class StopRequests:
    """The executions that an agent has under way, and the requests to stop that reached them.

    `listening` has the session of each execution, `words` the words in which it was asked to stop.
    """

    def __init__(self) -> None:
        self.listening: dict[str, str] = {}
        self.words: dict[str, str] = {}
        self._sleeping: dict[asyncio.Task[None], str] = {}

    def listen(self, state: AgentState) -> None:
        """From now on this execution can be asked to stop."""
        self.listening[state.execution.id] = state.agent_id

    def forget(self, state: AgentState) -> None:
        self.listening.pop(state.execution.id, None)
        self.words.pop(state.execution.id, None)

    def ask(self, reason: str, agent_id: str | None = None) -> int:
        """Ask every execution, or that of one session, to stop; returns how many were asked."""
        if not isinstance(reason, str):
            raise ConfigurationError(f"the reason to stop is given in words, not as {reason!r}")
        reason = clean(reason)
        asked = [key for key, session in list(self.listening.items()) if agent_id in (None, session)]
        for execution_id in asked:
            self.words[execution_id] = reason
        for sleeper, execution_id in list(self._sleeping.items()):
            if execution_id in asked:
                sleeper.get_loop().call_soon_threadsafe(sleeper.cancel)
        return len(asked)

    async def sleep(self, execution_id: str, sleep: Coroutine[Any, Any, None]) -> None:
        """Sleep, but wake up at once when this execution is asked to stop."""
        sleeper = asyncio.ensure_future(sleep)
        self._sleeping[sleeper] = execution_id
        try:
            await asyncio.wait([sleeper])
        finally:
            del self._sleeping[sleeper]
            sleeper.cancel()
        if not sleeper.cancelled():
            sleeper.result()  # Raises what the clock raised, if it did.
