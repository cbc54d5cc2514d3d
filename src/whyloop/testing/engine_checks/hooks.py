"""Code and types of the application inside a run: hooks, deps, instructions and typed outputs."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from whyloop.loop.agent import Agent
from whyloop.loop.hooks import AskModel, Block, Hook, RunTool
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.stores.records import Summary
from whyloop.testing.engine_checks.stage import Stage, scenario, script
from whyloop.testing.scripted import ScriptedModel, call, calls
from whyloop.tools.tool import RunContext, ToolContext, tool
from whyloop.values.messages import Message, ToolCall, ToolResult
from whyloop.values.model import OUTPUT_TOOL, ModelRequest, ModelResponse, OutputMode


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
    session = await stage.open(Agent(model, [read], hooks=[AddDate(), Polite()]))
    await session.send("Read a")


@scenario
async def check_a_hook_before_tools(stage: Stage) -> None:
    """A hook changes a call, blocks one and answers one; approved calls run as shown."""
    reads = [call("read", {"path": path}) for path in ("a", "/etc", "empty")]
    model = script(calls(*reads, call("remove", {"path": "b"})), "Done.")
    hook = InFolder()
    session = await stage.open(Agent(model, [read, remove], hooks=hook))
    state = await session.send("Read a, /etc and empty, remove b")
    await session.approve(state.pending_calls[0].id)
    await session.resume()
    stage.note("the calls of the hook", sorted(hook.calls))


@scenario
async def check_a_hook_around_tools(stage: Stage) -> None:
    """A hook changes the result of a call, but not the answer of another hook."""
    model = script(calls(call("read", {"path": "a"}), call("read", {"path": "empty"})), "Done.")
    session = await stage.open(Agent(model, [read], hooks=[InFolder(), Shorten()]))
    await session.send("Read a")


@scenario
async def check_a_hook_that_raises(stage: Stage) -> None:
    """A hook that fails is a failure of its call."""

    class Broken(Hook):
        """Fail."""

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            """Fail after the call."""
            await run()
            raise RuntimeError("the audit log is full")

    session = await stage.open(Agent(script(call("read", {"path": "a"})), [read], hooks=[Broken()]))
    await session.send("Read a")


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
    session = await stage.open(agent, metadata={"user": "ann"}, deps=_account_of)
    state = await session.send("Greet and sign")
    await session.approve(state.pending_calls[0].id)
    await session.resume()


@scenario
async def check_missing_deps(stage: Stage) -> None:
    """An agent that needs deps does not start a step without them."""
    agent = Agent(script(), [greet], deps_type=Account)
    session = await stage.open(agent, metadata={"user": "ann"})
    await stage.refused(session.send("Greet"))


@dataclass
class City:
    """A city."""

    name: str
    people: int


@tool
def find(word: str) -> str:
    """Find a city."""
    return "Paris, 2100000"


_PARIS = {"name": "Paris", "people": 2_100_000}


@scenario
async def check_an_output_by_a_tool_call(stage: Stage) -> None:
    """The model answers with a call of the output tool, after a call of another one."""
    model = script(call("find", {"word": "capital"}), call(OUTPUT_TOOL, _PARIS))
    session = await stage.open(Agent(model, [find], output_type=City))
    await session.send("The capital of France?")


@scenario
async def check_an_output_in_the_native_mode(stage: Stage) -> None:
    """The provider makes the text fit, and a scalar is wrapped in an object."""
    model = ScriptedModel(['{"value": [1, 2, 3]}'], output_mode=OutputMode.NATIVE)
    session = await stage.open(Agent(model, output_type=list[int]))
    await session.send("Count to 3")


@scenario
async def check_an_output_that_is_corrected(stage: Stage) -> None:
    """An answer that does not fit is corrected without the error policy."""
    model = script(call(OUTPUT_TOOL, {"name": "Paris"}), call(OUTPUT_TOOL, _PARIS))
    session = await stage.open(Agent(model, output_type=City))
    await session.send("The capital of France?")


@scenario
async def check_an_output_that_never_fits(stage: Stage) -> None:
    """An answer that does not fit after corrections ends the run without an output."""
    replies = [call(OUTPUT_TOOL, {"name": "Paris"})] * 3
    policy = ErrorPolicy.retry_all(max_retries=1)
    session = await stage.open(Agent(script(*replies), output_type=City, error_policy=policy))
    await session.send("The capital of France?")


@scenario
async def check_an_output_validator(stage: Stage) -> None:
    """A validator refuses one answer and changes the next."""

    async def check_people(city: City) -> City:
        if city.people < 1000:
            raise ValueError("that is a village: name a city")
        return City(city.name.upper(), city.people)

    model = script(call(OUTPUT_TOOL, {"name": "Èze", "people": 2}), call(OUTPUT_TOOL, _PARIS))
    agent = Agent(model, output_type=City, output_validators=check_people)
    session = await stage.open(agent)
    await session.send("A city?")


@scenario
async def check_an_output_beside_other_calls(stage: Stage) -> None:
    """An output beside other calls is discarded, and the model is asked again."""
    both = calls(call("find", {"word": "capital"}), call(OUTPUT_TOOL, _PARIS))
    model = script(both, call(OUTPUT_TOOL, _PARIS))
    session = await stage.open(Agent(model, [find], output_type=City))
    await session.send("The capital of France?")
