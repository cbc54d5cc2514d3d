"""Record the answers of a model, and replay them without a network.

A recording is a JSON Lines file with one exchange on each line: the request, the pieces of the answer as they
arrived, and the answer or the error that ended it. Secrets are removed before it is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from whyloop import errors
from whyloop.errors import ConfigurationError, ModelError, ScriptError, SnapshotError
from whyloop.loop.output import output_mode_of
from whyloop.loop.world import Model
from whyloop.models.fallback import answer_of, asked_once, model_name, secrets_of
from whyloop.models.secrets import cleaned, without_secrets
from whyloop.values.credentials import REMOVED
from whyloop.values.messages import Message
from whyloop.values.model import (
    OUTPUT_TOOL,
    Delta,
    ModelRequest,
    ModelResponse,
    OutputMode,
    ReasoningDelta,
    TextDelta,
)
from whyloop.values.text import counted, shortened

NamedTexts = list[tuple[str, str]]
"""A request part by part: the name of each part, and its text."""


class RecordedError(Struct, frozen=True, omit_defaults=True):
    """An error that a model raised, with what is needed to raise it again."""

    kind: str
    """The name of its class."""
    message: str
    status: int | None = None
    """The HTTP status."""
    request_id: str | None = None
    """The provider's id of the request."""
    retry_after: float | None = None
    """The seconds that the provider asked to wait."""
    retryable: bool = True
    """Whether another attempt may succeed."""


class Exchange(Struct, frozen=True, omit_defaults=True):
    """One request, and the answer or the error that it led to."""

    messages: list[Message]
    tools: list[str] = []
    """The names of the tools that were offered."""
    instructions: str | None = None
    chunks: list[str] = []
    """The pieces of text, as they came."""
    reasoning_chunks: list[str] = []
    """The pieces of reasoning, as they came."""
    response: ModelResponse | None = None
    """The complete answer; None if there was none."""
    error: RecordedError | None = None
    """The error that ended the exchange, if one did."""
    output: str | None = None
    """The name of the output that the provider was asked for; None if it was not."""


class RecordingModel:
    """A model that passes requests to another one and records the exchanges.

    The model's keys, your `secrets`, and text that looks like a credential are removed.

    Args:
        inner: The model that answers.
        path: The file to write; an existing file is replaced.
        secrets: Texts that must not be recorded. Default: none but the model's keys.
    """

    def __init__(self, inner: Model, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.inner = inner
        """The model that answers."""
        self.path = Path(path)
        """The file that is written."""
        self.name = model_name(inner)
        """The name of the model that answers."""
        self.secrets = (*secrets, *secrets_of(inner))
        """Texts that are not recorded."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    def asked_once(self) -> RecordingModel:
        """Return this model as one of a fallback that does not repeat requests."""
        once = copy(self)
        once.inner = asked_once(self.inner)
        return once

    def output_mode(self, *, with_tools: bool, schema: Mapping[str, Any]) -> OutputMode:
        """Return the form in which the other model gives typed answers."""
        return output_mode_of(self.inner, with_tools=with_tools, schema=schema)

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the answer of the other model, and record it."""
        chunks: list[str] = []
        thoughts: list[str] = []
        response: ModelResponse | None = None
        try:
            async with answer_of(self.inner, request) as answer:
                async for item in answer:
                    if isinstance(item, TextDelta):
                        chunks.append(item.text)
                    elif isinstance(item, ReasoningDelta):
                        thoughts.append(item.text)
                    elif isinstance(item, ModelResponse):
                        response = item
                        self._record(request, chunks, thoughts, response)
                    yield item
            if response is None:
                self._record(request, chunks, thoughts)
        except ScriptError:
            raise
        except Exception as error:
            if response is None:
                self._record(request, chunks, thoughts, error=_recorded(error))
            raise

    def _record(
        self,
        request: ModelRequest,
        chunks: list[str],
        thoughts: list[str],
        response: ModelResponse | None = None,
        error: RecordedError | None = None,
    ) -> None:
        exchange = Exchange(
            list(request.messages),
            [spec.name for spec in request.tools],
            request.instructions,
            self._safe(chunks),
            self._safe(thoughts),
            response,
            error,
            request.output.name if request.output else None,
        )
        # Text by text, not as JSON, where the n of an escaped line end precedes a key.
        document = cleaned(msgspec.json.decode(msgspec.json.encode(exchange)), self.secrets)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_as_json(document) + "\n")

    def _safe(self, chunks: list[str]) -> list[str]:
        """Return the pieces as they arrived, or joined, if a secret spans several."""
        whole = "".join(chunks)
        safe = without_secrets(whole, self.secrets)
        return chunks if safe == whole else [safe]


class ReplayModel:
    """A model that answers from a recording; an unknown request is a `ScriptError`.

    Each exchange is used once. Equal requests get their answers in recorded order; sessions that ran at the
    same time may be replayed in any order.

    Args:
        path: The recording.
        secrets: The texts that were removed from the recording. Default: none.
    """

    def __init__(self, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        """The recording."""
        self.name = f"replay of {self.path.name}"
        """The name of the model in a trace."""
        self._secrets = tuple(secrets)
        self._left = _read(self.path)
        self._total = len(self._left)

    def output_mode(self, *, with_tools: bool, schema: Mapping[str, Any]) -> OutputMode:
        """Return the form in which the recorded model gave typed answers."""
        if any(exchange.output is not None for exchange in self._left):
            return OutputMode.NATIVE
        has_tool = any(OUTPUT_TOOL in exchange.tools for exchange in self._left)
        return OutputMode.TOOL if has_tool else OutputMode.PROMPT

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the recorded answer to a request."""
        exchange = self._exchange_for(request)
        for thought in exchange.reasoning_chunks:
            yield ReasoningDelta(thought)
        for chunk in exchange.chunks:
            yield TextDelta(chunk)
        if exchange.error is not None:
            raise _raised(exchange.error)
        if exchange.response is not None:
            yield exchange.response

    def assert_finished(self) -> None:
        """Fail if the recording has an exchange that was not used."""
        if self._left:
            left = counted(len(self._left), "exchange")
            raise ScriptError(f"{self.path.name} has {left} left that no request used")

    def _exchange_for(self, request: ModelRequest) -> Exchange:
        tools = [spec.name for spec in request.tools]
        ours = [
            (part, without_secrets(text, self._secrets))
            for part, text in _named_texts(request.messages, tools, request.instructions)
        ]
        if not self._left:
            size = counted(self._total, "exchange")
            raise ScriptError(
                f"{self.path.name} has only {size}, and the agent made one more request: {_ending(ours)}"
            )
        differences: list[str] = []
        for index, exchange in enumerate(self._left):
            theirs = _named_texts(exchange.messages, exchange.tools, exchange.instructions)
            different = _difference(ours, theirs)
            if different is None:
                return self._left.pop(index)
            differences.append(different)
        number = self._total - len(self._left) + 1
        raise ScriptError(f"request {number} is not in {self.path.name}: {differences[0]}")


def _read(path: Path) -> list[Exchange]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigurationError(f"cannot read the recording {path}: {error.strerror}") from None
    exchanges = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            exchanges.append(msgspec.json.decode(line, type=Exchange))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise SnapshotError(f"{path.name} is not a recording: {error}", f"line {number}") from None
    return exchanges


def _recorded(error: Exception) -> RecordedError:
    if not isinstance(error, ModelError):
        kind = TimeoutError if isinstance(error, TimeoutError) else type(error)
        return RecordedError(kind.__name__, str(error))
    # A model may raise its own subclass; the nearest class of ours is raised instead.
    name = next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
    return RecordedError(name, str(error), error.status, error.request_id, error.retry_after, error.retryable)


def _raised(recorded: RecordedError) -> Exception:
    kind = getattr(errors, recorded.kind, None)
    if isinstance(kind, type) and issubclass(kind, ModelError):
        return kind(
            recorded.message,
            status=recorded.status,
            request_id=recorded.request_id,
            retry_after=recorded.retry_after,
            retryable=recorded.retryable,
        )
    if recorded.kind == "TimeoutError":
        return TimeoutError(recorded.message)
    unknown: type[Exception] = type(recorded.kind, (Exception,), {})  # Of the same name, for the trace.
    return unknown(recorded.message)


def _named_texts(messages: Iterable[Message], tools: list[str], instructions: str | None) -> NamedTexts:
    """Return the parts of a request, in the order in which they are compared."""
    texts = [(f"message {number}", _as_json(message)) for number, message in enumerate(messages, 1)]
    return [("instructions", _as_json(instructions)), ("tools", _as_json(tools)), *texts]


def _difference(ours: NamedTexts, theirs: NamedTexts) -> str | None:
    """Return the first difference of two requests; None if they are the same."""
    for (part, text), (_, recorded) in zip(ours, theirs, strict=False):
        if not _same(text, recorded):
            now, then = _around_difference(text, recorded)
            return f"{part} is {now}, and was {then} when it was recorded"
    if len(ours) > len(theirs):
        return f"it continues after the recorded one, up to {_ending(ours)}"
    if len(ours) < len(theirs):
        return f"it ends before the recorded one, which continues up to {_ending(theirs)}"
    return None


def _ending(parts: NamedTexts) -> str:
    """Return the last part of a request, shortened."""
    return shortened(parts[-1][1], 200)


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _same(text: str, recorded: str) -> bool:
    """Return whether two texts are equal, apart from a secret that was removed."""
    if REMOVED not in recorded:
        return text == recorded
    first, *parts, last = recorded.split(REMOVED)
    position = len(first)
    for part in parts:  # Each secret has at least one character.
        at = text.find(part, position + 1)
        if at < 0:
            return False
        position = at + len(part)
    return text.startswith(first) and text.endswith(last) and position < len(text) - len(last)


def _around_difference(ours: str, theirs: str) -> tuple[str, str]:
    """Return both texts from a little before the first difference."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    first = next((index for index, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    start = max(0, first - 40)
    dots = "…" if start else ""
    return dots + shortened(ours[start:], 160), dots + shortened(theirs[start:], 160)
