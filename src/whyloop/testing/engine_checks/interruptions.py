"""Runs in progress: streaming text; stop requests, deadlines and approvals, in calls and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress

import msgspec

from whyloop.broadcasting.feed import EventFeed
from whyloop.errors import ModelError
from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.rules.limits import CumulativeExecutionTimeLimit, ExecutionTimeLimit
from whyloop.testing.engine_checks.stage import (
    SESSION,
    Gate,
    HeldModel,
    Stage,
    StageSession,
    scenario,
    script,
)
from whyloop.testing.fakes import Reply, ScriptedModel, call, calls, text
from whyloop.tools.tool import Tool, tool
from whyloop.values.continuation import Budget
from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.state import AgentState

DEADLINE_SECONDS = 1.0
"""Long enough for an engine to start a call, and short enough to wait for."""
SEEN_SECONDS = 0.6
"""Every engine has seen a stop request by then."""
_GRACE = 0.1
_PACE_SECONDS = 0.1


def _waiting_at(gate: Gate) -> Tool:
    """Return a tool that waits at a gate."""

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    return wait


@tool
def look() -> str:
    """Look around."""
    return "nothing"


@scenario
async def check_a_stop_while_the_model_streams(stage: Stage) -> None:
    """The text so far is kept as an incomplete answer."""
    gate = stage.gate()
    session, run = await stage.hold(Agent(HeldModel(["Once upon a time"], gate)), "A story", gate)
    await session.request_stop("enough")
    await run


@scenario
async def check_a_resume_after_a_stop(stage: Stage) -> None:
    """A run that was stopped while the model streamed continues with another request."""
    gate = stage.gate()
    session, run = await stage.hold(
        Agent(HeldModel([text("Once upon a time", usage=5), "The end."], gate)), "A story", gate
    )
    await session.request_stop("a break")
    await run
    gate.open()
    await session.resume()


@scenario
async def check_a_stop_while_a_tool_runs(stage: Stage) -> None:
    """A call that exceeds the grace period is cut off, and its outcome is unknown."""
    gate = stage.gate()
    agent = Agent(script(call("wait")), [_waiting_at(gate)], stop_grace=_GRACE)
    session, run = await stage.hold(agent, "Wait", gate)
    await session.request_stop("enough")
    await run


@scenario
async def check_a_stop_while_a_tool_finishes(stage: Stage) -> None:
    """A call that ends within the grace period keeps its result."""
    gate = stage.gate()
    replies = calls(call("wait"), call("look"))
    agent = Agent(script(replies, "Never."), [_waiting_at(gate), look], stop_grace=30)
    session, run = await stage.hold(agent, "Wait", gate)
    await session.request_stop("enough")
    await asyncio.sleep(SEEN_SECONDS)
    gate.open()
    await run


@scenario
async def check_a_stop_in_a_pause(stage: Stage) -> None:
    """A paused run ends without a runner, and the session takes the next query."""
    session, _ = await stage.ask(Agent(script(call("pay", {"amount": 5}), "Hello."), [pay]), "Pay 5")
    await session.request_stop("never mind")
    stopped = await stage.stored(lambda state: state.status.has_ended)
    stage.note("the stop", stopped.to_dict())
    await session.send("Hello")


@scenario
async def check_a_stop_without_a_run(stage: Stage) -> None:
    """A stop request without a run has no effect on the next query."""
    session = await stage.open(Agent(script("Hello.", "Hello again.")))
    await session.request_stop("too early")
    await session.send("Hello")
    await session.request_stop("too late")
    await session.send("Hello again")


@scenario
async def check_a_stop_in_a_wait(stage: Stage) -> None:
    """A stop ends the wait before a retry."""
    policy, slow = ErrorPolicy.retry_all(), Backoff(base=1000, cap=1000)
    model = script(ModelError("overloaded", status=500))
    session = await stage.open(Agent(model, error_policy=policy, backoff=slow))
    run = stage.background(session.send("Hello"))
    await stage.stored(lambda state: state.execution.wait_until is not None)
    await session.request_stop("no time")
    await run


@scenario
async def check_a_deadline_of_a_tool_call(stage: Stage) -> None:
    """A time limit cuts a call off, and a grant of seconds lets the run continue."""
    gate = stage.gate()
    agent = Agent(
        script(call("wait"), "Too late."), [_waiting_at(gate)], timeout=DEADLINE_SECONDS, stop_grace=_GRACE
    )
    session, _ = await stage.ask(agent, "Wait")
    await session.resume(grant=Budget(seconds=60))


@scenario
async def check_a_deadline_of_a_model_call(stage: Stage) -> None:
    """A time limit cuts an answer off, and its text is kept."""
    gate = stage.gate()
    limit = ExecutionTimeLimit(DEADLINE_SECONDS)
    await stage.ask(Agent(HeldModel(["Once upon a time"], gate), criteria=[limit]), "A story")


@scenario
async def check_a_deadline_of_active_time(stage: Stage) -> None:
    """A limit on the time of work cuts a call off, too, and a wrap-up answers."""
    gate = stage.gate()
    limit = CumulativeExecutionTimeLimit(DEADLINE_SECONDS)
    agent = Agent(
        script(call("wait"), "Not done."),
        [_waiting_at(gate)],
        criteria=[limit],
        stop_grace=_GRACE,
        wrap_up=True,
    )
    await stage.ask(agent, "Wait")


@scenario
async def check_a_query_while_another_runs(stage: Stage) -> None:
    """A session runs one query at a time."""
    gate = stage.gate()
    session, run = await stage.hold(Agent(script(call("wait"), "Done."), [_waiting_at(gate)]), "Wait", gate)
    await stage.refused(session.send("Hello?"))
    gate.open()
    await run


@tool(needs_approval=True)
def pay(amount: int, to: str = "bob") -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


@tool
def balance() -> int:
    """Return the balance."""
    return 100


def _is_large(arguments: Mapping[str, object]) -> bool:
    return int(str(arguments["amount"])) > 50


@tool(needs_approval=_is_large)
def lend(amount: int, to: str = "bob") -> str:
    """Lend an amount."""
    return f"lent {amount} to {to}"


async def _ask(stage: Stage, query: str, *replies: Reply | str) -> tuple[StageSession, AgentState]:
    return await stage.ask(Agent(script(*replies), [pay, balance, lend]), query)


def _question(state: AgentState, index: int = 0) -> str:
    """Return the id of an open question."""
    waiting = state.pending_calls
    assert len(waiting) > index, f"question {index + 1} should wait for a person, and {len(waiting)} wait"
    return waiting[index].id


@scenario
async def check_an_approval(stage: Stage) -> None:
    """A decision alone does not continue the run; a resume runs the call."""
    session, state = await _ask(stage, "Pay 5", call("pay", {"amount": 5}, "I pay."), "Paid.")
    await session.approve(_question(state))
    await session.resume()


@scenario
async def check_a_denial(stage: Stage) -> None:
    """The model gets the reason of a denial."""
    session, state = await _ask(stage, "Pay 5", call("pay", {"amount": 5}), "Not paid.")
    await session.deny(_question(state), "too much")
    await session.resume()


@scenario
async def check_an_edit(stage: Stage) -> None:
    """A call runs with the arguments of a person; those that do not fit are refused."""
    session, state = await _ask(stage, "Pay 5", call("pay", {"amount": 5}), "Paid 3.")
    await stage.refused(session.edit(_question(state), {"amount": "three"}))
    await session.edit(_question(state), {"amount": 3, "to": "eve"})
    await session.resume()


@scenario
async def check_two_questions(stage: Stage) -> None:
    """Two calls of a step wait, are decided one by one, and a third one runs at once."""
    replies = calls(call("pay", {"amount": 1}), call("balance"), call("pay", {"amount": 2}))
    session, state = await _ask(stage, "Pay 1 and 2", replies, "Paid 1.")
    first, second = _question(state, 0), _question(state, 1)
    await session.deny(second, "once is enough", by="bob")
    await session.approve(first)
    await session.resume()


@scenario
async def check_a_resume_with_an_open_question(stage: Stage) -> None:
    """A resume runs what was approved, and pauses again for the question that is left."""
    replies = calls(call("pay", {"amount": 1}), call("pay", {"amount": 2}))
    session, state = await _ask(stage, "Pay 1 and 2", replies, "Paid both.")
    await session.resume()
    await session.approve(_question(state))
    state = await session.resume()
    await session.approve(_question(state))
    await session.resume()


@scenario
async def check_questions_of_several_steps(stage: Stage) -> None:
    """Each step asks a question of its own."""
    replies = call("pay", {"amount": 1}), call("pay", {"amount": 2})
    session, state = await _ask(stage, "Pay 1, then 2", *replies, "Paid both.")
    for _ in replies:
        await session.approve(_question(state))
        state = await session.resume()


@scenario
async def check_an_approval_by_arguments(stage: Stage) -> None:
    """A function of the arguments says which calls wait for a person."""
    replies = calls(call("lend", {"amount": 5}), call("lend", {"amount": 70}))
    session, state = await _ask(stage, "Lend 5 and 70", replies, "Lent both.")
    await session.approve(_question(state))
    await session.resume()


@scenario
async def check_an_approved_call_that_fails(stage: Stage) -> None:
    """An error of a call that a person approved is handled like any other."""

    @tool(needs_approval=True)
    def transfer(order: Mapping[str, int]) -> str:
        """Transfer money."""
        raise ConnectionError("the bank is closed")

    model = script(call("transfer", {"order": {"eve": 5}}), "It is closed.")
    policy = ErrorPolicy.retry_tool_errors(max_retries=1)
    session, state = await stage.ask(Agent(model, [transfer], error_policy=policy), "Transfer 5")
    await session.approve(_question(state))
    await session.resume()


@scenario
async def check_a_query_instead_of_a_decision(stage: Stage) -> None:
    """Another query ends a paused execution and closes its question."""
    session, state = await _ask(stage, "Pay 5", call("pay", {"amount": 5}), "The balance is fine.")
    await session.send("Leave that. Is the balance fine?")
    await stage.refused(session.approve(_question(state)))


@scenario
async def check_refused_decisions(stage: Stage) -> None:
    """An unknown or decided question is refused, and so is resuming a completed run."""
    session = await stage.open(Agent(script(call("pay", {"amount": 5}), "Paid."), [pay]))
    await stage.refused(session.resume())
    await stage.refused(session.approve("unknown"))
    state = await session.send("Pay 5")
    await stage.refused(session.approve("unknown"))
    await stage.refused(session.deny("unknown", "no"))
    await stage.refused(session.edit("unknown", {"amount": 1}))
    await session.approve(_question(state))
    await stage.refused(session.deny(_question(state), "too late"))
    await session.resume()
    await stage.refused(session.resume())


class _PacedModel(ScriptedModel):
    """A model that streams its words slowly until a gate is open."""

    def __init__(self, answer: str, gate: Gate) -> None:
        super().__init__([answer], by_word=True)
        self._gate = gate

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the answer word by word."""
        async for delta in super().respond(request):
            yield delta
            with suppress(TimeoutError):
                async with asyncio.timeout(_PACE_SECONDS):
                    await self._gate.wait()


@scenario
async def check_streaming_text(stage: Stage) -> None:
    """A follower of the store gets text while the model answers, and all at the end."""
    gate = stage.gate()
    answer = "A loop ends for a reason, and the reason has a name. " * 2
    session = await stage.open(Agent(_PacedModel(answer, gate)))
    following = stage.background(_follow(stage, gate))
    state = await session.send("Why?")
    chunks, last_response = await following
    assert chunks, "a follower should get text while the model answers, and it got none"
    for chunk in chunks:
        assert chunk in answer, f"a follower should get pieces of the answer, and it got {chunk!r}"
    assert last_response == state.last_response == answer, "a follower should get the answer at the end"


async def _follow(stage: Stage, gate: Gate) -> tuple[list[str], str]:
    """Return the pieces of text that a follower gets, and the answer.

    The first piece opens the gate.
    """
    chunks: list[str] = []
    async with EventFeed(stage.store) as feed, aclosing(feed.follow(SESSION)) as portions:
        async for items in portions:
            for envelope in [msgspec.json.decode(item.body) for item in items]:
                data = envelope["data"]
                if envelope["event"] == "agent.stream.chunk":
                    chunks += [data["chunk"]]
                    gate.open()
                elif envelope["event"] == "agent.status" and data["status"] == "completed":
                    return [chunk for chunk in chunks if chunk], data["last_response"]
    return chunks, ""
