"""The AI SDK's own client decodes our streams into what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.real.node_packages import install
from tests.support import RespondingModel
from tests.wire.random_runs import (
    HOSTILE,
    ODD_ARGUMENTS,
    Run,
    Scenario,
    hand_made,
    own_run,
    run_end,
    scenarios,
    texts_of,
    two_payments_asked,
)
from tests.wire.test_envelope_golden import fixed_events
from whyloop import Agent, FinishReason, ModelRequest, ModelResponse, ReasoningDelta, ToolCall, tool
from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStatusChanged,
    ApprovalDecided,
    ContinuationEvaluated,
    ToolCallCompleted,
)
from whyloop.testing import FakeClock
from whyloop.values.redaction import Redaction
from whyloop.values.text import clean
from whyloop.wire.vercel import (
    CONTINUATION,
    DECISION,
    DONE,
    HEADERS,
    VercelHistory,
    VercelStream,
    as_data,
    sse,
)

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "vercel"
FOLDER = Path(sys.prefix) / "node" / "vercel"
READING_SECONDS = 60

Seen = dict[str, Any]
each_version = pytest.mark.parametrize("version", ["ai-6", "ai-7"])


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """The SDK; without it the tests say what is missing."""
    install(SOURCE)


def streamed(run: Iterable[AgentEvent], stream: VercelStream | None = None) -> str:
    """A run as the body of a response."""
    stream = stream or VercelStream()
    parts = [part for event in run for part in stream.parts(event)]
    return "".join(sse(part) for part in [*parts, *stream.break_off("it broke off")]) + DONE


def read(version: str, messages: list[list[str]]) -> list[list[Seen]]:
    """What a version of the SDK makes of the streams of each message."""
    done = subprocess.run(
        ["node", "read.mjs", version, json.dumps(HEADERS)],
        cwd=FOLDER,
        input=json.dumps(messages),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=READING_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: list[list[Seen]] = json.loads(done.stdout)
    return seen


def execution_of(run: Run) -> str:
    """The execution that a run is about; before it may be the end of one that it replaces."""
    started = [event for event in run if isinstance(event, AgentExecutionStarted)]
    return (started or run)[0].execution_id


def by_execution(runs: Iterable[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(execution_of(run), []).append(run)
    return list(found.values())


def check_message(runs: list[Run], seen: list[Seen]) -> None:
    """The message has the texts, the tools' ends, and the word on every step; so has every run's end."""
    message = seen[-1]["message"]
    parts = message["parts"]
    execution_id = execution_of(runs[0])
    assert message["id"] == execution_id
    runs = [own_run(run) for run in runs]
    assert [part["text"] for part in parts if part["type"] == "text"] == [
        text for run in runs for text in texts_of(run)
    ]
    assert {part["state"] for part in parts if part["type"] == "text"} <= {"done"}

    ends = [event for run in runs for event in run if isinstance(event, ToolCallCompleted)]
    decided = [event for run in runs for event in run if isinstance(event, ApprovalDecided)]
    denied = {(event.step_number, event.tool_call_id) for event in decided if event.verdict == "denied"}
    outputs = [
        (clean(event.tool), as_data(Redaction().text(event.result))) for event in ends if event.success
    ]
    errors = [
        (clean(event.tool), clean(event.error or ""))
        for event in ends
        if not event.success and (event.step_number, event.tool_call_id) not in denied
    ]
    assert sorted(in_state(parts, "output-available", "output"), key=repr) == sorted(outputs, key=repr)
    assert sorted(in_state(parts, "output-error", "errorText")) == sorted(errors)
    assert len(in_state(parts, "output-denied", "input")) == len(denied)

    verdicts = {
        event.step_number: (event.outcome.resolved_by, event.outcome.stop_reason)
        for run in runs
        for event in run
        if isinstance(event, ContinuationEvaluated)
    }
    data = [part["data"] for part in parts if part["type"] == CONTINUATION]
    assert {each["step_number"]: (each["resolved_by"], each["stop_reason"]) for each in data} == verdicts
    for run, at_its_end in zip(runs, seen, strict=True):
        end = run_end(run)
        about = at_its_end["message"]["metadata"]["whyloop"]
        assert (about["status"], about["stop_reason"]) == (end.status, end.stop_reason)
        failed = [Redaction().text(end.error_message or "")] if end.status == "failed" else []
        assert at_its_end["errors"] == failed


def in_state(parts: list[dict[str, Any]], state: str, field: str) -> list[tuple[str, Any]]:
    found = [part for part in parts if part["type"].startswith("tool-") and part["state"] == state]
    return [(part["type"].removeprefix("tool-"), part[field]) for part in found]


def in_runs(events: Run) -> list[Run]:
    """The events of an execution, split where it pauses or ends: a stream is one run, decisions before it."""
    runs: list[Run] = [[]]
    for event in events:
        decided = isinstance(event, ApprovalDecided)
        if runs[-1] and (isinstance(event, AgentExecutionStarted) or decided) and has_ended(runs[-1]):
            runs.append([])
        runs[-1].append(event)
    return runs


def has_ended(run: Run) -> bool:
    changes = [event for event in run if isinstance(event, AgentStatusChanged)]
    return bool(changes) and changes[-1].status != "in_progress"


@each_version
async def test_the_fixed_run_is_read_as_it_went(version: str) -> None:
    executions = by_execution([[event] for event in await fixed_events()])
    told = [in_runs([event for single in execution for event in single]) for execution in executions]
    messages = read(version, [[streamed(run) for run in runs] for runs in told])
    for runs, seen in zip(told, messages, strict=True):
        check_message(runs, seen)
    first = messages[0][0]["message"]["parts"]
    assert [part["type"] for part in first] == [
        *("step-start", "text", "tool-search", "tool-search", CONTINUATION),
        *("step-start", "text", CONTINUATION),
    ]
    assert first[2]["input"] == {"query": "dbplus", "types": ["program"], "limit": 4, "deep": True}
    assert first[3]["errorText"] == "an empty query finds nothing"
    assert messages[1][0]["message"]["parts"][-1]["data"]["stop_reason"] == "steps_limit"


def some_sessions() -> list[list[Run]]:
    """The runs of some dozens of sessions, the same every time."""
    found: list[list[Run]] = []

    @settings(max_examples=80, derandomize=True, database=None)
    @given(scenarios)
    def collect(scenario: Scenario) -> None:
        found.append(scenario.runs())

    collect()
    return found


@each_version
def test_any_run_is_read_as_it_went(version: str) -> None:
    executions = [runs for session in some_sessions() for runs in by_execution(session)]
    assert any(len(runs) > 1 for runs in executions)
    messages = read(version, [[streamed(run) for run in runs] for runs in executions])
    for runs, seen in zip(executions, messages, strict=True):
        check_message(runs, seen)


@each_version
def test_the_history_has_the_messages_that_the_sdk_makes(version: str) -> None:
    executions = [runs for session in some_sessions() for runs in by_execution(session)]
    messages = read(version, [[streamed(run) for run in runs] for runs in executions])
    for runs, seen in zip(executions, messages, strict=True):
        history = VercelHistory()
        for run in runs:
            history.add_run(run)
        made = seen[-1]["message"]
        loaded = next(each for each in history.messages if each["id"] == made["id"])
        assert loaded["metadata"] == made["metadata"]
        assert [essential(part) for part in loaded["parts"]] == [essential(part) for part in made["parts"]]


def essential(part: Seen) -> Seen:
    """A part without ids of texts, and without the metadata that one version keeps and another does not."""
    left_out = {"providerMetadata", "callProviderMetadata", "resultProviderMetadata", "rawInput"}
    left_out |= set() if part["type"].startswith("data-") else {"id"}
    return {name: value for name, value in part.items() if name not in left_out}


@each_version
async def test_a_call_that_waits_is_asked_about_and_answered_in_its_own_place(version: str) -> None:
    agent, state, events = await two_payments_asked()
    before = list(events)
    events.clear()
    first, second = state.pending_calls
    await agent.resume(state.approve(first.id).edit(second.id, {"amount": 6}))
    ((waiting, paid),) = read(version, [[streamed(before), streamed(events)]])

    asking = [part for part in waiting["message"]["parts"] if part["type"] == "tool-pay"]
    assert [part["state"] for part in asking] == ["approval-requested"] * 2
    assert asking[0]["approval"]["id"] == first.id
    assert asking[0]["approval"]["descriptor"] == {"question": "pay waits for approval"}
    done = [part for part in paid["message"]["parts"] if part["type"] == "tool-pay"]
    assert [(part["input"], part["output"]) for part in done] == [
        ({"amount": 5}, "paid 5"),
        ({"amount": 6}, "paid 6"),
    ]
    assert (waiting["errors"], paid["errors"]) == ([], [])


@each_version
async def test_a_call_that_a_person_denied_keeps_its_input(version: str) -> None:
    agent, state, events = await two_payments_asked()
    before = list(events)
    events.clear()
    first, second = state.pending_calls
    decided = state.deny(first.id, "too much", by="Ann").approve(second.id)
    await agent.resume(decided)
    after = streamed(events, VercelStream(resumed=decided))
    ((_, seen),) = read(version, [[streamed(before), after]])
    found = [part for part in seen["message"]["parts"] if part["type"] == "tool-pay"]
    assert [(part["state"], part["input"]) for part in found] == [
        ("output-denied", {"amount": 5}),
        ("output-available", {"amount": 7}),
    ]
    made = [part["data"]["reason"] for part in seen["message"]["parts"] if part["type"] == DECISION]
    assert (made, seen["errors"]) == (["too much", None], [])


@each_version
async def test_results_are_data_and_reasoning_is_a_separate_part(version: str) -> None:
    @tool
    async def look() -> dict[str, object]:
        return {"rows": [1, 2], "next": None}

    async def respond(request: ModelRequest) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            yield ReasoningDelta("I count ")
            yield ReasoningDelta("them.")
            yield ModelResponse("Two.", reasoning="I count them.")
        else:
            wanted = (ToolCall("look_1", "look", {}),)
            yield ModelResponse("", wanted, FinishReason.TOOL_CALLS)

    events: Run = []
    model = RespondingModel(respond)
    await Agent(model, [look], clock=FakeClock(), event_handler=events.append).run("Count")
    ((seen,),) = read(version, [[streamed(events)]])
    parts = seen["message"]["parts"]
    assert in_state(parts, "output-available", "output") == [("look", {"rows": [1, 2], "next": None})]
    said = [(part["type"], part["text"]) for part in parts if part["type"] in ("reasoning", "text")]
    assert said == [("reasoning", "I count them."), ("text", "Two.")]
    assert seen["errors"] == []


@each_version
def test_hostile_text_is_read_as_text(version: str) -> None:
    given = [(words, arguments) for words in HOSTILE for arguments in ODD_ARGUMENTS]
    messages = read(version, [[streamed(hand_made(words, arguments))] for words, arguments in given])
    for (words, _), (seen,) in zip(given, messages, strict=True):
        assert seen["errors"] == ["it broke off"]
        parts = seen["message"]["parts"]
        assert [part["text"] for part in parts if part["type"] == "text"] == [clean(words)]
        assert in_state(parts, "output-error", "errorText") == [(clean(words), clean(words))]
