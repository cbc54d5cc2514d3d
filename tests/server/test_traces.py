"""The trace that a page draws: brief steps, times, calls, executions and limits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.server.responsive import Heartbeat, LongModel
from tests.server.support import Json, Lab, agent_with
from tests.server.test_pages import any_session
from tests.support import RespondingModel, echo, scripted, seeds
from whyloop import Agent, ErrorPolicy, Session, tool
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing import FakeClock, call, calls
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.state import AgentState
from whyloop.values.transitions import Queried
from whyloop.wire.journal import decode_entries, fold


async def trace_of(lab: Lab, path: str = "/sessions/a", **query: object) -> Json:
    answer = await lab.get(f"{path}/trace", query=query)
    assert answer.status == 200, answer
    found: Json = answer.json
    return found


# Steps


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_step_in_which_the_run_was_stopped_says_who_decided(is_known: bool) -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    store, agent = MemoryStore(), scripted(call("pay"), tools=[pay])
    session = await Session.open(store, agent, "a", create=True)
    await session.send("go")
    await (session.request_stop("enough") if is_known else store.request_stop("a", "enough"))
    trace = await trace_of(Lab(store))
    outcome = trace["open_step"]["outcome"]
    assert (trace["status"], outcome["resolved_by"]) == ("stopped", "StopRequestedCheck")
    assert (len(outcome["evaluations"]) == 1, outcome.get("partial", False)) == (not is_known, not is_known)


async def test_a_step_says_when_the_model_answered_and_how_long_it_waited_for_whom() -> None:
    clock = FakeClock()

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        clock.advance(2)
        return "paid"

    agent = scripted(
        ModelError("overloaded", status=503),
        call("pay", {"amount": 1}),
        "done",
        tools=[pay],
        clock=clock,
        error_policy=ErrorPolicy.retry_all(),
        timeout=None,
    )
    store = MemoryStore()
    session = await Session.open(store, agent, "a", create=True)
    await session.send("go")
    lab = Lab(store)
    opened = (await trace_of(lab))["open_step"]
    assert [call["status"] for call in opened["tool_calls"]] == ["waiting"]
    assert (opened["index"], opened["completed_at"], opened["waited_seconds"]) == (2, None, 0.0)
    assert opened["outcome"]["resolved_by"] == "ApprovalRequired"
    assert opened["backoff_seconds"] == pytest.approx(clock.sleeps[0], abs=0.001)
    clock.advance(3600)
    await session.approve(session.state.pending_calls[0].id, by="ann")
    await session.resume()
    trace = await trace_of(lab)
    failed, paid, answered = trace["steps"]
    assert trace["open_step"] is None
    assert [step["index"] for step in trace["steps"]] == [1, 2, 3]
    assert (failed["backoff_seconds"], answered["backoff_seconds"]) == (0.0, 0.0)
    assert paid["backoff_seconds"] == opened["backoff_seconds"] > 0
    assert [step["waited_seconds"] for step in trace["steps"]] == [0.0, 3600.0, 0.0]
    assert paid["answered_at"] == opened["answered_at"] < paid["tool_calls"][0]["started_at"]
    assert paid["tool_calls"][0]["duration_ms"] == 2000.0
    # A page that starts in the middle has the same times.
    assert (await trace_of(lab, after=1, limit=1))["steps"] == [paid]


async def test_each_call_has_its_status(store: Store) -> None:
    @tool
    async def fail() -> str:
        raise ToolExecutionError("no")

    @tool(needs_approval=True)
    async def pay(amount: int = 1) -> str:
        return "paid"

    asked = calls(call("echo", {"value": "x"}), call("fail"), call("pay"), call("pay", {"amount": 2}))
    agent = scripted(asked, "done", tools=[echo, fail, pay], error_policy=ErrorPolicy.retry_all())
    lab = Lab(store, agent)
    path = await lab.asked()
    opened = (await trace_of(lab, path))["open_step"]
    assert [call["status"] for call in opened["tool_calls"]] == ["succeeded", "failed", "waiting", "waiting"]
    first, second = (await lab.get(path)).json["pending_calls"]
    await lab.post(f"{path}/deny", {"question_id": first["id"], "by": "ann"})
    opened = (await trace_of(lab, path, brief="true"))["open_step"]
    assert [call["status"] for call in opened["tool_calls"]] == ["succeeded", "failed", "denied", "waiting"]
    await lab.post(f"{path}/approve", {"question_id": second["id"]})
    opened = (await trace_of(lab, path))["open_step"]
    assert opened["tool_calls"][3]["status"] == "not_started"
    await lab.post(f"{path}/resume")
    await lab.rest()
    done = (await trace_of(lab, path))["steps"][0]
    assert [call["status"] for call in done["tool_calls"]] == ["succeeded", "failed", "denied", "succeeded"]
    await lab.server.close()


async def test_a_brief_step_has_summaries_instead_of_arguments_and_results(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "long " * 100}), call("pay", {"amount": 3}), "done"))
    path = await lab.asked()
    whole, shown = await trace_of(lab, path), await trace_of(lab, path, brief="true")
    [step], [brief] = whole["steps"], shown["steps"]
    [echoed], [summary] = step["tool_calls"], brief["tool_calls"]
    assert "request" in step
    assert "request" not in brief
    assert not {"arguments", "result", "changes"} & summary.keys()
    assert summary["args_summary"] == f"value: '{'long ' * 6}'"
    assert summary["result_summary"] == "long " * 20
    assert {**step, "tool_calls": 0, "request": 0} == {**brief, "tool_calls": 0, "request": 0}
    assert {key: echoed[key] for key in echoed.keys() & summary.keys()} == {
        key: summary[key] for key in echoed.keys() & summary.keys()
    }
    assert shown["open_step"]["tool_calls"][0]["args_summary"] == "amount: 3"
    same = ("executions", "limits", "rules", "agent", "headline", "explanation", "times", "usage")
    assert {key: whole[key] for key in same} == {key: shown[key] for key in same}
    for value in ("yes", "1", "True"):
        assert (await lab.get(f"{path}/trace", query={"brief": value})).status == 400
    await lab.server.close()


# Executions


def executions_in(agent_id: str, texts: tuple[str, ...]) -> list[Json]:
    """The executions of a journal, told by its queries alone."""
    state, found = None, list[Json]()
    for entry in decode_entries(texts):
        query = next((each for each in entry.transitions if isinstance(each, Queried)), None)
        state = fold(agent_id, [entry], state) if state is not None else fold(agent_id, [entry])
        if query is not None:
            found.append({"query": query.message.text, "first_step": len(state.steps) + 1})
        if found:
            found[-1] |= {
                "id": state.execution.id,
                "status": state.status.value,
                "stop_reason": state.stop_reason,
                "step_count": len(state.steps) - found[-1]["first_step"] + 1,
            }
    return found


def matches(shown: list[Json], expected: list[Json]) -> bool:
    return [{key: each[key] for key in wanted} for each, wanted in zip(shown, expected, strict=True)] == (
        expected
    )


@seeds(25)
async def test_the_executions_are_those_of_the_journal_and_of_its_fork(seed: int) -> None:
    store = MemoryStore()
    lab = Lab(store)
    await any_session(store, seed)
    for _ in range(2):  # The second time, earlier executions are remembered.
        shown = (await trace_of(lab))["executions"]
        assert matches(shown, executions_in("a", (await store.read("a")).entries))
    ended = [each for each in shown if each["ended_at"] is not None]
    assert all(each["status"] in ("completed", "stopped", "failed") for each in ended)
    await lab.post("/sessions/a/fork", {"agent_id": "fork"})
    forked = (await trace_of(lab, "/sessions/fork"))["executions"]
    assert matches(forked, executions_in("fork", (await store.read("fork")).entries))
    assert [each["query"] for each in forked] == [each["query"] for each in shown]
    await lab.server.close()


async def test_the_latest_execution_changes_while_earlier_ones_are_remembered(store: Store) -> None:
    lab = Lab(store, agent_with("one", call("pay", {"amount": 1}), "two", "three"))
    path = await lab.asked(text="first")
    await trace_of(lab, path)
    await lab.post(f"{path}/messages", {"text": "second"})
    await lab.rest()
    first, second = (await trace_of(lab, path))["executions"]
    assert (first["status"], first["resolved_by"]) == ("completed", "ToolCallPresenceCheck")
    assert (second["status"], second["ended_at"], second["step_count"]) == ("paused", None, 0)
    [pending] = (await lab.get(path)).json["pending_calls"]
    await lab.post(f"{path}/approve", {"question_id": pending["id"]})
    await lab.post(f"{path}/resume")
    await lab.rest()
    await lab.post(f"{path}/messages", {"text": "third"})
    await lab.rest()
    shown = (await trace_of(lab, path))["executions"]
    assert [(each["query"], each["status"], each["first_step"], each["step_count"]) for each in shown] == [
        ("first", "completed", 1, 1),
        ("second", "completed", 2, 2),
        ("third", "completed", 4, 1),
    ]
    await lab.server.close()


async def test_an_imported_snapshot_has_the_executions_of_its_steps(store: Store) -> None:
    agent = agent_with("one", call("echo"), "two", "three")
    state = await agent.run("first")
    state = await agent.run("second", state=state)
    await store.add(state)
    lab = Lab(store, agent)
    path = f"/sessions/{state.agent_id}"
    expected = [("first", "completed", 1, 1), ("second", "completed", 2, 2)]
    for _ in range(2):
        shown = (await trace_of(lab, path))["executions"]
        found = [(each["query"], each["status"], each["first_step"], each["step_count"]) for each in shown]
        assert found == expected
        expected.append(("third", "completed", 4, 1))
        await lab.post(f"{path}/messages", {"text": "third"})
        await lab.rest()
    await lab.server.close()


async def test_a_snapshot_that_waits_in_its_first_step_has_one_execution(store: Store) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return "paid"

    await store.add(replace(await scripted(call("pay", {"amount": 1}), tools=[pay]).run("go"), agent_id="a"))
    (only,) = (await trace_of(Lab(store)))["executions"]
    assert (only["query"], only["first_step"], only["step_count"]) == ("go", 1, 0)


async def test_a_session_before_its_first_query_has_no_execution(store: Store) -> None:
    lab = Lab(store, agent_with("one"))
    trace = await trace_of(lab, await lab.made())
    assert (trace["executions"], trace["limits"], trace["rules"], trace["open_step"]) == ([], [], [], None)
    await lab.server.close()


async def test_a_page_has_the_latest_executions_and_those_of_its_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.server.views.MOST_LATEST", 2)
    lab = Lab(store, agent_with(*"12345"))
    path = await lab.asked(text="q1")
    for number in range(2, 6):
        await lab.post(f"{path}/messages", {"text": f"q{number}"})
        await lab.rest()

    async def found(**query: int) -> list[str]:
        return [each["query"] for each in (await trace_of(lab, path, **query))["executions"]]

    assert await found() == ["q1", "q2", "q3", "q4", "q5"]
    assert await found(limit=1) == ["q1", "q4", "q5"]
    assert await found(after=1, limit=2) == ["q2", "q3", "q4", "q5"]
    assert await found(after=9) == ["q4", "q5"]
    await lab.server.close()


# Limits


async def test_limits_have_the_numbers_of_the_last_evaluation_and_what_was_granted(store: Store) -> None:
    agent = agent_with(*[call("echo")] * 5, "done", max_steps=2, max_tokens=1000, timeout=60, name="clerk")
    lab = Lab(store, agent)
    path = await lab.asked()
    trace = await trace_of(lab, path)
    assert trace["agent"] == "clerk"
    assert trace["rules"][:3] == ["ErrorPolicyCriterion", "StopRequestedCheck", "StepsLimit"]
    assert trace["rules"][-1] == "ToolCallPresenceCheck"
    steps, tokens, seconds = trace["limits"]
    assert steps == {
        "rule": "StepsLimit", "option": "max_steps", "unit": "steps", "limit": 2, "used": 2, "granted": 0
    }  # fmt: skip
    assert (tokens["option"], tokens["limit"]) == ("max_tokens", 1000)
    assert (seconds["option"], seconds["unit"], seconds["limit"]) == ("timeout", "seconds", 60)
    await lab.post(f"{path}/resume", {"grant": {"steps": 2}})
    await lab.rest()
    [steps] = [each for each in (await trace_of(lab, path))["limits"] if each["unit"] == "steps"]
    assert (steps["limit"], steps["used"], steps["granted"]) == (2, 4, 2)
    await lab.server.close()


async def test_a_grant_is_shown_before_a_rule_has_seen_it(store: Store) -> None:
    agent = agent_with(call("echo"), call("pay", {"amount": 1}), "done", max_steps=1)
    lab = Lab(store, agent)
    path = await lab.asked()
    await lab.post(f"{path}/resume", {"grant": {"steps": 5}})
    await lab.rest()
    session = (await lab.get(path)).json["session"]
    assert session["status"] == "paused"
    [steps] = [each for each in (await trace_of(lab, path))["limits"] if each["unit"] == "steps"]
    assert (steps["limit"], steps["granted"]) == (1, 5)
    await lab.server.close()


# Long sessions


async def test_a_brief_page_of_a_long_session_is_small_and_does_not_hold_up_anything(
    tmp_path: object,
) -> None:
    async with SqliteStore(f"{tmp_path}/whyloop.db") as store:
        model = RespondingModel(LongModel(2000).respond)
        agent = Agent(model, [echo], max_steps=2001, timeout=None)
        await (await Session.open(store, agent, "long", create=True)).send("go")
        lab = Lab(store)
        query = {"brief": "true", "limit": 250, "after": 1000}
        async with Heartbeat(only_own=True) as heart:
            answer = await lab.client.call("GET", "/sessions/long/trace", query=query, until=b"\0")
        assert answer.status == 200
        assert len(answer.json["steps"]) == 250
        assert len(answer.body) < 500_000
        assert heart.lag.worst < 0.1, str(heart.lag)


async def test_a_session_that_was_imported_with_messages_alone_has_a_trace() -> None:
    store = MemoryStore()
    messages = Log([Message.user("Hi"), Message.assistant("Hello.")])
    await store.add(AgentState(agent_id="a", messages=messages))
    session = await Session.open(store, scripted("Well."), "a")
    await session.send("And now?")
    assert [each["query"] for each in (await trace_of(Lab(store)))["executions"]][-1] == "And now?"
