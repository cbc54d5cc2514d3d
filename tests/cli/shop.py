"""A store with sessions in it, and agents on scripts, for the commands to work with."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from whyloop import (
    Agent,
    AgentState,
    Backoff,
    ContinuationDecision,
    ContinuationOutcome,
    ErrorPolicy,
    Message,
    Session,
    StateInfo,
    StopReason,
    tool,
)
from whyloop.cli import main
from whyloop.errors import ModelError
from whyloop.stores import SqliteStore, Store
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.values.log import Log

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
HERE = "tests.cli.shop"
ROOT = Path(__file__).parents[2]
WHYLOOP = [sys.executable, "-c", "import sys; from whyloop.cli import main; sys.exit(main())"]

T = TypeVar("T")


@tool(needs_approval=lambda arguments: arguments["amount"] > 100)
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


@tool
def search(query: str) -> str:
    """Search the books."""
    return f"found {query}"


# Each is made anew, since a script is told once.


def greeting() -> Agent:
    return Agent(ScriptedModel(["Hello there."]))


def talking() -> Agent:
    """Answers three questions."""
    return Agent(ScriptedModel([text("One.", usage=10), text("Two.", usage=20), text("Three.", usage=30)]))


def paying() -> Agent:
    """Looks something up, then waits for a person before it pays."""
    first = calls(
        call("search", {"query": "invoices"}),
        call("pay", {"amount": 500, "to": "Bob"}),
        text="Let me see.",
        usage=420,
    )
    return Agent(ScriptedModel([first, "Done."]), [pay, search])


def paying_twice() -> Agent:
    """Two calls that wait for a person."""
    both = calls(call("pay", {"amount": 500, "to": "Bob"}), call("pay", {"amount": 700, "to": "Eve"}))
    return Agent(ScriptedModel([both, "Done."]), [pay])


def after_paying() -> Agent:
    """What goes on with a session that `paying` began."""
    return Agent(ScriptedModel([text("Done.", usage=80)]), [pay, search])


def searching() -> Agent:
    """Never ends by itself."""
    script = [call("search", {"query": f"page {number}"}) for number in range(9)]
    return Agent(ScriptedModel(script), [search], max_steps=2)


def unlucky() -> Agent:
    """Cannot reach its model, and retries once."""
    policy, soon = ErrorPolicy.retry_all(1), Backoff(base=0.001, cap=0.001)
    return Agent(ScriptedModel([ModelError("dead")] * 4), error_policy=policy, backoff=soon)


def failing() -> Agent:
    return Agent(ScriptedModel([call("sell", {})]), [search])


agent = greeting()
number = 7


def broken() -> Agent:
    raise OSError("no such model")


# What is in the store


def in_store(work: Callable[[Store], Awaitable[T]], path: str | Path = "whyloop.db") -> T:
    """What some work with the store gives."""

    async def done() -> T:
        async with SqliteStore(path) as store:
            return await work(store)

    return asyncio.run(done())


def asked(agent: Agent, question: str = "Pay what we owe", **metadata: object) -> str:
    """The id of a new session in which this agent was asked something."""

    async def work(store: Store) -> str:
        session = await Session.open(store, agent, metadata=metadata)
        await session.send(question)
        return session.agent_id

    return in_store(work)


def loaded(agent_id: str) -> AgentState:
    return in_store(lambda store: store.load(agent_id))


def kept(
    agent_id: str,
    title: str = "A question",
    *,
    days: float = 0,
    stopped: StopReason | None = None,
    agent: str = "",
    **metadata: object,
) -> str:
    """Put a session into the store that began so many days before `NOW`."""
    began = NOW - timedelta(days=days)
    state = AgentState(
        agent_id=agent_id,
        agent=agent,
        messages=Log([Message.user(title)]),
        state_info=StateInfo(started_at=began, updated_at=began),
    ).with_metadata(metadata)
    if stopped is not None:
        forbid = ContinuationDecision.FORBID_CONTINUATION
        state = state.with_continuation_outcome(ContinuationOutcome(forbid, "StepsLimit", stopped))
    in_store(lambda store: store.add(state))
    return agent_id


@contextmanager
def run_by(agent_id: str, owner: str = "elsewhere:7") -> Iterator[Callable[[], str | None]]:
    """Let another runner have a session; yield a function that returns the stop request it received."""
    store = SqliteStore("whyloop.db")
    lease = asyncio.run(store.acquire(agent_id, owner, 600))
    try:
        yield lambda: asyncio.run(store.renew(lease))
    finally:
        asyncio.run(store.close())


def question_of(agent_id: str, index: int = 0) -> str:
    """Return the id of an open question."""
    return loaded(agent_id).pending_calls[index].id


def environment(**variables: str) -> dict[str, str]:
    """Return the environment for a process that imports this checkout and its tests.

    A size in it would count for more than that of a terminal, and readline leaves one for the processes that
    pytest starts.
    """
    outside = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**outside, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **variables}


# What a command does


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr."""
    code = main(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def refused(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 1) -> str:
    """The words of a command that does nothing: on stderr, after its name, without a traceback."""
    ended, out, err = run(capsys, *argv)
    assert (ended, out) == (code, ""), err
    name = f"whyloop {argv[0]}: "
    assert err.startswith(name)
    assert "Traceback" not in err
    return err.removeprefix(name).removesuffix("\n")
