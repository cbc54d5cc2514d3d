"""The same work by other frameworks, for whichever of them is installed.

Each peer gets a model without a network, the same tool and no limit that matters, and is asked in
its plain way: no streaming, no listener, no trace, no telemetry. Only the run is timed.

`python -m benchmarks.peers MODULE STEPS …` measures one framework, whyloop included, in a process
of its own: what another framework has imported slows down every garbage collection. The module
`plain` is whyloop without a listener and without limits, asked as the peers are.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from benchmarks.work import plain_step, whyloop_step

Run = Callable[[int], Awaitable[float]]
ARGUMENTS = '{"key": "alpha", "limit": 3}'
ANSWER = "done"


class _Script:
    """What a peer's model has to say, and what was really done."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.requests = 0
        self.lookups = 0

    def next_call(self) -> str:
        """The id of the tool call that this request is answered with; empty when it is time to answer."""
        self.requests += 1
        return f"call_{self.requests}" if self.requests < self.steps else ""

    def look_up(self, key: str, limit: int) -> str:
        self.lookups += 1
        return f"the value of {key}, at most {limit}"

    def tool(self) -> Callable[..., Awaitable[str]]:
        """The tool as a function that a peer can read a schema from."""

        async def lookup(key: str, limit: int = 3) -> str:
            """Look a value up.

            Args:
                key: what to look for
                limit: how many results to return
            """
            return self.look_up(key, limit)

        return lookup

    async def time(self, run: Callable[[], Awaitable[object]]) -> float:
        """Microseconds a step; makes sure that the work was really done."""
        started = time.perf_counter()
        answer = await run()
        seconds = time.perf_counter() - started
        done = (self.requests, self.lookups, answer)
        if done != (self.steps, self.steps - 1, ANSWER):
            raise RuntimeError(f"{self.steps} steps wanted; requests, lookups and answer were {done}")
        return seconds / self.steps * 1e6


def _subclass(base: Any, **members: Any) -> Any:
    """A model class of a peer, with these members."""
    return type("OfflineModel", (base,), {"__module__": __name__, **members})


def _unused(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a peer asked its model in a way that was not foreseen")


async def _agno(steps: int) -> float:
    os.environ["AGNO_TELEMETRY"] = "false"  # Where it is set, it outranks the argument below.
    agent_module, models = import_module("agno.agent"), import_module("agno.models.base")
    response, usage = import_module("agno.models.response").ModelResponse, import_module("agno.metrics")
    script = _Script(steps)

    async def ainvoke(_: Any, *__: Any, **___: Any) -> Any:
        spent = usage.MessageMetrics(input_tokens=90, output_tokens=10, total_tokens=100)
        if not (call_id := script.next_call()):
            return response(role="assistant", content=ANSWER, response_usage=spent)
        call = {"id": call_id, "type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}}
        return response(role="assistant", tool_calls=[call], response_usage=spent)

    rest = ("invoke", "invoke_stream", "ainvoke_stream")
    parsers = ("_parse_provider_response", "_parse_provider_response_delta")
    model = _subclass(models.Model, ainvoke=ainvoke, **dict.fromkeys((*rest, *parsers), _unused))
    agent = agent_module.Agent(model=model(id="offline"), tools=[script.tool()], telemetry=False)

    async def run() -> object:
        return (await agent.arun("go")).content

    return await script.time(run)


async def _pydantic_ai(steps: int) -> float:
    peer, messages = import_module("pydantic_ai"), import_module("pydantic_ai.messages")
    model, usage = import_module("pydantic_ai.models.function"), import_module("pydantic_ai.usage")
    script = _Script(steps)

    async def respond(_: Any, __: Any) -> Any:
        part: Any = messages.TextPart(ANSWER)
        if call_id := script.next_call():
            part = messages.ToolCallPart("lookup", ARGUMENTS, tool_call_id=call_id)
        spent = usage.RequestUsage(input_tokens=90, output_tokens=10)  # Else it would count words.
        return messages.ModelResponse(parts=[part], usage=spent)

    agent = peer.Agent(model.FunctionModel(respond), tools=[script.tool()])
    limits = usage.UsageLimits(request_limit=None)

    async def run() -> object:
        return (await agent.run("go", usage_limits=limits)).output

    return await script.time(run)


async def _openai_agents(steps: int) -> float:
    peer, responses = import_module("agents"), import_module("openai.types.responses")
    peer.set_tracing_disabled(True)
    script = _Script(steps)

    async def get_response(_: Any, *__: Any, **___: Any) -> Any:
        if call_id := script.next_call():
            item = responses.ResponseFunctionToolCall(
                type="function_call", call_id=call_id, name="lookup", arguments=ARGUMENTS
            )
        else:
            text = responses.ResponseOutputText(type="output_text", text=ANSWER, annotations=[])
            item = responses.ResponseOutputMessage(
                type="message", id="answer", role="assistant", status="completed", content=[text]
            )
        spent = peer.Usage(requests=1, input_tokens=90, output_tokens=10, total_tokens=100)
        return peer.ModelResponse(output=[item], usage=spent, response_id=None)

    model = _subclass(peer.Model, get_response=get_response, stream_response=_unused)
    agent = peer.Agent(name="bench", model=model(), tools=[peer.function_tool(script.tool())])

    async def run() -> object:
        return (await peer.Runner.run(agent, "go", max_turns=steps)).final_output

    return await script.time(run)


async def _langgraph(steps: int) -> float:
    graphs, prebuilt = import_module("langgraph.graph"), import_module("langgraph.prebuilt")
    chat, outputs = import_module("langchain_core.language_models"), import_module("langchain_core.outputs")
    messages, tools = import_module("langchain_core.messages"), import_module("langchain_core.tools")
    tracing_context = import_module("langsmith").tracing_context
    script = _Script(steps)

    async def agenerate(_: Any, *__: Any, **___: Any) -> Any:
        spent = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
        if call_id := script.next_call():
            call = {"id": call_id, "name": "lookup", "args": {"key": "alpha", "limit": 3}}
            message = messages.AIMessage("", tool_calls=[call], usage_metadata=spent)
        else:
            message = messages.AIMessage(ANSWER, usage_metadata=spent)
        return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    kind = property(lambda _: "offline")
    model = _subclass(chat.BaseChatModel, _agenerate=agenerate, _generate=_unused, _llm_type=kind)()
    lookup = tools.StructuredTool.from_function(coroutine=script.tool())
    bound = model.bind(
        tools=[import_module("langchain_core.utils.function_calling").convert_to_openai_tool(lookup)]
    )

    async def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    builder = graphs.StateGraph(graphs.MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", prebuilt.ToolNode([lookup]))
    builder.add_edge(graphs.START, "model")
    builder.add_conditional_edges("model", prebuilt.tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile()

    async def run() -> object:
        state = await graph.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 2 * steps + 1})
        return state["messages"][-1].content

    with tracing_context(enabled=False):
        return await script.time(run)


async def _smolagents(steps: int) -> float:
    peer, models = import_module("smolagents"), import_module("smolagents.models")
    usage = import_module("smolagents.monitoring")
    script = _Script(steps)

    def generate(_: Any, *__: Any, **___: Any) -> Any:
        # It ends with a tool of its own: an answer in words would be an error.
        call_id, name, arguments = script.next_call(), "lookup", ARGUMENTS
        if not call_id:
            call_id, name, arguments = "answer", "final_answer", f'{{"answer": "{ANSWER}"}}'
        wanted = models.ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = models.ChatMessageToolCall(id=call_id, type="function", function=wanted)
        spent = usage.TokenUsage(input_tokens=90, output_tokens=10)
        return models.ChatMessage(role="assistant", content="", tool_calls=[call], token_usage=spent)

    def lookup(key: str, limit: int = 3) -> str:
        """Look a value up.

        Args:
            key: what to look for
            limit: how many results to return
        """
        return script.look_up(key, limit)

    agent = peer.ToolCallingAgent(
        tools=[peer.tool(lookup)],
        model=_subclass(models.Model, generate=generate)(),
        max_steps=steps,
        verbosity_level=usage.LogLevel.OFF,
    )

    async def run() -> object:
        return agent.run("go")  # It knows no other way than to block.

    return await script.time(run)


_PEERS: tuple[tuple[str, str, str, Run], ...] = (
    ("agno", "agno", "agno", _agno),
    ("pydantic-ai", "pydantic_ai", "pydantic-ai-slim", _pydantic_ai),
    ("openai-agents", "agents", "openai-agents", _openai_agents),
    ("langgraph", "langgraph", "langgraph", _langgraph),
    ("smolagents", "smolagents", "smolagents", _smolagents),
)


def installed_peers() -> list[tuple[str, str]]:
    """Each peer that can be imported: the name of its module, and its name with its version."""
    found = []
    for name, module, distribution, _ in _PEERS:
        if find_spec(module) is None:
            continue
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:  # Something else that happens to have the name.
            continue
        found.append((module, f"{name} {version}"))
    return found


async def measure(module: str, steps: int) -> float:
    """Return the median of the runs of this length that two seconds allow, in microseconds a step.

    The first run warms up, and counts only if it took all of that time.
    """
    runs = {name: run for _, name, _, run in _PEERS} | {"whyloop": whyloop_step, "plain": plain_step}
    run = runs[module]
    until = time.perf_counter() + 2
    costs = [await run(steps)]
    while time.perf_counter() < until:
        costs.append(await run(steps))
    return statistics.median(costs[1:] or costs)


if __name__ == "__main__":
    _module, *_lengths = sys.argv[1:]
    print(json.dumps([asyncio.run(measure(_module, int(steps))) for steps in _lengths]))
