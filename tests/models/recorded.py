"""Exchanges with providers, and ways to feed them to an API.

A few are in this folder, written by hand in the formats of the providers. Recordings of real providers are
added where they are available.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from whyloop.models.provider import ProviderApi, StreamReader
from whyloop.models.response import EventParser
from whyloop.text.visible_text import VisibleText
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import Delta, ModelResponse, ReasoningDelta, TextDelta, ToolSpec

EXCHANGES = Path(__file__).parent / "exchanges"
RECORDINGS = Path(
    os.environ.get("WHYLOOP_RECORDINGS") or Path(__file__).parents[2] / ".." / "shared" / "recordings"
)


class Recording(NamedTuple):
    """One exchange with a provider."""

    name: str
    status: int
    headers: dict[str, str]
    request: dict[str, Any]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "")

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The JSON in the body: one document, or that of each event."""
        if not self.is_stream:
            return [json.loads(self.body)]
        lines = [line.removeprefix("data:").strip() for line in self.body.decode().splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]


def recordings(api: str) -> list[Any]:
    """Every exchange with an API as a parameter of a test."""
    files = [*sorted((EXCHANGES / api).glob("*.json")), *sorted((RECORDINGS / api).glob("*.json"))]
    return [pytest.param(path, id=path.stem) for path in files]


def load(path: Path) -> Recording:
    """The recording in a file."""
    document = json.loads(path.read_text())
    return Recording(
        path.stem,
        document["status"],
        {name.lower(): value for name, value in document["response_headers"].items()},
        document["request"],
        document["response_body"].encode(),
    )


def earlier(path: Path) -> Iterator[Recording]:
    """The recordings of the same conversation that came before this one."""
    start, _, number = path.stem.rpartition("-")
    for index in range(int(number)):
        before = path.with_name(f"{start}-{index}.json")
        if before.exists():
            yield load(before)


def answer(wire: ProviderApi, recording: Recording) -> ModelResponse:
    """What a wire format makes of a recorded body."""
    if recording.is_stream:
        return streamed(wire.reader(), [recording.body])[0]
    return wire.decode(recording.body)


def streamed(reader: StreamReader, chunks: list[bytes]) -> tuple[ModelResponse, str]:
    """The response that a stream in these chunks amounts to, and the text shown on the way."""
    deltas = deltas_of(reader, *chunks)
    response = reader.finish()
    thoughts = "".join([delta.text for delta in deltas if isinstance(delta, ReasoningDelta)])
    assert not thoughts or thoughts == response.reasoning
    visible = VisibleText([ToolSpec(call.name, "", {}) for call in response.tool_calls])
    return response, "".join([visible.add(delta.text) for delta in deltas if isinstance(delta, TextDelta)])


def deltas_of(reader: StreamReader, *chunks: bytes) -> list[Delta]:
    """The pieces that a stream in these chunks consists of."""
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()
    return [delta for event in events for delta in reader.read(event.name, event.data)]


def cuts(body: bytes) -> Iterator[list[bytes]]:
    """A body byte by byte, and cut at places that are the same in every run."""
    yield [body[at : at + 1] for at in range(len(body))]
    chance = random.Random(7)
    for count in (1, 3, 10, 40):
        places = [0, *sorted(chance.randrange(len(body)) for _ in range(count)), len(body)]
        yield [body[a:b] for a, b in itertools.pairwise(places)]


def comparable(response: ModelResponse) -> bytes:
    """A response without the ids that were made up for it."""
    return re.sub(rb"call_[0-9a-f]{24}", b"made-up", msgspec.json.encode(response))


def message_of(response: ModelResponse) -> Message:
    """The message that the loop makes of a response."""
    return Message(
        MessageRole.ASSISTANT, response.text, response.tool_calls, None, None, dict(response.extras)
    )
