"""`whyloop worker`: continue sessions whose runner died, or whose questions are all decided."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from whyloop.cli.agents import find_agents
from whyloop.cli.command_lines import short
from whyloop.cli.terminal import write_error
from whyloop.errors import ConfigurationError
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentStatusChanged,
    AgentStepCompleted,
)
from whyloop.sessions.recovery import Recovery
from whyloop.stores.store import Store
from whyloop.values.continuation import StopReason
from whyloop.values.execution import AgentStatus
from whyloop.values.text import shortened

REASON_LENGTH = 300
_AFTER_THE_END = (AgentExecutionFailed, AgentExecutionFinished)


async def work(store: Store, args: argparse.Namespace) -> int:
    """Continue sessions until a signal."""
    if args.at_once < 1:
        raise ConfigurationError(f"invalid --at-once {args.at_once}: use a number from 1 on")
    agents = find_agents(args.agents)
    progress = WorkerProgress(write_error)
    stopping = asyncio.Event()
    _on_signals(stopping)
    write_error(f"Looking for sessions of {', '.join(shortened(name, 64) for name in agents)}.")
    async with Recovery(store, agents, handlers=[progress], at_once=args.at_once):
        await stopping.wait()
        write_error("Stopping: each run ends after its step.")
    progress.finish()
    return 0


class WorkerProgress:
    """Write a line when a session continues, and one when it ends, pauses or is left."""

    def __init__(self, write_line: Callable[[str], object]) -> None:
        self._write_line = write_line
        self._steps: dict[str, int] = {}

    def __call__(self, event: AgentEvent) -> None:
        agent_id = event.agent_id
        if isinstance(event, _AFTER_THE_END):
            return
        if agent_id not in self._steps:
            self._steps[agent_id] = 0
            self._write_line(f"{_name(agent_id)}  continues")
        if isinstance(event, AgentStepCompleted):
            self._steps[agent_id] = event.step_number
        if isinstance(event, AgentStatusChanged) and event.status is not AgentStatus.IN_PROGRESS:
            del self._steps[agent_id]
            self._write_line(f"{_name(agent_id)}  {_end_text(event)}")

    def finish(self) -> None:
        """Write a line about each session that was left in progress."""
        for agent_id, step in self._steps.items():
            self._write_line(f"{_name(agent_id)}  left after step {step}: another worker continues it")
        self._steps.clear()


def _end_text(event: AgentStatusChanged) -> str:
    """Return how a run ended: "stopped (steps_limit) by StepsLimit: Limit reached: 3 of 3 steps used"."""
    reason = f" ({event.stop_reason})" if event.stop_reason not in (None, StopReason.COMPLETED) else ""
    by = f" by {shortened(event.resolved_by, 64)}" if event.resolved_by else ""
    why = f": {shortened(event.reason, REASON_LENGTH)}" if event.reason else ""
    return f"{event.status}{reason}{by}{why}"


def _name(agent_id: str) -> str:
    return shortened(short(agent_id), 64)


def _on_signals(stopping: asyncio.Event) -> None:
    """Set the event at SIGTERM and Ctrl-C; the next signal ends the process as a crash would."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    # Where there are no such handlers, Ctrl-C ends the program as it ends any other.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
