"""Reading a slim snapshot: a state that can be run, or an error that names the path."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import START, at, broken, echo, requests_of, scripted
from tests.wire.support import read, slim
from tests.wire.test_slim import DOCUMENT, KEYS, TOP
from whyloop import (
    AgentState,
    AgentStatus,
    CanSerializeAgentState,
    ErrorPolicy,
    SlimAgentStateSerializer,
)
from whyloop.errors import NotResumableError, SnapshotError
from whyloop.testing import FakeClock, call, calls


def test_the_serializer_is_one() -> None:
    assert isinstance(SlimAgentStateSerializer(), CanSerializeAgentState)


async def test_a_state_that_is_read_back_is_the_next_query_s_history() -> None:
    agent = scripted(call("echo", {"value": "hi"}), "It said hi.", "Bye.", tools=[echo])
    state = read(slim(await agent.run("Say hi.")))
    after = await agent.run("And now bye.", state=state)
    assert after.last_response == "Bye."
    assert [message.text for message in requests_of(agent)[-1].messages] == [
        "Say hi.",
        "",
        "hi",
        "It said hi.",
        "And now bye.",
    ]
    assert after.agent_id == state.agent_id


async def test_a_stopped_execution_continues_with_its_counters_and_its_time() -> None:
    clock = FakeClock()
    first = scripted(call("echo"), clock=clock, tools=[echo], max_steps=1)
    state = await first.run("go")
    assert state.status is AgentStatus.STOPPED
    state = replace(state, execution=replace(state.execution, active_seconds=8.0))
    restored = read(slim(state, max_messages=1))
    assert restored.execution_started_at is None
    assert restored.execution == state.execution
    assert restored.state_info == state.state_info
    assert restored.usage == state.usage
    assert restored.last_continuation_outcome is not None
    assert restored.last_continuation_outcome.resolved_by == "StepsLimit"
    assert "1 of 1 steps used" in restored.explain()
    after = await scripted("done", clock=clock, tools=[echo], max_steps=3).resume(restored)
    assert (after.status, after.execution.step_count) == (AgentStatus.COMPLETED, 2)
    assert after.execution.active_seconds >= 8.0


async def test_a_completed_execution_is_not_resumed() -> None:
    state = read(slim(await scripted("done").run("go")))
    with pytest.raises(NotResumableError):
        await scripted("more").resume(state)


async def test_failures_are_counted_on() -> None:
    script = [calls(call("broken"), call("echo")), call("broken")]
    agent = scripted(*script, tools=[broken, echo], error_policy=ErrorPolicy.retry_tool_errors(1))
    state = await agent.run("go")
    restored = read(slim(state))
    assert state.execution.failures.consecutive == 2
    assert restored.execution.failures == state.execution.failures
    assert restored.current_step is not None
    assert state.current_step is not None
    (failure,) = state.current_step.failures
    assert restored.current_step.failures == (replace(failure, raised=None),)
    assert "broken" in restored.explain()


def test_a_document_with_the_documented_fields_only_can_be_read() -> None:
    state = read(
        {
            "version": 1,
            "agent_id": "a",
            "parent_agent_id": None,
            "status": "stopped",
            "execution": {
                "id": "e",
                "step_count": 3,
                "started_at": "2026-01-16T10:00:00Z",
                "updated_at": "2026-01-16T10:01:00+00:00",
                "cumulative_seconds": 45.2,
            },
            "usage": {"input": 1200, "output": 600, "total": 1800},
            "messages": [{"role": "user", "content": "go"}],
            "current_step": {
                "step_number": 3,
                "type": "tool_execution",
                "has_tool_calls": True,
                "finish_reason": "tool_calls",
                "errors": 0,
                "usage": {"total": 500},
                "duration_ms": 1250.5,
                "tool_calls": [{"id": "call_1", "name": "search"}],
            },
            "steps": [],
            "last_continuation": {
                "should_continue": False,
                "stop_reason": "steps_limit",
                "resolved_by": "StepsLimit",
            },
            "metadata": {},
            "truncated": {"messages": 120, "contents": 4},
        }
    )
    assert (state.stop_reason, state.usage.total, state.execution.active_seconds) == (
        "steps_limit",
        1800,
        45.2,
    )
    assert state.current_step is not None
    assert (state.current_step.usage.total, state.current_step.execution_id) == (500, "e")
    assert state.current_step.completed_at == at(60)
    assert state.state_info.started_at == START
    assert "steps_limit" in state.explain()


@pytest.mark.parametrize("version", [2, 99, 2**70])
def test_a_newer_version_is_refused(version: int) -> None:
    with pytest.raises(SnapshotError, match="newer than 1") as caught:
        SlimAgentStateSerializer().deserialize({**DOCUMENT, "version": version})
    assert caught.value.path == "$.version"


@pytest.mark.parametrize("version", [None, "1", 0, -1, 1.0, True])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(SnapshotError) as caught:
        SlimAgentStateSerializer().deserialize({**DOCUMENT, "version": version})
    assert caught.value.path == "$.version"


@pytest.mark.parametrize("data", [None, [], "state", 1])
def test_a_document_that_is_not_an_object_is_refused(data: Any) -> None:
    with pytest.raises(SnapshotError) as caught:
        SlimAgentStateSerializer().deserialize(data)
    assert caught.value.path == "$"


@pytest.mark.parametrize(
    "path",
    [
        *(f"$.{key}" for key in TOP.split()),
        *(f"$.{part}.{key}" for part, keys in KEYS.items() for key in keys.split()),
        "$.messages[0].role",
        "$.messages[0].content",
        "$.messages[1].metadata.tool_calls[0].id",
        "$.messages[1].metadata.tool_calls[0].name",
        "$.truncated.messages",
        "$.truncated.contents",
    ],
)
def test_a_missing_field_and_a_wrong_type_are_errors_that_name_the_path(path: str) -> None:
    for wrong in (object(), None):
        document: Any = copy.deepcopy(DOCUMENT)
        holder = document
        *parents, last = path[2:].replace("[", ".").replace("]", "").split(".")
        for key in parents:
            holder = holder[int(key) if key.isdigit() else key]
        assert last in holder
        if wrong is None:
            del holder[last]
        else:
            holder[last] = wrong
        with pytest.raises(SnapshotError) as caught:
            SlimAgentStateSerializer().deserialize(document)
        assert caught.value.path == path


async def test_a_state_that_was_read_back_can_be_stored_in_full() -> None:
    agent = scripted(call("echo"), call("echo"), "done", tools=[echo], max_steps=2)
    restored = read(slim(await agent.run("go")))
    assert AgentState.from_dict(restored.to_dict()) == restored


def test_reading_does_not_change_the_document() -> None:
    document = copy.deepcopy(DOCUMENT)
    SlimAgentStateSerializer().deserialize(document).with_metadata(more=1)
    assert document == DOCUMENT
