"""Hooks around the model call and around each tool call: typed, ordered, and never a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import RespondingModel, assert_readable, broken, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    Block,
    ErrorPolicy,
    Hook,
    Message,
    ModelRequest,
    ModelResponse,
    RunContext,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from whyloop.errors import ConfigurationError
from whyloop.events import ApprovalRequested, ToolCallCompleted, ToolCallStarted
from whyloop.loop.hooks import AskModel, RunTool
from whyloop.testing import ScriptedModel, assert_stopped, call, calls, capture_events


class Noted(Hook):
    """Writes down when it is asked."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        self.notes.append(f"{self.name} before model")
        try:
            return await ask(request)
        finally:
            self.notes.append(f"{self.name} after model")

    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        self.notes.append(f"{self.name} before {context.tool}")
        try:
            return await run()
        finally:
            self.notes.append(f"{self.name} after {context.tool}")


async def test_the_first_hook_is_the_outermost_one() -> None:
    notes: list[str] = []
    hooks = [Noted("a", notes), Hook(), Noted("b", notes)]
    state = await scripted(call("echo"), "done", tools=[echo], hooks=hooks).run("go")
    assert state.status is AgentStatus.COMPLETED
    around_model = ["a before model", "b before model", "b after model", "a after model"]
    around_tool = ["a before echo", "b before echo", "b after echo", "a after echo"]
    assert notes == around_model + around_tool + around_model


async def test_a_hook_can_change_the_request() -> None:
    class Redact(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            hidden = [replace(m, content=m.text.replace("s3cret", "***")) for m in request.messages]
            return await ask(replace(request, messages=hidden))

    agent = scripted("done", hooks=[Redact()])
    state = await agent.run("my password is s3cret")
    assert [m.text for m in requests_of(agent)[0].messages] == ["my password is ***"]
    assert state.messages[0].text == "my password is s3cret"


async def test_a_hook_can_answer_in_place_of_the_model_and_later_ones_are_not_asked() -> None:
    notes: list[str] = []

    class Cache(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            return ModelResponse("from the cache")

    agent = scripted(hooks=[Cache(), Noted("late", notes)])
    state = await agent.run("go")
    assert state.last_response == "from the cache"
    assert requests_of(agent) == []
    assert "late before model" not in notes
    assert_stopped(state, reason="completed")


async def test_a_hook_can_change_the_response() -> None:
    class Polite(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            response = await ask(request)
            return replace(response, text=response.text + ", please")

    state = await scripted("wait", hooks=[Polite()]).run("go")
    assert state.messages[-1] == Message.assistant("wait, please")


async def test_a_hook_can_change_a_call() -> None:
    class Louder(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            return replace(call, arguments={"value": str(call.arguments["value"]).upper()})  # type: ignore[index]

    state = await scripted(call("echo", {"value": "hey"}), "done", tools=[echo], hooks=[Louder()]).run("go")
    assert state.messages[2].text == "HEY"


async def test_a_hook_can_answer_in_place_of_a_tool() -> None:
    class Cache(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolResult:
            return ToolResult("remembered")

    state = await scripted(call("broken"), "done", tools=[broken], hooks=[Cache()]).run("go")
    assert state.messages[2].text == "remembered"
    assert state.steps[0].tool_calls[0].success


async def test_a_hook_can_redact_a_result() -> None:
    class Redact(Hook):
        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            result = await run()
            return replace(result, content=result.content.replace("4111", "****"))

    agent = scripted(call("echo", {"value": "card 4111"}), "done", tools=[echo], hooks=[Redact()])
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.messages[2].text == "card ****"
    assert events.of(ToolCallCompleted)[0].result == "card ****"
    assert requests_of(agent)[1].messages[-1].text == "card ****"


async def test_a_hook_that_blocks_a_call_leaves_its_reason_in_the_trace() -> None:
    class Guard(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | Block:
            return Block("nobody deletes on Fridays") if call.name == "broken" else call

    agent = scripted(
        calls(call("echo", {"value": "ok"}), call("broken")), "done", tools=[echo, broken], hooks=[Guard()]
    )
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    ok, blocked = state.steps[0].tool_calls
    assert ok.success
    assert not blocked.success
    assert "nobody deletes on Fridays" in str(blocked.error)
    assert state.steps[0].failures == ()
    assert "nobody deletes on Fridays" in requests_of(agent)[1].messages[-1].text
    assert "nobody deletes on Fridays" in assert_readable(state)
    results = [(e.tool, e.success) for e in events.of(ToolCallCompleted)]
    assert results == [("broken", False), ("echo", True)]  # It is known before anything runs.


class Raise(Hook):
    """Adds a zero to every amount."""

    def __init__(self) -> None:
        self.asked = 0

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        self.asked += 1
        assert not isinstance(call.arguments, str)
        return replace(call, arguments={"amount": call.arguments["amount"] * 10})


async def test_a_person_approves_what_runs_and_every_change_is_recorded_with_the_hooks_name() -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    hook = Raise()
    agent = scripted(call("pay", {"amount": 250}), "done", tools=[pay], hooks=[hook])
    events = capture_events(agent)
    paused = await agent.run("go")
    (pending,) = paused.pending_calls
    assert pending.arguments == {"amount": 2500}
    (asked,) = events.of(ApprovalRequested)
    assert (asked.args, asked.changed_by) == ({"amount": 2500}, ("Raise",))
    restored = AgentState.from_dict(paused.to_dict())
    state = await agent.resume(restored.approve(pending.id, by="ada"))
    assert (paid, hook.asked) == ([2500], 1)  # It is not repeated after the pause.
    (started,) = events.of(ToolCallStarted)
    assert (started.args, started.changed_by) == ({"amount": 2500}, ("Raise",))
    made = state.messages[1].tool_calls[0]
    assert made.arguments == {"amount": 2500}
    assert [(change.by, change.before) for change in made.changes] == [("Raise", {"amount": 250})]
    assert AgentState.from_dict(state.to_dict()).messages[1].tool_calls[0].changes == made.changes


async def test_an_edit_by_a_person_is_validated_and_not_hooked() -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    agent = scripted(call("pay", {"amount": 250}), "done", tools=[pay], hooks=[Raise()])
    paused = await agent.run("go")
    asked = paused.pending_calls[0].id
    await agent.resume(paused.edit(asked, {"amount": 30}))
    assert paid == [30]


async def test_the_changes_of_several_hooks_are_listed_in_order_and_a_new_name_is_recorded() -> None:
    class Rename(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            return replace(call, name="echo", id="ignored")

    class Louder(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            return replace(call, arguments={"value": "HEY"})

    agent = scripted(call("shout", {"value": "hey"}), "done", tools=[echo], hooks=[Rename(), Louder()])
    state = await agent.run("go")
    made = state.messages[1].tool_calls[0]
    assert (made.id, made.name, made.arguments) == ("call_1", "echo", {"value": "HEY"})
    changes = [(change.by, change.name, change.before) for change in made.changes]
    assert changes == [("Rename", "shout", {"value": "hey"}), ("Louder", None, {"value": "hey"})]
    assert state.messages[2].text == "HEY"


async def test_a_hook_that_changes_the_copy_it_is_given_changes_nothing() -> None:
    class Sly(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult:
            untouched = replace(call, arguments=dict(call.arguments))  # type: ignore[arg-type]
            call.arguments["value"] = "sly"  # type: ignore[index]
            return untouched

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            call.arguments["value"] = "sly"  # type: ignore[index]
            return await run()

    state = await scripted(call("echo", {"value": "x"}), "done", tools=[echo], hooks=[Sly()]).run("go")
    assert state.messages[1].tool_calls[0].arguments == {"value": "x"}
    assert state.messages[1].tool_calls[0].changes == ()


async def test_arguments_that_cannot_be_recorded_are_a_failed_hook() -> None:
    class Odd(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            return replace(call, arguments={"value": object()})

    state = await scripted(call("echo", {"value": "x"}), tools=[echo], hooks=[Odd()]).run("go")
    assert state.status is AgentStatus.FAILED
    assert "a hook around echo failed" in assert_readable(state)


async def test_the_hooks_that_made_or_replaced_a_result_are_recorded() -> None:
    class Cache(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult:
            return ToolResult("cached") if call.arguments == {"value": "a"} else call

    class Hide(Hook):
        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            result = await run()
            return replace(result, content="hidden") if result.content == "b" else result

    agent = scripted(
        calls(*[call("echo", {"value": value}) for value in "abc"]),
        "done",
        tools=[echo],
        hooks=[Cache(), Hide()],
    )
    state = await agent.run("go")
    assert [message.text for message in state.messages if message.is_tool] == ["cached", "hidden", "c"]
    assert [run.changed_by for run in state.steps[0].tool_calls] == [("Cache",), ("Hide",), ()]
    assert [run.started_at is None for run in state.steps[0].tool_calls] == [True, False, False]


async def test_the_parts_of_a_request_are_recorded_once_each_by_their_hash() -> None:
    agent = scripted(call("echo"), "one", "two", tools=[echo], instructions="Be brief.")
    state = await agent.run("first")
    state = await agent.run("second", state=state)
    parts = {part.hash: part.text for part in state.request_parts}
    assert len(parts) == len(state.request_parts) == 2
    for step in state.steps:
        assert step.request is not None
        assert parts[step.request.instructions or ""] == "Be brief."
        assert '"name":"echo"' in parts[step.request.tools or ""]
        assert (step.request.messages, step.request.changed_by) == (None, ())


async def test_changes_of_requests_and_responses_are_recorded_with_the_hooks_name() -> None:
    class Short(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            messages = [*request.messages[-1:], Message.developer("Hurry.")]
            return await ask(replace(request, messages=messages, instructions="Be brief."))

    class Polite(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            response = await ask(request)
            return replace(response, text=f"{response.text}, please")

    agent = scripted("one", "two", hooks=[Short(), Polite()])
    state = await agent.run("second", state=await agent.run("first"))
    step = state.steps[1]
    assert step.request is not None
    assert (step.request.changed_by, step.response_changed_by) == (("Short",), ("Polite",))
    parts = {part.hash: part.text for part in state.request_parts}
    assert step.request.messages is not None
    kept, added = step.request.messages
    assert kept == (2, 3)  # The second query, by its place in the history.
    assert isinstance(added, str)
    assert "Hurry." in parts[added]
    assert parts[step.request.instructions or ""] == "Be brief."


async def test_a_blocked_call_is_not_a_failure() -> None:
    class Guard(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> Block:
            return Block("no")

    state = await scripted(
        call("echo"), "done", tools=[echo], hooks=[Guard()], error_policy=ErrorPolicy.stop_on_any_error()
    ).run("go")
    assert state.status is AgentStatus.COMPLETED


class BadHook(Hook):
    """Raises, or answers nonsense, in one of its methods."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def give(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class BadRequest(BadHook):
    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        return await ask(self.give())


class BadResponse(BadHook):
    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        await ask(request)
        return self.give()  # type: ignore[no-any-return]


class BadBeforeTool(BadHook):
    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        return self.give()  # type: ignore[no-any-return]


class BadResult(BadHook):
    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        await run()
        return self.give()  # type: ignore[no-any-return]


@pytest.mark.parametrize("hook", [BadRequest, BadResponse, BadBeforeTool, BadResult])
async def test_a_hook_that_raises_is_a_failure_in_the_trace(hook: type[BadHook]) -> None:
    agent = scripted(call("echo"), tools=[echo], hooks=[hook(RuntimeError("the cache is down"))])
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert state.steps[0].failures[0].type == "unknown"
    explanation = assert_readable(state)
    assert "failed: RuntimeError" in explanation
    assert "the cache is down" not in explanation
    assert "the cache is down" in state.explain(debug=True)


@pytest.mark.parametrize("hook", [BadRequest, BadResponse, BadBeforeTool, BadResult])
@pytest.mark.parametrize("answer", [None, "yes", 42])
async def test_a_hook_that_answers_nonsense_is_a_failure_in_the_trace(
    hook: type[BadHook], answer: Any
) -> None:
    agent = scripted(call("echo"), tools=[echo], hooks=[hook(answer)])
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert "hook" in assert_readable(state)


def test_an_object_that_is_not_a_hook_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a hook"):
        scripted(hooks=[object()])


async def test_hooks_receive_the_context_of_the_session() -> None:
    seen: list[RunContext] = []

    class Look(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            seen.append(context)
            return await ask(request)

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            seen.append(context)
            return await run()

    agent = scripted(call("echo"), "done", tools=[echo], hooks=[Look()])
    state = await agent.run("go", agent.new_session("s-1", {"tenant": "acme"}))
    assert [(c.agent_id, c.execution_id, c.step_number, c.metadata) for c in seen] == [
        ("s-1", state.execution.id, number, {"tenant": "acme"}) for number in (1, 1, 2)
    ]


async def test_a_hook_may_ask_the_model_again() -> None:
    class Retry(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            response = await ask(request)
            return response if response.text != "what?" else await ask(request)

    agent = scripted("what?", "done", hooks=[Retry()])
    state = await agent.run("go")
    assert (state.last_response, len(requests_of(agent))) == ("done", 2)
    assert state.steps[0].response_changed_by == ()


@pytest.mark.parametrize("where", ["model", "tool", "one of two tools"])
async def test_a_wrapper_ends_when_a_stop_cuts_the_call_off(where: str) -> None:
    notes: list[str] = []
    waiting = asyncio.Event()

    @tool
    async def hang() -> str:
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    class Silent:
        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
            waiting.set()
            await asyncio.Event().wait()
            yield ModelResponse("never")

    answers = {"tool": call("hang"), "one of two tools": calls(call("hang"), call("echo"))}
    model = Silent() if where == "model" else ScriptedModel([answers[where]])
    agent = Agent(model, [hang, echo], hooks=[Noted("span", notes)], stop_grace=0)
    running = asyncio.create_task(agent.run("go"))
    await waiting.wait()
    agent.request_stop("enough")
    state = await running
    assert state.stop_reason == "user_requested"
    begun = [note for note in notes if "before" in note]
    ended = [note.replace("after", "before") for note in notes if "after" in note]
    assert sorted(begun) == sorted(ended)
    assert f"span before {'model' if where == 'model' else 'hang'}" in begun


async def test_a_wrapper_ends_when_the_task_is_cancelled() -> None:
    notes: list[str] = []
    waiting = asyncio.Event()

    @tool
    async def hang() -> str:
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    agent = scripted(call("hang"), tools=[hang], hooks=[Noted("span", notes)])
    running = asyncio.create_task(agent.run("go"))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert notes[-2:] == ["span before hang", "span after hang"]


@pytest.mark.parametrize("error", [SystemExit("bye"), asyncio.CancelledError()])
@pytest.mark.parametrize("where", ["before", "around"])
@pytest.mark.parametrize("count", [1, 2])
async def test_an_exit_or_a_cancellation_that_a_hook_raises_itself_is_the_result_of_the_call(
    error: BaseException, where: str, count: int
) -> None:
    class Leaves(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            if where == "before":
                raise error
            return call

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            if where == "around":
                raise error
            return await run()

    policy = ErrorPolicy.ignore_tool_errors()
    answer = calls(*[call("echo") for _ in range(count)])
    state = await scripted(answer, "done", tools=[echo], hooks=[Leaves()], error_policy=policy).run("go")
    assert state.status is AgentStatus.COMPLETED
    assert all(run.error is not None and "a hook around" in run.error for run in state.steps[0].tool_calls)


async def test_the_partial_text_of_an_answer_is_that_of_the_last_time_a_hook_asked() -> None:
    asked = 0
    hanging = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        nonlocal asked
        asked += 1
        yield TextDelta("First half" if asked == 1 else "Second")
        if asked == 1:
            raise ConnectionError("cut off")
        hanging.set()
        await asyncio.Event().wait()
        yield ModelResponse("too late")

    class Twice(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            try:
                return await ask(request)
            except ConnectionError:
                return await ask(request)

    agent = Agent(RespondingModel(respond), hooks=[Twice()])
    run = asyncio.create_task(agent.run("go"))
    await hanging.wait()
    agent.request_stop("enough")
    state = await run
    assert (state.messages[-1].text, state.messages[-1].incomplete) == ("Second", True)
