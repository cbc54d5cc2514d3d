"""Answers, tool calls and contents: queries, calls one by one and at once, odd values, typed outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.testing.engine_checks.stage import SESSION, Stage, scenario, script
from whyloop.testing.fakes import Reply, ScriptedModel, call, calls, text
from whyloop.tools.tool import ToolContext, ToolDefinition, tool
from whyloop.tools.toolset import Toolset
from whyloop.values.messages import FilePart, ImagePart, Message, TextPart
from whyloop.values.model import OUTPUT_TOOL, ModelRequest, ModelResponse, ModelSource, OutputMode, Usage


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def find(word: str) -> dict[str, object]:
    """Find the pages with a word."""
    return {"word": word, "pages": [3, 14], "best": None}


@scenario
async def check_an_answer(stage: Stage) -> None:
    """A model answers at once."""
    answer = text("Paris.", usage=Usage(input=12, output=3), reasoning="A capital.")
    await stage.ask(Agent(script(answer), instructions="Be brief."), "The capital of France?")


@scenario
async def check_a_tool_call(stage: Stage) -> None:
    """The result of a plain tool goes to the model."""
    model = script(call("add", {"a": 1, "b": 2}, "Let me see.", usage=20), text("3", usage=5))
    await stage.ask(Agent(model, [add]), "1 + 2?")


@scenario
async def check_steps_of_tool_calls(stage: Stage) -> None:
    """Several steps follow each other, with plain and with async tools."""
    model = script(
        call("find", {"word": "loop"}), call("add", {"a": 3, "b": "14"}), call("find", {"word": "why"}), "17"
    )
    await stage.ask(Agent(model, [add, find]), "The sum of the pages?")


@scenario
async def check_a_long_run(stage: Stage) -> None:
    """A run of many steps has one trace, and can be continued."""
    steps = [call("add", {"a": number, "b": 1}, usage=3) for number in range(40)]
    session, _ = await stage.ask(Agent(script(*steps, "40", "Again."), [add], max_steps=50), "Count to 40")
    await session.send("Again?")


@scenario
async def check_calls_at_once(stage: Stage) -> None:
    """Calls of one step run at once, one of them fails, and results are in order."""
    first, second = stage.gate(), stage.gate()

    @tool
    async def left() -> str:
        """Wait for the right one."""
        first.open()
        await second.wait()
        return "left"

    @tool
    async def right() -> str:
        """Wait for the left one."""
        await first.wait()
        second.open()
        return "right"

    @tool
    async def broken() -> str:
        """Fail."""
        raise ValueError("no connection")

    model = script(calls(call("left"), call("broken"), call("right"), call("add", {"a": 1, "b": 1})), "Done.")
    agent = Agent(model, [left, broken, right, add], error_policy=ErrorPolicy.ignore_tool_errors())
    await stage.ask(agent, "Go")


@scenario
async def check_each_call_runs_once(stage: Stage) -> None:
    """Each call runs once, with the facts about it."""
    keys: list[str] = []

    @tool
    def count(context: ToolContext, word: str) -> str:
        """Count a word."""
        keys.append(context.idempotency_key)
        facts = [context.agent_id, context.step_number, context.call_index, context.tool_call_id]
        return f"{word}: {facts}, {context.tool}, {dict(context.metadata)}, {context.deadline is None}"

    first = calls(call("count", {"word": "a"}), call("count", {"word": "b"}))
    model = script(first, call("count", {"word": "a"}), "Counted.")
    _, state = await stage.ask(Agent(model, [count]), "Count", metadata={"user": "ann"})
    stage.note("the calls", sorted(key.replace(state.execution.id, "execution") for key in keys))


class Shelf(Toolset):
    """Tools that are listed when a run begins."""

    async def list(self) -> Sequence[ToolDefinition]:
        """Return one tool that runs at once, and one that asks a person."""
        schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
        return [
            ToolDefinition("take", "Take a book.", schema),
            ToolDefinition("burn", "Burn a book.", schema, needs_approval=True),
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Say what was done."""
        return f"{name}: {arguments['title']}"


@scenario
async def check_a_toolset(stage: Stage) -> None:
    """The tools of a toolset are listed for the model, run, and wait for a person."""
    both = calls(call("take", {"title": "Emma"}), call("burn", {"title": "Emma"}), call("take", {}))
    model = script(both, call("add", {"a": 1, "b": 1}), "Taken.")
    policy = ErrorPolicy.retry_tool_errors()
    session, state = await stage.ask(Agent(model, [Shelf(), add], error_policy=policy), "Take it")
    await session.deny(state.pending_calls[0].id, "books are not burnt")
    await session.resume()


@scenario
async def check_a_toolset_that_cannot_be_listed(stage: Stage) -> None:
    """A toolset without a connection is a failure that can be retried."""
    failures = iter([ConnectionError("no route to the shelf")])

    class Far(Shelf):
        """A toolset that fails at first."""

        async def list(self) -> Sequence[ToolDefinition]:
            """Fail once."""
            for error in failures:
                raise error
            return await super().list()

    model = script(call("take", {"title": "Emma"}), "Taken.")
    session, _ = await stage.ask(Agent(model, [Far()]), "Take it")
    await session.resume()


@scenario
async def check_an_unknown_tool(stage: Stage) -> None:
    """A call of a tool that does not exist is a validation failure."""
    await stage.ask(Agent(script(call("subtract", {"a": 1})), [add]), "2 - 1?")


@scenario
async def check_a_call_written_as_text(stage: Stage) -> None:
    """A call written as text stays in the history, and the model gets a message."""
    model = script('{"name": "add", "arguments": {"a": 1, "b": 2}}', call("add", {"a": 1, "b": 2}), "3")
    await stage.ask(Agent(model, [add], error_policy=ErrorPolicy.retry_tool_errors()), "1 + 2?")


@scenario
async def check_a_truncated_answer(stage: Stage) -> None:
    """The calls of a truncated answer are not run."""
    reply = call("add", '{"a": 1, "b"', "I add", finish_reason="length")
    await stage.ask(Agent(script(reply), [add]), "1 + 2?")


@scenario
async def check_an_empty_answer(stage: Stage) -> None:
    """An empty reply to a query is a failure, and after tool results it is an answer."""
    model = script("", call("add", {"a": 1, "b": 2}), "")
    session, _ = await stage.ask(Agent(model, [add]), "Hello?")
    await session.send("1 + 2?")


@scenario
async def check_the_next_query(stage: Stage) -> None:
    """A second query of a session is a new execution with the same history."""
    model = script("Paris.", call("add", {"a": 2, "b": 2}), "2.1 million.")
    session, _ = await stage.ask(Agent(model, [add], max_steps=2), "The capital of France?")
    await session.send("And its people?")


@scenario
async def check_two_agents(stage: Stage) -> None:
    """Each session is run by the agent of its name."""
    adder = Agent(script(call("add", {"a": 1, "b": 2}), "3"), [add], name="adder")
    finder = Agent(script(call("find", {"word": "loop"}), "3, 14"), [find], name="finder")
    await stage.start(adder, finder)
    first, second = await stage.open(adder, "first"), await stage.open(finder, "second")
    await first.send("1 + 2?")
    await second.send("Where?")
    await stage.refused((await stage.open(finder, "third")).resume())


_ODD = "naïve 猫 🐈 \u200d\x00\x1b[31m \ud83d \r\n\u2028 </script>"


@scenario
async def check_large_results(stage: Stage) -> None:
    """A long result is kept whole, and one above its tool's limit is cut."""

    @tool
    def long() -> str:
        """Return much text."""
        return "0123456789" * 20_000

    @tool(max_result_chars=1000)
    def cut() -> str:
        """Return less text."""
        return "0123456789" * 2_000

    model = script(calls(call("long"), call("cut")), "Read.")
    await stage.ask(Agent(model, [long, cut]), "Read it")


@scenario
async def check_a_query_of_parts(stage: Stage) -> None:
    """A query of text and an image reaches the model."""
    session = await stage.open(Agent(script("A cat.")))
    image = ImagePart(data="iVBORw0KGgo=", media_type="image/png")
    await session.send([TextPart("What is it?"), image])


@scenario
async def check_metadata_that_changes(stage: Stage) -> None:
    """A run has the metadata that the session was given before it, in the store."""

    @tool
    async def who(context: ToolContext) -> str:
        return str(dict(context.metadata))

    agent = Agent(script(call("who"), "One.", call("who"), "Two."), [who])
    await stage.ask(agent, "1?", metadata={"user": "ann", "old": 1})
    await stage.store.set_metadata(SESSION, {"user": "bob", "old": None}, by="eve")
    again = await stage.open(agent)
    await again.send("2?")


@scenario
async def check_metadata(stage: Stage) -> None:
    """A session keeps its metadata, and opening it again does not change it."""
    agent = Agent(script("One.", "Two."))
    await stage.ask(agent, "1?", metadata={"user": "ann", "tags": ["a", "ü"], "plan": {"seats": 3}})
    again = await stage.open(agent, metadata={"user": "bob"})
    await again.send("2?")


@scenario
async def check_odd_texts(stage: Stage) -> None:
    """Characters of all kinds pass through queries, answers, results and metadata."""

    @tool
    def echo(said: str) -> str:
        """Return a text."""
        return said + _ODD

    model = script(call("echo", {"said": "naïve 🐈 \x00"}, _ODD), text(_ODD, reasoning=_ODD))
    await stage.ask(Agent(model, [echo], instructions=_ODD), _ODD, metadata={"odd": "naïve 🐈"})


@dataclass
class Point:
    """A result that is a dataclass."""

    x: float
    label: str | None = None


_RESULTS: dict[str, Any] = {
    "nothing": None,
    "truth": True,
    "numbers": [0.1, 1e300, -0.0, 2**53, 2**63],
    "money": Decimal("10.50"),
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "point": Point(1.5),
    "bytes": b"\x00\xff",
    "set": {1},
    "object": complex(1, 2),
}


@scenario
async def check_results_of_all_types(stage: Stage) -> None:
    """A result of any type becomes the same text; one without a JSON form fails."""

    @tool
    def get(name: str) -> Any:
        """Return a value."""
        return _RESULTS[name]

    model = script(calls(*[call("get", {"name": name}) for name in _RESULTS]), "Got them.")
    await stage.ask(Agent(model, [get], error_policy=ErrorPolicy.ignore_tool_errors()), "Get all")


@scenario
async def check_arguments_of_all_types(stage: Stage) -> None:
    """Arguments of any JSON type reach the tool, also those that are corrected."""

    @tool
    def put(whole: int, part: float, flags: list[bool], nested: dict[str, Any], point: Point | None) -> str:
        """Return the arguments."""
        return repr((whole, part, flags, nested, point))

    exact = {"whole": 2**53 + 1, "part": 0.5, "flags": [True], "nested": {"a": [None, {}]}, "point": None}
    loose = {"whole": "7", "part": "1e3", "flags": '["true"]', "nested": "{}", "point": {"x": 1}, "more": 1}
    await stage.ask(Agent(script(calls(call("put", exact), call("put", loose)), "Put."), [put]), "Put all")


class _Provider(ScriptedModel):
    """A model whose answers have all that a provider may send."""

    def __init__(self, replies: Iterable[Reply]) -> None:
        super().__init__(replies)

    def reply_to(self, request: ModelRequest) -> ModelResponse:
        """Return the next reply of the script, with the data of a provider."""
        number = len(self.requests) + 1
        return replace(
            super().reply_to(request),
            extras={"conformance": {"signature": f"c2ln{number}", "items": [{"type": "reasoning"}]}},
            source=ModelSource(model="model-1", response_id=f"r-{number}", finish_word="end"),
            usage=Usage(input=10, output=5, cached=4, reasoning=2, cost=Decimal("0.0123")),
        )


@scenario
async def check_the_data_of_a_provider(stage: Stage) -> None:
    """Signatures, sources and costs are kept with each answer, and sent back."""

    @tool
    def look() -> str:
        """Look around."""
        return "nothing"

    replies = [call("look", text="Let me see.", reasoning="I must look."), text("Nothing.")]
    await stage.ask(Agent(_Provider(replies), [look]), "Search")


@scenario
async def check_a_query_that_is_a_message(stage: Stage) -> None:
    """A query may be a message of its own, with a file."""
    session = await stage.open(Agent(script("A report.")))
    file = FilePart(url="https://example.com/report.pdf", media_type="application/pdf", name="report.pdf")
    await session.send(Message.user([TextPart("What is it?"), file]))


# Typed outputs


@dataclass
class City:
    """A city."""

    name: str
    people: int


@tool
def search(word: str) -> str:
    """Find a city."""
    return "Paris, 2100000"


_PARIS = {"name": "Paris", "people": 2_100_000}


@scenario
async def check_an_output_by_a_tool_call(stage: Stage) -> None:
    """The model answers with a call of the output tool, after a call of another one."""
    model = script(call("search", {"word": "capital"}), call(OUTPUT_TOOL, _PARIS))
    await stage.ask(Agent(model, [search], output_type=City), "The capital of France?")


@scenario
async def check_an_output_in_the_native_mode(stage: Stage) -> None:
    """The provider makes the text fit, and a scalar is wrapped in an object."""
    model = ScriptedModel(['{"value": [1, 2, 3]}'], output_mode=OutputMode.NATIVE)
    await stage.ask(Agent(model, output_type=list[int]), "Count to 3")


@scenario
async def check_an_output_that_is_corrected(stage: Stage) -> None:
    """An answer that does not fit is corrected without the error policy."""
    model = script(call(OUTPUT_TOOL, {"name": "Paris"}), call(OUTPUT_TOOL, _PARIS))
    await stage.ask(Agent(model, output_type=City), "The capital of France?")


@scenario
async def check_an_output_that_never_fits(stage: Stage) -> None:
    """An answer that does not fit after corrections ends the run without an output."""
    replies = [call(OUTPUT_TOOL, {"name": "Paris"})] * 3
    policy = ErrorPolicy.retry_all(max_retries=1)
    await stage.ask(Agent(script(*replies), output_type=City, error_policy=policy), "The capital of France?")


@scenario
async def check_an_output_validator(stage: Stage) -> None:
    """A validator refuses one answer and changes the next."""

    async def check_people(city: City) -> City:
        if city.people < 1000:
            raise ValueError("that is a village: name a city")
        return City(city.name.upper(), city.people)

    model = script(call(OUTPUT_TOOL, {"name": "Èze", "people": 2}), call(OUTPUT_TOOL, _PARIS))
    agent = Agent(model, output_type=City, output_validators=check_people)
    await stage.ask(agent, "A city?")


@scenario
async def check_an_output_beside_other_calls(stage: Stage) -> None:
    """An output beside other calls is discarded, and the model is asked again."""
    both = calls(call("search", {"word": "capital"}), call(OUTPUT_TOOL, _PARIS))
    model = script(both, call(OUTPUT_TOOL, _PARIS))
    await stage.ask(Agent(model, [search], output_type=City), "The capital of France?")
