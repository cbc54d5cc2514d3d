"""Settings of an agent: limits and other rules, error policies, hooks, deps and instructions."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from whyloop.errors import ModelError, RateLimitError, ToolExecutionError
from whyloop.loop.agent import Agent
from whyloop.loop.hooks import AskModel, Block, Hook, RunTool
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.rules.limits import CostLimit, StepsLimit, TokenUsageLimit
from whyloop.rules.repetition import RepeatedCallCheck
from whyloop.stores.records import Summary
from whyloop.testing.engine_checks.stage import Stage, scenario, script
from whyloop.testing.fakes import call, calls, text
from whyloop.tools.tool import RunContext, Tool, ToolContext, tool
from whyloop.values.continuation import Budget, ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.messages import Message, ToolCall, ToolResult
from whyloop.values.model import ModelRequest, ModelResponse, Usage
from whyloop.values.state import AgentState


@tool
def look(place: str = "here") -> str:
    """Look around."""
    return "nothing"


@scenario
async def check_a_steps_limit_and_a_grant(stage: Stage) -> None:
    """A limit ends the run and its resume, unless there is a grant."""
    replies = [call("look", {"place": str(number)}) for number in range(4)] + [text("Nothing.")]
    session, _ = await stage.ask(Agent(script(*replies), [look], max_steps=2), "Search")
    await session.resume()
    await session.resume(grant=Budget(steps=1))
    await session.resume(grant=Budget(steps=2, tokens=100, seconds=60))


@scenario
async def check_an_answer_on_the_last_step(stage: Stage) -> None:
    """An answer on the last step that a limit allows is a natural end."""
    await stage.ask(Agent(script(call("look"), "Nothing."), [look], max_steps=2), "Search")


@scenario
async def check_a_token_limit(stage: Stage) -> None:
    """Tokens of this execution are counted, not those of the one before."""
    model = script(
        text("Hello.", usage=90), call("look", usage=60), call("look", usage=50), text("No.", usage=9)
    )
    session, _ = await stage.ask(Agent(model, [look], max_tokens=100), "Hello")
    await session.send("Search")
    await session.resume(grant=Budget(tokens=50))


@scenario
async def check_a_limit_of_the_session(stage: Stage) -> None:
    """A limit of the whole session ends the next execution before a model call."""
    limit = TokenUsageLimit(100, scope="session")
    session, _ = await stage.ask(Agent(script(text("Hello.", usage=120)), criteria=[limit]), "Hello")
    await session.send("Again")


@scenario
async def check_a_cost_limit(stage: Stage) -> None:
    """A cost that is not known forbids continuing."""
    model = script(call("look", usage=Usage(input=10, output=5)))
    await stage.ask(Agent(model, [look], criteria=[CostLimit("0.01")]), "Search")


@scenario
async def check_feedback_and_a_guard(stage: Stage) -> None:
    """A model that repeats itself gets a message, and then the run ends."""
    model = script(*[call("look") for _ in range(6)])
    await stage.ask(Agent(model, [look], criteria=[RepeatedCallCheck()]), "Search")


class _Curfew:
    """A rule with a reason, numbers and feedback of its own."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        """Forbid the third step."""
        used = state.execution.step_count
        is_over = used >= 3
        return ContinuationEvaluation(
            "Curfew",
            ContinuationDecision.FORBID_CONTINUATION if is_over else ContinuationDecision.ALLOW_CONTINUATION,
            "It is late" if is_over else f"{3 - used} left",
            context={"used": used, "nested": {"list": [1, None, "ü"]}},
            stop_reason=StopReason.GUARD_FORBADE if is_over else None,
            feedback=None if is_over else f"Hurry: {3 - used} left.",
        )


def is_quiet(state: AgentState) -> bool:
    """Allow continuing, as a function."""
    return "noise" not in state.last_response


@scenario
async def check_custom_criteria(stage: Stage) -> None:
    """An object and a function decide, and the model gets their feedback."""
    model = script(*[call("look", {"place": str(number)}) for number in range(3)])
    agent = Agent(model, [look], criteria=[_Curfew(), is_quiet, StepsLimit(9)])
    await stage.ask(agent, "Search")


@scenario
async def check_a_criterion_that_raises(stage: Stage) -> None:
    """A rule that fails ends the run as failed, and the others are asked all the same."""

    def is_broken(state: AgentState) -> bool:
        raise KeyError("weather")

    await stage.ask(Agent(script(call("look")), [look], criteria=[is_broken]), "Search")


@scenario
async def check_a_wrap_up(stage: Stage) -> None:
    """A run that a limit ends asks the model for a last answer, and can be resumed."""
    model = script(
        call("look"), text("Nothing yet.", usage=7), call("look", {"place": "there"}), text("Found.")
    )
    session, _ = await stage.ask(Agent(model, [look], max_steps=1, wrap_up=True), "Search")
    await session.resume(grant=Budget(steps=2))


@scenario
async def check_a_wrap_up_that_fails(stage: Stage) -> None:
    """A wrap-up that asks for tools is noted, and the run ends as it would have."""
    model = script(call("look"), call("look"))
    await stage.ask(Agent(model, [look], max_steps=1, wrap_up=True), "Search")


@scenario
async def check_shown_limits(stage: Stage) -> None:
    """The model is informed when half, a quarter and a tenth of a limit is left."""
    replies = [call("look", {"place": str(number)}, usage=100) for number in range(8)] + [text("Nothing.")]
    # Without a time limit: the text would say how much of the time is left.
    agent = Agent(script(*replies), [look], max_steps=10, max_tokens=1000, timeout=None, show_limits=True)
    await stage.ask(agent, "Search")


_SOON = Backoff(base=0.01, cap=0.05)


def _flaky(failures: int) -> Tool:
    """Return a tool that fails a number of times and then works."""
    left = failures

    @tool
    def fetch(page: int) -> str:
        """Fetch a page."""
        nonlocal left
        if left:
            left -= 1
            raise ConnectionError(f"page {page} cannot be reached")
        return f"page {page}"

    return fetch


@scenario
async def check_a_tool_error_that_stops(stage: Stage) -> None:
    """A tool that raises ends the run; after a resume, the model gets its error."""
    model = script(call("fetch", {"page": 1}), call("fetch", {"page": 1}), "Page 1.")
    session, _ = await stage.ask(Agent(model, [_flaky(1)]), "Fetch page 1")
    await session.resume()


@scenario
async def check_tool_errors_that_are_retried(stage: Stage) -> None:
    """The model gets the error of a tool and calls it again."""
    replies = [call("fetch", {"page": 1})] * 3 + [text("Page 1.")]
    policy = ErrorPolicy.retry_tool_errors(max_retries=3)
    await stage.ask(Agent(script(*replies), [_flaky(2)], error_policy=policy), "Fetch page 1")


@scenario
async def check_tool_errors_beyond_the_retries(stage: Stage) -> None:
    """One failure more than the retries ends the run."""
    replies = [call("fetch", {"page": 1})] * 3
    policy = ErrorPolicy.retry_tool_errors(max_retries=2)
    await stage.ask(Agent(script(*replies), [_flaky(5)], error_policy=policy), "Fetch page 1")


@scenario
async def check_a_tool_error_that_is_not_retryable(stage: Stage) -> None:
    """A tool says that its failure is final."""

    @tool
    def close_account() -> str:
        """Close the account."""
        raise ToolExecutionError("the account is closed already", retryable=False)

    policy = ErrorPolicy.retry_all()
    await stage.ask(Agent(script(call("close_account")), [close_account], error_policy=policy), "Close it")


@scenario
async def check_ignored_tool_errors(stage: Stage) -> None:
    """A policy that ignores the errors of tools lets the run continue."""
    model = script(call("fetch", {"page": 1}), "It cannot be reached.")
    policy = ErrorPolicy.ignore_tool_errors()
    await stage.ask(Agent(model, [_flaky(1)], error_policy=policy), "Fetch page 1")


@scenario
async def check_invalid_arguments(stage: Stage) -> None:
    """Arguments that do not fit, or are not JSON, are corrected by the model."""
    model = script(
        call("fetch", {"page": "one"}), call("fetch", "{page: 1}"), call("fetch", {"page": "1"}), "Page 1."
    )
    policy = ErrorPolicy.retry_tool_errors(max_retries=2)
    await stage.ask(Agent(model, [_flaky(0)], error_policy=policy), "Fetch page 1")


@scenario
async def check_a_tool_timeout(stage: Stage) -> None:
    """A tool that exceeds its own time limit is a timeout."""
    gate = stage.gate()

    @tool(timeout=0.1)
    async def listen() -> str:
        """Listen."""
        await gate.wait()
        return "silence"

    model = script(call("listen"), "I heard nothing.")
    policy = ErrorPolicy.retry_tool_errors()
    await stage.ask(Agent(model, [listen], error_policy=policy), "Listen")


@scenario
async def check_model_errors_that_are_retried(stage: Stage) -> None:
    """A failed model call is repeated after a wait and leaves the history clean."""
    model = script(
        ModelError("overloaded", status=500),
        RateLimitError("slow down", retry_after=0.02),
        call("fetch", {"page": 2}),
        ModelError("bad gateway", status=502, request_id="r-1"),
        text("Page 2."),
    )
    policy = ErrorPolicy.retry_all(max_retries=2)
    agent = Agent(model, [_flaky(0)], error_policy=policy, backoff=_SOON)
    await stage.ask(agent, "Fetch page 2")


@scenario
async def check_model_errors_beyond_the_retries(stage: Stage) -> None:
    """One failed model call too many ends the run, and a resume asks again."""
    replies = [ModelError("overloaded", status=500)] * 2 + [text("At last.")]
    policy = ErrorPolicy.retry_all(max_retries=1)
    session, _ = await stage.ask(Agent(script(*replies), error_policy=policy, backoff=_SOON), "Hello?")
    await session.resume()


@scenario
async def check_a_model_error_that_is_not_retryable(stage: Stage) -> None:
    """A refused key is not tried again under any policy."""
    model = script(ModelError("invalid key", status=401), "Never.")
    policy = ErrorPolicy.retry_all(max_retries=3)
    await stage.ask(Agent(model, error_policy=policy, backoff=_SOON), "Hello?")


@scenario
async def check_an_unknown_model_error(stage: Stage) -> None:
    """An error that no provider documents ends the run, and the trace has its text."""
    await stage.ask(Agent(script(RuntimeError("what was that?"))), "Hello?")


# Hooks, deps and instructions


@tool
def read(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


@tool(needs_approval=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


class AddDate(Hook):
    """Change the request to the model."""

    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        """Add a message in front of the history."""
        dated = Message.developer(f"It is Friday, step {context.step_number}.")
        return await ask(replace(request, messages=(dated, *request.messages)))


class Polite(Hook):
    """Change the response of the model."""

    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        """Add a word to an answer."""
        response = await ask(request)
        return response if response.tool_calls else replace(response, text=f"{response.text} Thank you.")


class InFolder(Hook):
    """Change a call, block another, and answer a third one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        """Keep calls inside a folder."""
        path = str(dict(call.arguments)["path"])  # type: ignore[arg-type]
        self.calls.append(path)
        if path.startswith("/"):
            return Block("absolute paths are not allowed")
        if path == "empty":
            return ToolResult("")
        return replace(call, arguments={"path": f"data/{path}"})


class Shorten(Hook):
    """Change the result of a call."""

    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        """Return the beginning of a result."""
        result = await run()
        return replace(result, content=result.content[:8])


@scenario
async def check_hooks_around_the_model(stage: Stage) -> None:
    """Hooks change a request and a response, and the trace has their names."""
    model = script(call("read", {"path": "a"}), "Read.")
    await stage.ask(Agent(model, [read], hooks=[AddDate(), Polite()]), "Read a")


@scenario
async def check_a_hook_before_tools(stage: Stage) -> None:
    """A hook changes a call, blocks one and answers one; approved calls run as shown."""
    reads = [call("read", {"path": path}) for path in ("a", "/etc", "empty")]
    model = script(calls(*reads, call("remove", {"path": "b"})), "Done.")
    hook = InFolder()
    session, state = await stage.ask(
        Agent(model, [read, remove], hooks=hook), "Read a, /etc and empty, remove b"
    )
    await session.approve(state.pending_calls[0].id)
    await session.resume()
    stage.note("the calls of the hook", sorted(hook.calls))


@scenario
async def check_a_hook_around_tools(stage: Stage) -> None:
    """A hook changes the result of a call, but not the answer of another hook."""
    model = script(calls(call("read", {"path": "a"}), call("read", {"path": "empty"})), "Done.")
    await stage.ask(Agent(model, [read], hooks=[InFolder(), Shorten()]), "Read a")


@scenario
async def check_a_hook_that_raises(stage: Stage) -> None:
    """A hook that fails is a failure of its call."""

    class Broken(Hook):
        """Fail."""

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            """Fail after the call."""
            await run()
            raise RuntimeError("the audit log is full")

    await stage.ask(Agent(script(call("read", {"path": "a"})), [read], hooks=[Broken()]), "Read a")


@dataclass
class Account:
    """The deps of a run."""

    user: str


async def _account_of(summary: Summary) -> Account:
    return Account(str(summary.metadata["user"]))


async def _instructions(context: RunContext[Account]) -> str:
    return f"You help {context.deps.user}, step {context.step_number}."


@tool
def greet(context: ToolContext[Account], greeting: str) -> str:
    """Greet the user."""
    return f"{greeting}, {context.deps.user} ({context.metadata['user']}, call {context.tool_call_id})!"


@tool(needs_approval=True)
def sign(context: ToolContext[Account]) -> str:
    """Sign with the name of the user."""
    return f"signed: {context.deps.user}"


@scenario
async def check_deps_and_instructions(stage: Stage) -> None:
    """Deps are made from the summary of a session, for each of its runs."""
    model = script(calls(call("greet", {"greeting": "Hi"}), call("sign")), "Done.")
    agent = Agent(model, [greet, sign], instructions=_instructions, deps_type=Account)
    session, state = await stage.ask(agent, "Greet and sign", metadata={"user": "ann"}, deps=_account_of)
    await session.approve(state.pending_calls[0].id)
    await session.resume()


@scenario
async def check_missing_deps(stage: Stage) -> None:
    """An agent that needs deps does not start a step without them."""
    agent = Agent(script(), [greet], deps_type=Account)
    session = await stage.open(agent, metadata={"user": "ann"})
    await stage.refused(session.send("Greet"))
