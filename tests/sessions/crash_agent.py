"""An agent whose next step follows from its history alone, so that any process can go on with it.

What its tools do leaves a line in a file outside the store. That file says what truly happened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from whyloop import Agent, ModelRequest, ModelResponse, TextDelta, ToolCall, ToolContext, tool
from whyloop.values.model import FinishReason

STEPS = 12
# What each step asks for: one call, several at once, one that may be repeated.
PATTERN = (("work",), ("work", "safe", "work"), ("safe",), ("work", "work"))


class HistoryModel:
    """Counts its own answers in the history, and asks for what comes next."""

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(0)
        number = sum(1 for message in request.messages if message.is_assistant)
        if number >= STEPS:
            yield ModelResponse("all done")
            return
        names = PATTERN[number % len(PATTERN)]
        calls = tuple(
            ToolCall(f"call_{number}_{index}", name, {"number": number * 10 + index})
            for index, name in enumerate(names)
        )
        yield ModelResponse("", calls, FinishReason.TOOL_CALLS)


class Ledger:
    """The file outside the store; a line is one write, so the death of a process cannot tear it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *words: object) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []


def crash_agent(ledger: Ledger) -> Agent:
    """The agent; `work` must never be done twice, `safe` may be, under one and the same key."""

    @tool
    async def work(number: int) -> str:
        await asyncio.sleep(0)
        ledger.write("work", number)
        await asyncio.sleep(0)
        return f"worked on {number}"

    @tool(idempotent=True)
    async def safe(number: int, context: ToolContext) -> str:
        await asyncio.sleep(0)
        ledger.write("safe", number, context.idempotency_key)
        return f"made sure of {number}"

    agent = Agent(HistoryModel(), [work, safe], max_steps=10 * STEPS)

    @agent.subscribe
    def acknowledge(event: object) -> None:
        if type(event).__name__ == "AgentStepCompleted":
            ledger.write("acknowledged", getattr(event, "step_number", 0))

    return agent
