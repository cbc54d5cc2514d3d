"""Properties of the slim snapshot of any run, under any configuration."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support import ScriptItem, assert_complete_history, broken, echo, examples, scripted
from tests.values.test_snapshot import guarded, json_values, policies, replies, words
from tests.wire.support import read
from whyloop import (
    AgentState,
    AgentStatus,
    Backoff,
    ErrorPolicy,
    Message,
    Redaction,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
)
from whyloop.errors import ConfigurationError
from whyloop.testing import call, calls

# It looks like no credential, so that only its key or the user's pattern gives it away.
SECRET = "Zq7RtUvWx"

configs = st.builds(
    SlimSerializationConfig,
    max_messages=st.none() | st.integers(1, 12),
    max_content_length=st.none() | st.integers(1, 40),
    include_tool_args=st.booleans(),
    include_metadata=st.booleans(),
    include_all_steps=st.booleans(),
    redaction=st.just(Redaction(patterns=(SECRET,))),
)
queries = st.lists(words.map(lambda word: word * 5), min_size=1, max_size=3)


async def conversation(
    script: Sequence[ScriptItem], policy: ErrorPolicy, asked: Sequence[str], *instructions: Message
) -> AgentState:
    agent = scripted(
        *script,
        *itertools.repeat("the end", 4),
        tools=[echo, broken, guarded],
        error_policy=policy,
        backoff=Backoff(jitter=0),
        max_steps=4,
    )
    state = AgentState()
    state = replace(state, messages=state.messages.extended(instructions))
    for query in asked:
        state = await agent.run(query, state=state)
    return state


def check_truncation(state: AgentState, config: SlimSerializationConfig, document: dict[str, Any]) -> None:
    shown, truncated = document["messages"], document["truncated"]
    assert truncated["messages"] == len(state.messages) - len(shown)
    assert config.max_messages is None or len(shown) <= config.max_messages
    if truncated["messages"]:
        first = next((m for m in shown if m["role"] != "system"), None)
        assert first is None or first["role"] == "user"
    # What redaction removed is missing in both, and is not cut.
    whole = replace(config, max_messages=None, max_content_length=None)
    uncut = read(SlimAgentStateSerializer(whole).serialize(state)).messages
    cut = [message for message in read(document).messages if message not in uncut]
    if config.include_tool_args:
        assert truncated["contents"] == len(cut)
        assert all("…" in json.dumps(repr(message), ensure_ascii=False) for message in cut)
    if config.max_content_length is not None:
        assert all(len(message["content"]) <= config.max_content_length for message in shown)


async def check_running(state: AgentState) -> None:
    after = await scripted(call("echo"), "fine", tools=[echo]).run("and now?", state=state)
    assert (after.status, after.last_response) == (AgentStatus.COMPLETED, "fine")
    if state.status not in (AgentStatus.COMPLETED, AgentStatus.PENDING):
        steps = 1 if state.open_step is None else 2
        for pending in state.pending_calls:
            state = state.approve(pending.id)
        policy = ErrorPolicy.ignore_tool_errors()
        agent = scripted("fine", tools=[echo, guarded], max_steps=50, error_policy=policy)
        resumed = await agent.resume(state)
        assert resumed.status is AgentStatus.COMPLETED
        assert resumed.execution.step_count == state.execution.step_count + steps


@examples(150)
@given(st.lists(replies, max_size=6), policies, queries, configs, st.integers(0, 2))
def test_any_run_can_be_written_within_its_limits_read_and_run(
    script: list[ScriptItem],
    policy: ErrorPolicy,
    asked: list[str],
    config: SlimSerializationConfig,
    instructions: int,
) -> None:
    async def check() -> None:
        state = await conversation(script, policy, asked, *[Message.system("be brief")] * instructions)
        serializer = SlimAgentStateSerializer(config)
        document = serializer.serialize(state)
        check_truncation(state, config, document)
        restored = read(document)
        assert_complete_history(restored.messages)
        assert (restored.status, restored.stop_reason) == (state.status, state.stop_reason)
        # The last response is read from the messages, as far as they are kept.
        response = restored.execution.last_response
        assert replace(restored.execution, last_response=state.execution.last_response) == state.execution
        assert response in ("", state.execution.last_response) or "…" in response or "[removed]" in response
        assert restored.usage == state.usage
        waiting = [(pending.id, pending.arguments) for pending in restored.pending_calls]
        assert waiting in ([], [(pending.id, pending.arguments) for pending in state.pending_calls])
        left_out = state.open_step is not None and restored.open_step is None
        assert document["truncated"].get("open_step", 0) == left_out
        if not left_out:
            assert restored.explain().splitlines()[0][:20] == state.explain().splitlines()[0][:20]
        await check_running(restored)

    asyncio.run(check())


@examples(60)
@given(st.lists(replies, max_size=6), policies, queries)
def test_a_snapshot_of_everything_loses_nothing(
    script: list[ScriptItem], policy: ErrorPolicy, asked: list[str]
) -> None:
    state = asyncio.run(conversation(script, policy, asked))
    config = SlimSerializationConfig.full(redaction=None)
    assert read(SlimAgentStateSerializer(config).serialize(state)) == state


def planted(data: Any, position: int) -> Any:
    """Somebody's data with a secret in one of its places."""
    place = position % 4
    if place == 0:
        return {"data": data, "api_key": SECRET}
    if place == 1:
        return [data, {"login": {"Password": [SECRET, data]}}]
    return {"note": f"it is {SECRET}!", "data": data} if place == 2 else {f"x{SECRET}": data}


@examples(100)
@given(json_values, st.integers(0, 3), configs, st.booleans())
def test_no_planted_secret_is_ever_in_a_snapshot(
    data: Any, position: int, config: SlimSerializationConfig, as_text: bool
) -> None:
    async def check() -> None:
        hidden = planted(data, position)
        text = json.dumps(hidden) if as_text else str(hidden)
        script = [
            call("echo", {"value": text}, text=f"I use {SECRET} now"),
            call("broken", {"value": SECRET}),
            call("no_such_tool", {"deep": hidden}),
            call("echo", text),
            calls(call("echo", {"value": text}), call("guarded", {"value": text}, id="edited")),
            call("guarded", {"value": "x"}, text=data if isinstance(data, str) else ""),
        ]
        policy = ErrorPolicy.ignore_tool_errors()
        state = await conversation(script, policy, [text, f"and {SECRET}?"], Message.system(text))
        for pending in state.pending_calls:
            state = state.edit(pending.id, {"value": text}, by="ada")
        state = replace(
            state, metadata={"deep": hidden}, execution=replace(state.execution, stop_request=text)
        )
        assert SECRET in json.dumps(state.to_dict())
        try:
            document = SlimAgentStateSerializer(config).serialize(state)
        except ConfigurationError:
            return
        written = json.dumps(document, ensure_ascii=False)
        # Half a secret would be one, too.
        assert SECRET[:5] not in written
        assert SECRET[-5:] not in written

    asyncio.run(check())
