"""What the tests of typed answers share: a few types, right and wrong answers, and agents."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import strategies as st

from whyloop import (
    Agent,
)
from whyloop.events import AgentEvent, OutputChunkReceived, StreamChunkReceived
from whyloop.testing import FakeClock, Reply, ScriptedModel, call

ANSWER = "final_answer"
PRIVATE = "hunter-of-whales"
JSON_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["f0", "f1", "kind"]), inner, max_size=3)
    ),
    max_leaves=8,
)
MODES = ["native", "tool", "prompt"]
each_mode = pytest.mark.parametrize("mode", MODES)


@dataclasses.dataclass
class Item:
    name: str
    price: float


@dataclasses.dataclass
class Invoice:
    """An invoice as it was sent."""

    number: str
    day: date
    items: list[Item]


@dataclasses.dataclass
class Missing:
    reason: str


class Point(TypedDict):
    x: int
    y: int


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


INVOICE = {"number": "A-1", "day": "2026-01-16", "items": [{"name": "rope", "price": 2.5}]}
VALUE = Invoice("A-1", date(2026, 1, 16), [Item("rope", 2.5)])
WRONG = {"number": "A-1", "day": "2026-01-16", "items": [{"name": "rope", "price": "a lot"}]}


def reply(mode: str, answer: Any) -> Reply | str:
    """Return a reply with this answer, as a model in this mode gives it."""
    return call(ANSWER, answer) if mode == "tool" else json.dumps(answer)


def agent_of(mode: str, *replies: Any, tools: Any = (), **options: Any) -> Agent[None, Any]:
    options.setdefault("output_type", Invoice)
    options.setdefault("clock", FakeClock())
    return Agent(ScriptedModel(replies, output_mode=mode), tools, **options)


def streamed(events: list[AgentEvent]) -> tuple[str, str]:
    text = [e.chunk for e in events if isinstance(e, StreamChunkReceived) and e.kind == "text"]
    return "".join(text), "".join(e.chunk for e in events if isinstance(e, OutputChunkReceived))
