"""Interruptions: approvals, stop requests and deadlines, during a model call, a tool call and a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from whyloop.errors import ModelError
from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.rules.limits import CumulativeExecutionTimeLimit, ExecutionTimeLimit
from whyloop.testing.engine_checks.stage import Gate, HeldModel, Stage, StageSession, scenario, script
from whyloop.testing.scripted import Reply, call, calls, text
from whyloop.tools.tool import Tool, tool
from whyloop.values.continuation import Budget
from whyloop.values.state import AgentState

DEADLINE_SECONDS = 1.0
"""Long enough for an engine to start a call, and short enough to wait for."""
SEEN_SECONDS = 0.6
"""Every engine has seen a stop request by then."""
_GRACE = 0.1


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
    session = await stage.open(Agent(HeldModel(["Once upon a time"], gate)))
    run = stage.background(session.send("A story"))
    await stage.reached(gate, run)
    await session.request_stop("enough")
    await run


@scenario
async def check_a_resume_after_a_stop(stage: Stage) -> None:
    """A run that was stopped while the model streamed continues with another request."""
    gate = stage.gate()
    session = await stage.open(Agent(HeldModel([text("Once upon a time", usage=5), "The end."], gate)))
    run = stage.background(session.send("A story"))
    await stage.reached(gate, run)
    await session.request_stop("a break")
    await run
    gate.open()
    await session.resume()


@scenario
async def check_a_stop_while_a_tool_runs(stage: Stage) -> None:
    """A call that exceeds the grace period is cut off, and its outcome is unknown."""
    gate = stage.gate()
    agent = Agent(script(call("wait")), [_waiting_at(gate)], stop_grace=_GRACE)
    session = await stage.open(agent)
    run = stage.background(session.send("Wait"))
    await stage.reached(gate, run)
    await session.request_stop("enough")
    await run


@scenario
async def check_a_stop_while_a_tool_finishes(stage: Stage) -> None:
    """A call that ends within the grace period keeps its result."""
    gate = stage.gate()
    replies = calls(call("wait"), call("look"))
    agent = Agent(script(replies, "Never."), [_waiting_at(gate), look], stop_grace=30)
    session = await stage.open(agent)
    run = stage.background(session.send("Wait"))
    await stage.reached(gate, run)
    await session.request_stop("enough")
    await asyncio.sleep(SEEN_SECONDS)
    gate.open()
    await run


@scenario
async def check_a_stop_in_a_pause(stage: Stage) -> None:
    """A paused run ends without a runner, and the session takes the next query."""
    session = await stage.open(Agent(script(call("pay", {"amount": 5}), "Hello."), [pay]))
    await session.send("Pay 5")
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
        script(call("wait"), "Too late."),
        [_waiting_at(gate)],
        timeout=DEADLINE_SECONDS,
        stop_grace=_GRACE,
    )
    session = await stage.open(agent)
    await session.send("Wait")
    await session.resume(grant=Budget(seconds=60))


@scenario
async def check_a_deadline_of_a_model_call(stage: Stage) -> None:
    """A time limit cuts an answer off, and its text is kept."""
    gate = stage.gate()
    limit = ExecutionTimeLimit(DEADLINE_SECONDS)
    session = await stage.open(Agent(HeldModel(["Once upon a time"], gate), criteria=[limit]))
    await session.send("A story")


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
    session = await stage.open(agent)
    await session.send("Wait")


@scenario
async def check_a_query_while_another_runs(stage: Stage) -> None:
    """A session runs one query at a time."""
    gate = stage.gate()
    session = await stage.open(Agent(script(call("wait"), "Done."), [_waiting_at(gate)]))
    run = stage.background(session.send("Wait"))
    await stage.reached(gate, run)
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


async def _session(stage: Stage, *replies: Reply | str) -> StageSession:
    return await stage.open(Agent(script(*replies), [pay, balance, lend]))


def _question(state: AgentState, index: int = 0) -> str:
    """Return the id of an open question."""
    waiting = state.pending_calls
    assert len(waiting) > index, f"question {index + 1} should wait for a person, and {len(waiting)} wait"
    return waiting[index].id


@scenario
async def check_an_approval(stage: Stage) -> None:
    """A decision alone does not continue the run; a resume runs the call."""
    session = await _session(stage, call("pay", {"amount": 5}, "I pay."), "Paid.")
    state = await session.send("Pay 5")
    await session.approve(_question(state), by="ann")
    await session.resume()


@scenario
async def check_a_denial(stage: Stage) -> None:
    """The model gets the reason of a denial."""
    session = await _session(stage, call("pay", {"amount": 5}), "Not paid.")
    state = await session.send("Pay 5")
    await session.deny(_question(state), "too much", by="ann")
    await session.resume()


@scenario
async def check_an_edit(stage: Stage) -> None:
    """A call runs with the arguments of a person; those that do not fit are refused."""
    session = await _session(stage, call("pay", {"amount": 5}), "Paid 3.")
    state = await session.send("Pay 5")
    await stage.refused(session.edit(_question(state), {"amount": "three"}))
    await session.edit(_question(state), {"amount": 3, "to": "eve"}, by="ann")
    await session.resume()


@scenario
async def check_two_questions(stage: Stage) -> None:
    """Two calls of a step wait, are decided one by one, and a third one runs at once."""
    replies = calls(call("pay", {"amount": 1}), call("balance"), call("pay", {"amount": 2}))
    session = await _session(stage, replies, "Paid 1.")
    state = await session.send("Pay 1 and 2")
    first, second = _question(state, 0), _question(state, 1)
    await session.deny(second, "once is enough", by="bob")
    await session.approve(first, by="ann")
    await session.resume()


@scenario
async def check_a_resume_with_an_open_question(stage: Stage) -> None:
    """A resume runs what was approved, and pauses again for the question that is left."""
    replies = calls(call("pay", {"amount": 1}), call("pay", {"amount": 2}))
    session = await _session(stage, replies, "Paid both.")
    state = await session.send("Pay 1 and 2")
    await session.resume()
    await session.approve(_question(state), by="ann")
    state = await session.resume()
    await session.approve(_question(state), by="ann")
    await session.resume()


@scenario
async def check_questions_of_several_steps(stage: Stage) -> None:
    """Each step asks a question of its own."""
    session = await _session(stage, call("pay", {"amount": 1}), call("pay", {"amount": 2}), "Paid both.")
    for query in ("Pay 1, then 2", None):
        state = await (session.send(query) if query else session.resume())
        await session.approve(_question(state), by="ann")
    await session.resume()


@scenario
async def check_an_approval_by_arguments(stage: Stage) -> None:
    """A function of the arguments says which calls wait for a person."""
    replies = calls(call("lend", {"amount": 5}), call("lend", {"amount": 70}))
    session = await _session(stage, replies, "Lent both.")
    state = await session.send("Lend 5 and 70")
    await session.approve(_question(state), by="ann")
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
    session = await stage.open(Agent(model, [transfer], error_policy=policy))
    state = await session.send("Transfer 5")
    await session.approve(_question(state), by="ann")
    await session.resume()


@scenario
async def check_a_query_instead_of_a_decision(stage: Stage) -> None:
    """Another query ends a paused execution and closes its question."""
    session = await _session(stage, call("pay", {"amount": 5}), "The balance is fine.")
    state = await session.send("Pay 5")
    await session.send("Leave that. Is the balance fine?")
    await stage.refused(session.approve(_question(state)))


@scenario
async def check_refused_decisions(stage: Stage) -> None:
    """An unknown or decided question is refused, and so is resuming a completed run."""
    session = await _session(stage, call("pay", {"amount": 5}), "Paid.")
    await stage.refused(session.resume())
    await stage.refused(session.approve("unknown"))
    state = await session.send("Pay 5")
    await stage.refused(session.approve("unknown"))
    await stage.refused(session.deny("unknown", "no"))
    await stage.refused(session.edit("unknown", {"amount": 1}))
    await session.approve(_question(state), by="ann")
    await stage.refused(session.deny(_question(state), "too late"))
    await session.resume()
    await stage.refused(session.resume())
