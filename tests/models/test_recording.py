"""Recording and replay: answers come back without secrets, and a difference is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.faulty_server import KEY, FaultyServer, chat_answer, chat_call, say, whole
from tests.support import RespondingModel, echo
from whyloop import (
    Agent,
    AgentState,
    ErrorPolicy,
    Message,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    tool,
)
from whyloop.errors import ConfigurationError, ModelError, RateLimitError, ScriptError, SnapshotError
from whyloop.events import StreamChunkReceived
from whyloop.models import RecordingModel, ReplayModel, load
from whyloop.models.secrets import without_secrets
from whyloop.testing import FakeClock, Reply, ScriptedModel, call, calls, capture_events, text

Script = list[Reply | str | BaseException | type[BaseException]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings" / "run.jsonl"


def agent_on(model: Any, **options: Any) -> Agent:
    return Agent(model, [echo], clock=FakeClock(), error_policy=ErrorPolicy.retry_all(), **options)


async def recorded(path: Path, script: Script, query: str = "Hi", **options: Any) -> AgentState:
    return await agent_on(RecordingModel(ScriptedModel(script), path), **options).run(query)


def essence(state: AgentState) -> Any:
    """What has to be the same in a replay: everything but ids and times."""
    document = state.to_dict()
    steps = [
        {
            key: step.get(key) or None
            for key in ("number", "failures", "finish_reason", "usage", "source", "tool_calls")
        }
        for step in document["steps"]
    ]
    return document["messages"], document["status"], document["usage"], steps


def kept(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# Round trips

SCRIPTS: dict[str, Script] = {
    "text": [text("Grüße 🙂", usage=12)],
    "calls": [
        calls(call("echo", {"value": "é"}), call("echo", {"value": "2"}), text="One moment."),
        call("echo", "{no json"),
        text("Done.", finish_reason="stop"),
    ],
    "errors": [
        RateLimitError("slow down", retry_after=3, request_id="req_1"),
        ModelError("bad gateway", status=502),
        TimeoutError("too late"),
        "Hello.",
    ],
    "refusal": [ModelError("I will not", retryable=False)],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_a_replay_is_what_was_recorded(script: Script, path: Path) -> None:
    first = await recorded(path, script)
    replay = ReplayModel(path)
    second = await agent_on(replay).run("Hi")
    assert essence(second) == essence(first)
    replay.assert_finished()


async def test_an_error_of_another_kind_is_raised_with_its_message(path: Path) -> None:
    await recorded(path, [KeyError("oh"), "Hello."])
    state = await agent_on(ReplayModel(path)).run("Hi")
    assert state.steps[0].failures[0].type == "unknown"
    assert "KeyError: 'oh'" in state.steps[0].failures[0].message


async def test_real_traffic_with_its_pieces(path: Path) -> None:
    async with FaultyServer(
        say(whole({"error": {"message": f"try later, {KEY}"}}, 429, retry_after="2")),
        say(chat_call("echo", '{"value": "1"}')),
        say(chat_answer("Hello.", prompt_tokens=3, completion_tokens=4)),
    ) as server:
        model = load("openai:gpt-test", base_url=server.base_url, api_key=KEY, retries=0)
        agent = agent_on(RecordingModel(model, path))
        with capture_events(agent) as events:
            first = await agent.run("Hi")
    replaying = agent_on(ReplayModel(path))
    with capture_events(replaying) as again:
        second = await replaying.run("Hi")
    assert essence(second) == essence(first)
    assert second.usage.total == 7
    pieces = [event.chunk for event in events.of(StreamChunkReceived)]
    assert [event.chunk for event in again.of(StreamChunkReceived)] == pieces
    assert KEY not in kept(path)


async def test_sessions_side_by_side_may_be_replayed_in_any_order(path: Path) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse(f"You said {request.messages[-1].text}.")

    agent = agent_on(RecordingModel(RespondingModel(respond), path))
    await asyncio.gather(*(agent.run(word) for word in ("one", "two", "three")))
    replay = agent_on(ReplayModel(path))
    for word in ("three", "one", "two"):
        assert (await replay.run(word)).last_response == f"You said {word}."


async def test_an_empty_answer_is_replayed_as_an_empty_answer(path: Path) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("Hel")

    options: Any = {"error_policy": ErrorPolicy.stop_on_any_error()}
    first = await Agent(RecordingModel(RespondingModel(respond), path), **options).run("Hi")
    second = await Agent(ReplayModel(path), **options).run("Hi")
    assert [state.steps[0].failures[0].type for state in (first, second)] == ["validation", "validation"]


async def test_an_answer_that_was_cut_off_is_not_recorded(path: Path) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.Event().wait()
        yield ModelResponse()

    running = asyncio.create_task(Agent(RecordingModel(RespondingModel(respond), path)).run("Hi"))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert kept(path) == ""


# Secrets


async def test_secrets_are_left_out_as_it_records(path: Path) -> None:
    token, key = "s3cr3t\"quoted'", "sk-proj-abcdefghijklmnop1234"

    @tool
    async def who(password: str) -> str:
        """Tells."""
        return f"{key} and {password}"

    script: Script = [call("who", {"password": token}), text(f"It is {key}.")]
    model = RecordingModel(ScriptedModel(script), path, secrets=[token])
    await Agent(model, [who], instructions=f"Use {token}").run(f"My key is {key}")
    assert key not in kept(path)
    assert "s3cr3t" not in kept(path)
    lines = [json.loads(line) for line in kept(path).splitlines()]
    assert lines[0]["messages"][0]["content"] == "My key is [removed]"
    assert lines[1]["response"]["text"] == "It is [removed]."
    # The secrets need not be known when it is replayed, and may be others.
    agent = Agent(ReplayModel(path), [who], instructions="Use another token")
    assert (await agent.run("My key is sk-other-1234567890abcdef")).last_response == "It is [removed]."


def in_pieces(*pieces: str) -> RespondingModel:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        for piece in pieces:
            yield TextDelta(piece)
        yield ModelResponse("".join(pieces))

    return RespondingModel(respond)


@pytest.mark.parametrize(
    "pieces",
    [
        ("It is secret-", "key-0123", "456789."),
        tuple(f"It is {KEY}."),
        ("It is sk-proj-", "abcdefgh", "ijklmnop1234."),
    ],
)
async def test_a_secret_in_pieces_is_left_out_too(path: Path, pieces: tuple[str, ...]) -> None:
    await Agent(RecordingModel(in_pieces(*pieces), path, secrets=[KEY])).run("Hi")
    assert json.loads(kept(path))["chunks"] == ["It is [removed]."]
    assert (await Agent(ReplayModel(path)).run("Hi")).last_response == "It is [removed]."


async def test_a_secret_in_pieces_of_an_answer_that_broke_off(path: Path) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("secret-")
        yield TextDelta("key-0123456789")
        raise ModelError("it broke")

    await Agent(RecordingModel(RespondingModel(respond), path, secrets=[KEY])).run("Hi")
    assert json.loads(kept(path))["chunks"] == ["[removed]"]


async def test_pieces_without_a_secret_stay_pieces(path: Path) -> None:
    await Agent(RecordingModel(in_pieces("secret-", "free"), path, secrets=[KEY])).run("Hi")
    assert json.loads(kept(path))["chunks"] == ["secret-", "free"]


async def test_a_key_at_the_start_of_a_line_is_left_out(path: Path) -> None:
    query = "Keys:\n\tsk-proj-zyxwvutsrqponmlk9876"
    await recorded(path, ["Here:\nsk-proj-abcdefghijklmnop1234"], query=query)
    assert "sk-proj" not in kept(path)
    assert (await agent_on(ReplayModel(path)).run(query)).last_response == "Here:\n[removed]"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abcdefghijklmnop",
        "gsk_abcdefghijklmnop1234",
        "AIza" + "x" * 35,
        "AKIA" + "A" * 16,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdef",
        "ghp_abcdefghijklmnop1234",
    ],
)
def test_a_text_that_looks_like_a_secret_is_removed(secret: str) -> None:
    assert without_secrets(f"before {secret} after") == "before [removed] after"


def test_ordinary_text_is_left_alone() -> None:
    words = "The task-force asked for a desk-lamp, sk-8 and hf_short; Bearer of news."
    assert without_secrets(words, ["", "absent"]) == words


def test_removing_a_secret_never_breaks_the_json() -> None:
    document = {"a": "-----BEGIN PRIVATE KEY-----\nMII", "b": "x\n-----END PRIVATE KEY-----"}
    cleaned = json.loads(without_secrets(json.dumps(document)))
    assert list(cleaned) == list(document)
    assert "MII" not in cleaned["a"]
    whole_key = {"a": "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----"}
    assert json.loads(without_secrets(json.dumps(whole_key))) == {"a": "[removed]"}


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert without_secrets("secret-and-more", ["secret", "secret-and-more"]) == "[removed]"


# Differences


async def replayed(path: Path, query: str = "Hi", **options: Any) -> str:
    """The words in which a replay is refused."""
    with pytest.raises(ScriptError) as refused:
        await agent_on(ReplayModel(path), **options).run(query)
    return str(refused.value)


async def test_another_message_is_shown_beside_the_recorded_one(path: Path) -> None:
    await recorded(path, ["Hello."], query=f"{'Please, ' * 30}how warm is it in Oslo?")
    words = await replayed(path, query=f"{'Please, ' * 30}how warm is it in Rome?")
    assert words.startswith("request 1 is not in run.jsonl: message 1 is …")
    assert 'how warm is it in Rome?"}, and was …' in words
    assert 'how warm is it in Oslo?"} when it was recorded' in words


async def test_another_result_of_a_tool(path: Path) -> None:
    await recorded(path, [call("echo", {"value": "x"}), "Hello."])

    @tool(name="echo")
    async def another(value: str = "") -> str:
        """Says something else."""
        return "something else"

    with pytest.raises(ScriptError, match=r"request 2 is not in run.jsonl: message 3 is .*something else"):
        await Agent(ReplayModel(path), [another]).run("Hi")


async def test_other_tools_or_instructions(path: Path) -> None:
    await recorded(path, ["Hello."], instructions="Be brief.")
    words = await replayed(path, instructions="Be polite.")
    assert 'instructions is "Be polite.", and was "Be brief." when it was recorded' in words
    with pytest.raises(ScriptError, match=r'tools is \[\], and was \["echo"\] when it was recorded'):
        await Agent(ReplayModel(path), instructions="Be brief.").run("Hi")


async def test_a_conversation_that_is_longer(path: Path) -> None:
    state = await recorded(path, ["Hello."])
    with pytest.raises(ScriptError, match=r"it continues after the recorded one, up to .*And now"):
        await agent_on(ReplayModel(path)).run("And now?", state=state)


async def test_a_conversation_that_is_shorter(path: Path) -> None:
    state = await agent_on(ScriptedModel(["Hello."])).run("Hi")
    await agent_on(RecordingModel(ScriptedModel(["Bye."]), path)).run("Bye", state=state)
    assert "it ends before the recorded one, which continues up to" in await replayed(path)


async def test_a_request_too_many_and_one_too_few(path: Path) -> None:
    await recorded(path, ["Hello."])
    replay = ReplayModel(path)
    with pytest.raises(ScriptError, match=r"run.jsonl has 1 exchange left that no request used"):
        replay.assert_finished()
    await agent_on(replay).run("Hi")
    with pytest.raises(
        ScriptError, match=r"run.jsonl has only 1 exchange, and the agent made one more request: .*Hi"
    ):
        await agent_on(replay).run("Hi")


# Files


def test_a_broken_file_names_the_line(path: Path) -> None:
    asyncio.run(recorded(path, [call("echo"), "Hello."]))
    good = path.read_bytes()
    for rubbish in (b"{rubbish}", b'{"messages": 7}', b'{"messages": [], "chunks": ["\xff"]}'):
        path.write_bytes(good + rubbish + b"\n")
        with pytest.raises(SnapshotError, match=r"run.jsonl is not a recording: .* \(at line 3\)"):
            ReplayModel(path)


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the recording .*run.jsonl: No such file"):
        ReplayModel(path)


async def test_a_recording_begins_anew(path: Path) -> None:
    await recorded(path, ["Hello."])
    await recorded(path, ["Good day."])
    assert len(kept(path).splitlines()) == 1


async def test_the_name_is_that_of_the_model_inside(path: Path) -> None:
    assert RecordingModel(load("ollama:m"), path).name == "ollama:m"
    assert ReplayModel(path).name == "replay of run.jsonl"


async def test_reasoning_is_recorded_and_replayed(path: Path) -> None:
    request = ModelRequest((Message.user("Hi"),))
    model = RecordingModel(ScriptedModel([text("Hello.", reasoning="Hm.")]), path)
    first = [item async for item in model.respond(request)]
    assert first[:2] == [ReasoningDelta("Hm."), TextDelta("Hello.")]
    assert [item async for item in ReplayModel(path).respond(request)] == first
