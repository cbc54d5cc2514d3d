"""The scripted model gives its replies in order and fails where the test and the script disagree."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.support import echo
from whyloop import Agent, AgentState, FinishReason, Model, ModelRequest, ModelResponse, Usage, tool
from whyloop.errors import ModelError, ScriptError, WhyloopError
from whyloop.events import StreamChunkReceived
from whyloop.models import FallbackModel
from whyloop.testing import FakeClock, Reply, ScriptedModel, assert_stopped, call, calls, capture_events, text


def run(model: Model, query: str = "go", **options: Any) -> AgentState:
    return Agent(model, [echo], clock=FakeClock(), **options).run_sync(query)


def generated() -> Iterator[Reply | str]:
    yield call("echo")
    yield "done"


@pytest.mark.parametrize(
    "replies",
    [[call("echo"), "done"], (call("echo"), text("done")), iter([call("echo"), "done"]), generated()],
    ids=["list", "tuple", "iterator", "generator"],
)
def test_a_script_is_any_iterable(replies: Iterable[Reply | str]) -> None:
    model = ScriptedModel(replies)
    assert run(model).last_response == "done"
    model.assert_finished()


def test_a_script_may_be_endless() -> None:
    model = ScriptedModel(itertools.repeat(call("echo")))
    state = run(model, max_steps=50)
    assert_stopped(state, reason="steps_limit")
    assert len(model.requests) == 50


def test_a_script_may_react_to_what_happens() -> None:
    seen: list[int] = []

    def replies() -> Iterator[Reply]:
        seen.append(len(model.requests))
        yield call("echo", {"value": "x"})
        seen.append(len(model.requests))
        yield text(f"heard {model.requests[-1].messages[-1].text}")

    model = ScriptedModel(replies())
    assert run(model).last_response == "heard x"
    assert seen == [1, 2]


def test_replies_carry_their_finish_reason_and_usage() -> None:
    assert text("x", finish_reason="length", usage=7).usage.total == 7
    assert text("x", finish_reason="length").finish_reason is FinishReason.LENGTH
    assert call("echo", usage=Usage(1, 2)).usage == Usage(1, 2)
    assert call("echo").finish_reason is FinishReason.TOOL_CALLS
    assert call("echo", finish_reason="stop").finish_reason is FinishReason.STOP
    both = calls(call("echo", usage=1), call("echo", usage=2), finish_reason="other")
    assert both.finish_reason is FinishReason.OTHER
    assert both.usage.total == 3
    assert calls(call("echo", usage=1), usage=9).usage.total == 9


def test_calls_puts_several_calls_in_one_reply() -> None:
    reply = calls(call("a", {"x": 1}, text="first"), call("b"), text="")
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("a", {"x": 1}), ("b", {})]
    assert reply.text == "first"
    assert calls(call("a", text="first"), text="both").text == "both"


def test_calls_are_numbered_unless_they_have_an_id() -> None:
    model = ScriptedModel([calls(call("echo"), call("echo", id="mine")), call("echo"), "done"])
    state = run(model)
    ids = [wanted.id for m in state.messages for wanted in m.tool_calls]
    assert len(set(ids)) == 3
    assert ids[0] == "call_1"
    assert ids[1] == "mine"


def test_one_reply_can_be_used_many_times_with_new_ids() -> None:
    state = run(ScriptedModel([*[call("echo")] * 3, "done"]))
    ids = [wanted.id for m in state.messages for wanted in m.tool_calls]
    assert ids == ["call_1", "call_2", "call_3"]


def test_arguments_that_are_text_are_sent_as_they_are() -> None:
    assert call("echo", '{"value": "x"}').tool_calls[0].arguments == {"value": "x"}
    assert call("echo", "oops").tool_calls[0].arguments == "oops"
    assert call("echo", {"value": float("nan")}).tool_calls[0].arguments == '{"value": NaN}'


def test_arguments_that_no_model_could_send_are_refused() -> None:
    with pytest.raises(ScriptError, match="could not send"):
        call("echo", {"value": object()})


@pytest.mark.parametrize("error", [ModelError("down"), ModelError])
def test_an_exception_in_the_script_is_raised_by_the_model(error: Any) -> None:
    state = run(ScriptedModel([error]))
    assert_stopped(state, reason="error")
    assert state.steps[0].failures[0].type == "model"


def test_a_baseexception_in_the_script_leaves_the_run() -> None:
    class Crash(BaseException):
        pass

    with pytest.raises(Crash):
        run(ScriptedModel([Crash()]))


def test_the_requests_are_kept_as_they_were() -> None:
    model = ScriptedModel([call("echo", {"value": "x"}), "done"])
    run(model, "hello")
    first, second = model.requests
    assert isinstance(first, ModelRequest)
    assert [m.text for m in first.messages] == ["hello"]
    assert [m.role.value for m in second.messages] == ["user", "assistant", "tool"]
    assert [spec.name for spec in first.tools] == ["echo"]


def test_a_missing_reply_is_an_error_that_quotes_the_request() -> None:
    with pytest.raises(ScriptError, match=r"no reply to request 2.*'found it'") as caught:
        run(ScriptedModel([call("echo", {"value": "found it"})]))
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, WhyloopError)


def test_a_reply_too_few_leaves_the_run_of_an_agent_inside_a_tool_too() -> None:
    inner = Agent(ScriptedModel([]), clock=FakeClock())

    @tool
    async def delegate() -> str:
        return (await inner.run("sub")).last_response

    outer = Agent(ScriptedModel([call("delegate"), "done"]), [delegate], clock=FakeClock())
    with pytest.raises(ScriptError, match="no reply"):
        outer.run_sync("go")


def test_a_reply_left_over_fails_when_asked() -> None:
    model = ScriptedModel(["done", "never said"])
    run(model)
    with pytest.raises(ScriptError, match="never said"):
        model.assert_finished()


def test_as_a_context_manager_it_fails_on_a_reply_left_over() -> None:
    with pytest.raises(ScriptError, match="never said"), ScriptedModel(["done", "never said"]) as model:
        run(model)
    with ScriptedModel(["done"]) as finished:
        run(finished)


def test_as_a_context_manager_it_does_not_hide_another_error() -> None:
    with pytest.raises(KeyError), ScriptedModel(["left over"]):
        raise KeyError


@pytest.mark.parametrize("odd", [42, None, ModelResponse("x"), ["done"]])
def test_a_script_of_anything_but_replies_is_refused(odd: Any) -> None:
    with pytest.raises(ScriptError, match="invalid reply"):
        run(ScriptedModel([odd]))


def test_text_streams_and_arguments_do_not() -> None:
    from whyloop.events import StreamChunkReceived
    from whyloop.testing import capture_events

    model = ScriptedModel([call("echo", {"value": "s3cret"}), "Hello"])
    agent = Agent(model, [echo], clock=FakeClock())
    events = capture_events(agent)
    agent.run_sync("go")
    assert "".join(e.chunk for e in events.of(StreamChunkReceived)) == "Hello"


def test_texts_are_streamed_in_one_piece_or_word_by_word() -> None:
    def pieces(*, by_word: bool) -> list[tuple[str, str]]:
        agent = Agent(ScriptedModel([text("It is  cold.\n", reasoning="Oslo, so")], by_word=by_word))
        with capture_events(agent) as events:
            agent.run_sync("go")
        chunks = events.of(StreamChunkReceived)
        return [(chunk.kind, chunk.chunk) for chunk in chunks if not chunk.is_complete]

    assert pieces(by_word=False) == [("reasoning", "Oslo, so"), ("text", "It is  cold.\n")]
    words = [
        ("reasoning", "Oslo, "),
        ("reasoning", "so"),
        ("text", "It "),
        ("text", "is  "),
        ("text", "cold.\n"),
    ]
    assert pieces(by_word=True) == words


def test_a_scripted_model_has_a_name_for_notes() -> None:
    assert ScriptedModel([]).name == "ScriptedModel"
    model = FallbackModel(ScriptedModel([ModelError("down")], name="a"), ScriptedModel(["hi"], name="b"))
    source = run(model).steps[0].source
    assert source is not None
    assert source.notes == ("a failed (model: down), b was asked",)
