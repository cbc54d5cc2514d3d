"""Lenient arguments: a change always makes arguments fit, and those that fit are never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ConfigDict

from tests.support import assert_readable, scripted
from whyloop import Hook, Tool, ToolCall, ToolContext, ToolDefinition, Toolset, tool
from whyloop.events import ToolCallStarted
from whyloop.testing import call, capture_events
from whyloop.tools.lenient import lenient
from whyloop.tools.schema import SchemaArguments


@dataclass
class Person:
    name: str
    age: int


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    tags: list[str] = []


def tool_for(kind: Any) -> Tool:
    """A tool with one required parameter of this type, and an optional one."""

    def take(value, also=1):  # type: ignore[no-untyped-def]
        return value

    take.__annotations__ = {"value": kind, "also": int}
    return Tool(take)


def read(kind: Any, value: Any) -> Any:
    """The value that a lenient reading gives for a parameter of this type; it must fit."""
    arguments = tool_for(kind).arguments
    assert not arguments.fits({"value": value})
    changed = lenient({"value": value}, arguments)
    if changed is None:
        return None
    assert arguments.fits(changed)
    return changed["value"]


@pytest.mark.parametrize(
    ("kind", "sent", "meant"),
    [
        (int, "42", 42),
        (int, "-7", -7),
        (int, " 42 ", 42),
        (int, "42.0", 42),
        (int, 42.0, 42),
        (float, "1.5", 1.5),
        (float, "3", 3.0),
        (float, "-2e3", -2000.0),
        (bool, "true", True),
        (bool, "false", False),
        (list[str], '["a", "b"]', ["a", "b"]),
        (list[int], '["1", 2.0]', [1, 2]),
        (list[int], ["1", 2.0], [1, 2]),
        (dict[str, int], '{"a": "1"}', {"a": 1}),
        (tuple[int, str], ["1", "1"], [1, "1"]),
        (Person, '{"name": "Ann", "age": "42"}', {"name": "Ann", "age": 42}),
        (Strict, {"name": "Ann", "nickname": "A"}, {"name": "Ann"}),
        (Strict, {"name": "Ann", "tags": '["x"]'}, {"name": "Ann", "tags": ["x"]}),
        (int | None, "42", 42),
        (int | None, 42.0, 42),
        (list[int] | None, [5.0], [5]),
        (list[Person] | None, '[{"name": "Ann", "age": "42"}]', [{"name": "Ann", "age": 42}]),
        (bool | int, "true", True),
    ],
)
def test_a_slip_with_one_meaning_is_corrected(kind: Any, sent: Any, meant: Any) -> None:
    changed = read(kind, sent)
    assert (changed, repr(changed)) == (meant, repr(meant))


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (int, "forty-two"),
        (int, "4.2"),
        (int, 4.2),
        (int, ""),
        (int, "0x10"),
        (int, "1_000"),
        (int, "9" * 5000),
        (int, True),
        (float, "nan"),
        (float, "1e999"),
        (bool, "yes"),
        (bool, 1),
        (bool, "True"),
        (list[int], "1, 2"),
        (list[int], '{"a": 1}'),
        (list[int], '["a"]'),
        (Person, "Ann"),
        (Person, {"name": "Ann"}),
        (Literal[1, 2], "1"),
        (str, 42),
        (str, None),
    ],
)
def test_anything_else_is_left_for_the_model_to_correct(kind: Any, sent: Any) -> None:
    assert read(kind, sent) is None


@pytest.mark.parametrize(
    ("kind", "sent"),
    [(str | int, "42"), (int | float, 5.0), (str | list[int], "[1]"), (str | bool, "true"), (Any, "42")],
)
def test_a_union_that_accepts_the_original_keeps_it(kind: Any, sent: Any) -> None:
    arguments = tool_for(kind).arguments
    assert arguments.fits({"value": sent})
    changed = lenient({"value": sent, "also": "7"}, arguments)  # Another argument is changed.
    assert changed is not None
    assert (repr(changed["value"]), changed["also"]) == (repr(sent), 7)


def test_unknown_fields_are_dropped() -> None:
    arguments = tool_for(str).arguments
    assert lenient({"value": "a", "note": "b"}, arguments) == {"value": "a"}
    assert lenient({"note": "b"}, arguments) is None


def test_arguments_that_were_encoded_twice_are_an_object() -> None:
    arguments = tool_for(str).arguments
    assert lenient(json.dumps(json.dumps({"value": "a"})), arguments) == {"value": "a"}
    for text in ('{"value": "a"', '["a"]', '{"value": "a"}', "7", ""):
        assert lenient(text, arguments) is None


SCHEMAS: list[Mapping[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {"allOf": [{"type": "integer"}]}}},
    {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_tools_that_are_known_by_their_schema_are_read_leniently_too(schema: Mapping[str, Any]) -> None:
    arguments = ToolDefinition("look", "", schema).arguments
    assert lenient({"a": "7"}, arguments) == {"a": 7}
    assert lenient({"a": "seven"}, arguments) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": 7},
        {"type": "object", "properties": {"a": {"anyOf": 7}}},
    ],
    ids=str,
)
def test_a_schema_that_is_invalid_changes_nothing(schema: Any) -> None:
    assert lenient({"a": "7"}, ToolDefinition("look", "", schema).arguments) is None


# Properties

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=5) | st.sampled_from(["42", "true", "[1]", "{}", "null"]),
}


def kinds() -> st.SearchStrategy[Any]:
    """Types that a parameter may have, nested."""
    scalars = st.sampled_from([*SCALARS, Person, int | None, str | int, int | float, Literal["a", "b"]])

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        makers: list[Callable[[Any], Any]] = [
            lambda kind: GenericAlias(list, (kind,)),
            lambda kind: GenericAlias(dict, (str, kind)),
            lambda kind: kind | None,
        ]
        return st.tuples(st.sampled_from(makers), inner).map(lambda pair: pair[0](pair[1]))

    return st.recursive(scalars, around, max_leaves=4)


def json_values() -> st.SearchStrategy[Any]:
    texts = st.sampled_from(["42", "4.0", "true", "false", "[1]", '["2"]', "{}", '{"name": "A", "age": "1"}'])
    leaves = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | texts | st.text(max_size=3)
    fields = st.sampled_from(["value", "also", "name", "age", "x"])
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=3),
        max_leaves=6,
    )


@given(kinds(), json_values(), st.dictionaries(st.sampled_from(["also", "x"]), json_values(), max_size=2))
def test_a_lenient_change_fits_and_changes_only_what_it_must(kind: Any, value: Any, more: Any) -> None:
    arguments = tool_for(kind).arguments
    sent = {"value": value, **more}
    before = repr(sent)
    changed = lenient(sent, arguments)
    assert repr(sent) == before
    if changed is not None:
        assert arguments.fits(changed)
        assert lenient(changed, arguments) == changed
        assert msgspec.json.decode(msgspec.json.encode(changed)) == changed
    if arguments.fits(sent):
        assert repr(changed) == before  # It is not even asked for, and would change nothing.


@given(kinds(), json_values())
async def test_a_run_never_changes_arguments_that_fit(kind: Any, value: Any) -> None:
    taking = tool_for(kind)
    sent = {"value": value}
    state = await scripted(call("take", sent), "done", tools=[taking]).run("go")
    (asked,) = state.messages[1].tool_calls
    if taking.arguments.fits(sent):
        assert (asked.changes, repr(asked.arguments)) == ((), repr(sent))
    else:
        assert taking.arguments.fits(asked.arguments) == bool(asked.changes)


# In a run


@tool(needs_approval=lambda arguments: arguments["amount"] > 100)
async def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


async def test_hooks_approval_and_the_tool_see_the_corrected_arguments() -> None:
    class Seen(Hook):
        calls: ClassVar[list[ToolCall]] = []

        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            self.calls.append(call)
            return call

    hook = Seen()
    agent = scripted(call("pay", {"amount": "500", "to": "Bob", "currency": "EUR"}), tools=[pay], hooks=hook)
    state = await agent.run("go")
    assert state.status == "paused"
    assert hook.calls[0].arguments == {"amount": 500, "to": "Bob"}
    assert state.pending_calls[0].arguments == {"amount": 500, "to": "Bob"}


async def test_a_change_is_recorded_with_the_original_and_shown_with_the_call() -> None:
    agent = scripted(call("pay", {"amount": "5", "to": "Bob"}), "done", tools=[pay])
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.messages[2].text == "paid 5 to Bob"
    (asked,) = state.messages[1].tool_calls
    assert asked.arguments == {"amount": 5, "to": "Bob"}
    assert [(change.by, change.before) for change in asked.changes] == [
        ("lenient arguments", {"amount": "5", "to": "Bob"})
    ]
    assert "pay ok, changed by lenient arguments" in assert_readable(state)
    started = next(event for event in events if isinstance(event, ToolCallStarted))
    assert (started.args, started.changed_by) == ({"amount": 5, "to": "Bob"}, ("lenient arguments",))


async def test_arguments_of_a_toolset_are_read_leniently_too() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    seen: list[Any] = []

    class Counter(Toolset):
        async def list(self) -> Sequence[ToolDefinition]:
            return [ToolDefinition("count", "Counts.", schema)]

        async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
            seen.append(arguments)
            return "ok"

    state = await scripted(call("count", {"n": "3", "x": 1}), "done", tools=[Counter()]).run("go")
    assert (state.status, seen) == ("completed", [{"n": 3}])


@dataclass
class Leaf:
    size: int


@dataclass
class Fork:
    left: Leaf | Fork | Knot
    right: Leaf | Fork | Knot


@dataclass
class Knot:
    left: Leaf | Fork | Knot
    right: Leaf | Fork | Knot


def test_unions_that_nest_are_relaxed_in_time() -> None:
    def nested(size: object) -> object:
        tree: object = {"size": size}
        for _ in range(16):
            tree = {"left": {"size": 1}, "right": tree}
        return tree

    takes_tree = tool_for(Leaf | Fork | Knot)
    assert lenient({"value": nested("2")}, takes_tree.arguments) == {"value": nested(2)}
    assert lenient({"value": nested("two")}, takes_tree.arguments) is None


class Selection(BaseModel):
    model_config = ConfigDict(extra="forbid")
    newest: bool = True


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int


def test_of_several_alternatives_the_one_that_keeps_most_is_taken() -> None:
    named = '{"id": 7}'
    assert lenient({"value": named}, tool_for(Selection | Named).arguments) == {"value": {"id": 7}}
    assert lenient({"value": named}, tool_for(Named | Selection).arguments) == {"value": {"id": 7}}
    several = tool_for(list[Selection | Named]).arguments
    assert lenient({"value": f"[{named}, {named}]"}, several) == {"value": [{"id": 7}, {"id": 7}]}


def test_a_field_whose_name_fits_a_pattern_is_known() -> None:
    schema = {
        "type": "object",
        "properties": {"count": {"type": "integer"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    arguments = SchemaArguments(schema)
    assert arguments.fits({"count": 1, "x-a": 2})
    assert not arguments.fits({"x-a": "two"})
    assert lenient({"count": "1", "x-a": "2", "y": 3}, arguments) == {"count": 1, "x-a": 2}
