"""A model that follows a script, one reply a request, and a clock that only a test moves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.errors import ScriptError
from whyloop.loop.world import Timeout, Timer
from whyloop.values.messages import ToolCall
from whyloop.values.model import (
    NO_USAGE,
    Delta,
    FinishReason,
    ModelRequest,
    ModelResponse,
    OutputMode,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from whyloop.values.text import shortened

_NOTHING = object()


class Reply(Struct, frozen=True):
    """One reply of a script; make it with `text`, `call` or `calls`."""

    text: str
    """The text of the answer."""
    tool_calls: tuple[ToolCall, ...]
    """The tool calls that it asks for."""
    finish_reason: FinishReason
    """The reason for which the answer ended."""
    usage: Usage
    """The tokens that it used."""
    reasoning: str = ""
    """The reasoning before the answer."""


def text(
    content: str,
    *,
    finish_reason: str = "stop",
    usage: Usage | Mapping[str, int] | int | None = None,
    reasoning: str = "",
) -> Reply:
    """Return a reply that is text.

    Args:
        content: The text.
        finish_reason: A value of `FinishReason`. Default: "stop".
    """
    return Reply(content, (), FinishReason(finish_reason), _usage(usage), reasoning)


def call(
    tool: str,
    arguments: Mapping[str, Any] | str | None = None,
    text: str = "",
    *,
    id: str | None = None,
    finish_reason: str = "tool_calls",
    usage: Usage | Mapping[str, int] | int | None = None,
    reasoning: str = "",
) -> Reply:
    """Return a reply that calls one tool.

    Arguments that are a string are sent as they are, JSON or not.

    Without an id the model numbers its calls: call_1, call_2, …

    Args:
        tool: The name of the tool.
        arguments: The arguments, as a mapping or as text. Default: none.
        text: The text beside the call. Default: none.
        id: The id of the call.
        finish_reason: A value of `FinishReason`. Default: "tool_calls".
    """
    written = arguments if isinstance(arguments, str) else _json(arguments or {})
    wanted = ToolCall(id or "", tool, ToolCall.parse_arguments(written))
    return Reply(text, (wanted,), FinishReason(finish_reason), _usage(usage), reasoning)


def calls(
    *replies: Reply,
    text: str = "",
    finish_reason: str = "tool_calls",
    usage: Usage | Mapping[str, int] | int | None = None,
    reasoning: str = "",
) -> Reply:
    """Return a reply with several calls.

    Args:
        *replies: Replies that `call` made.
        text: The text beside the calls. Default: none.
        finish_reason: A value of `FinishReason`. Default: "tool_calls".
    """
    wanted = tuple(wanted for reply in replies for wanted in reply.tool_calls)
    joined = text or "\n".join(reply.text for reply in replies if reply.text)
    total = _usage(usage) if usage is not None else sum((reply.usage for reply in replies), NO_USAGE)
    return Reply(joined, wanted, FinishReason(finish_reason), total, reasoning)


class ScriptedModel:
    """Give the replies of a script in order and keep every request; an exception in the script is raised.

    A request without a reply is a `ScriptError`. As a context manager, or with `assert_finished`, the model
    also fails on a reply that was never requested.

    Args:
        replies: Replies, texts, and exceptions to be raised, in order.
        output_mode: How it gives typed answers. Default: as a tool call.
        by_word: True to stream texts word by word, as a real model does. Default: False, in one piece.
        name: The name in notes about it. Default: the name of its class.
    """

    def __init__(
        self,
        replies: Iterable[Reply | str | BaseException | type[BaseException]],
        *,
        output_mode: OutputMode | str = OutputMode.TOOL,
        by_word: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name or type(self).__name__
        """The name in notes about it."""
        self.output_mode = output_mode
        """How it gives typed answers."""
        self.by_word = by_word
        """True if it streams texts word by word."""
        self._replies = iter(replies)
        self._calls = 0
        self.requests: list[ModelRequest] = []
        """The requests so far, in order."""

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the next reply of the script."""
        return _Stream(self, request)

    def reply_to(self, request: ModelRequest) -> ModelResponse:
        """Return the next reply of the script; raise the exception that it holds."""
        self.requests.append(request)
        reply = next(self._replies, _NOTHING)
        if isinstance(reply, Reply):
            return ModelResponse(
                reply.text,
                self._numbered(reply.tool_calls),
                reply.finish_reason,
                reply.usage,
                reply.reasoning,
            )
        if isinstance(reply, str):
            return ModelResponse(reply)
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        if reply is not _NOTHING:
            raise ScriptError(f"invalid reply {reply!r}: use text(…), call(…), calls(…) or an exception")
        number, ending = len(self.requests), _last_words(request)
        raise ScriptError(f"the script has no reply to request {number}, which ends with: {ending}")

    def assert_finished(self) -> None:
        """Fail if the script has a reply that was never requested."""
        left = next(self._replies, _NOTHING)
        if left is not _NOTHING:
            number = len(self.requests)
            raise ScriptError(
                f"the script has a reply that was never requested, after request {number}: {left!r}"
            )

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.assert_finished()

    def _numbered(self, wanted: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls with ids; those that have none become call_1, call_2, …"""
        numbered = []
        for call in wanted:
            self._calls += 1
            numbered.append(call if call.id else ToolCall(f"call_{self._calls}", call.name, call.arguments))
        return tuple(numbered)


class _Stream:
    """A reply as it comes in: its reasoning, its text, then all of it.

    Not a generator: an event loop keeps books on every generator, and a test model should cost nothing.
    """

    __slots__ = ("_items", "_model", "_request")

    def __init__(self, model: ScriptedModel, request: ModelRequest) -> None:
        self._model = model
        self._request = request
        self._items: list[Delta | ModelResponse] | None = None  # Those to come, the next one last.

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Delta | ModelResponse:
        items = self._items
        if items is None:
            response = self._model.reply_to(self._request)
            items = self._items = [response]
            if response.text:
                items += map(TextDelta, self._pieces(response.text))
            if response.reasoning:
                items += map(ReasoningDelta, self._pieces(response.reasoning))
        if not items:
            raise StopAsyncIteration
        return items.pop()

    def _pieces(self, text: str) -> list[str]:
        """Return the pieces of a text, last first."""
        return re.split(r"(?<=\s)(?=\S)", text)[::-1] if self._model.by_word else [text]


def _json(arguments: Mapping[str, Any]) -> str:
    """Return the arguments as a model would write them, even NaN."""
    import json

    try:
        return json.dumps(arguments, default=msgspec.to_builtins)
    except (TypeError, ValueError, RecursionError) as error:
        raise ScriptError(f"a model could not send these arguments: {error}") from None


def _usage(usage: Usage | Mapping[str, int] | int | None) -> Usage:
    """Return the usage; a number is the total of the tokens."""
    if usage is None:
        return NO_USAGE
    if isinstance(usage, Mapping):
        named: dict[str, Any] = dict(usage)
        return Usage(**named)
    if isinstance(usage, int):
        return Usage(input=usage)
    if not isinstance(usage, Usage):
        raise ScriptError(f"invalid usage {usage!r}: use a Usage, a number of tokens or a mapping")
    return usage


def _last_words(request: ModelRequest) -> str:
    if not request.messages:
        return "nothing"
    last = request.messages[-1]
    return f"{last.role}: {shortened(last.text, 80)!r}"


# A clock

# After a timeout has passed on this clock, a call has this much real time to return by itself before it is
# interrupted. A call that returns never waits for it.
_GRACE_SECONDS = 0.05


class FakeClock:
    """A clock for tests: `advance` moves it, and its `sleep` returns at once and moves it too.

    A timeout ends when the clock is moved past it, and also after as many real seconds, since code that hangs
    does not move a clock.

    Args:
        start: The time at the beginning: a datetime, seconds since 1970, or an ISO text. Default: 2026-01-01,
            UTC.
    """

    def __init__(self, start: datetime | float | str | None = None) -> None:
        if start is None:
            start = datetime(2026, 1, 1, tzinfo=UTC)
        elif isinstance(start, str):
            start = datetime.fromisoformat(start)
        elif not isinstance(start, datetime):
            start = datetime.fromtimestamp(start, UTC)
        self._start = start if start.tzinfo else start.replace(tzinfo=UTC)
        self._elapsed = 0.0
        self._waiting: list[_FakeTimeout | _FakeTimer] = []
        self.sleeps: list[float] = []
        """The seconds of each sleep, in order."""

    def now(self) -> datetime:
        """Return the time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that have passed since the beginning."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the clock; callable from any thread.

        Args:
            seconds: The seconds that pass.
        """
        self._elapsed += seconds
        for each in list(self._waiting):
            each.notice(self._elapsed)

    def watch(self, waiting: _FakeTimeout | _FakeTimer) -> None:
        """End a timeout or a timer when the clock passes it.

        Args:
            waiting: The timeout or timer.
        """
        self._waiting.append(waiting)

    def forget(self, waiting: _FakeTimeout | _FakeTimer) -> None:
        """Leave a timeout or a timer alone from now on.

        Args:
            waiting: The timeout or timer.
        """
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def watches(self, waiting: _FakeTimeout | _FakeTimer) -> bool:
        """Return whether a timeout or a timer is still waiting.

        Args:
            waiting: The timeout or timer.
        """
        return waiting in self._waiting

    async def sleep(self, seconds: float) -> None:
        """Move the clock, and return at once.

        Args:
            seconds: The seconds that pass.
        """
        self.sleeps.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> Timeout:
        """Return a timeout for an `async with` block.

        Args:
            seconds: The seconds until it ends; None for never.
        """
        return asyncio.timeout(None) if seconds is None else _FakeTimeout(self, seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function when the clock has passed these seconds.

        Args:
            seconds: The seconds until then.
            callback: The function.
        """
        return _FakeTimer(self, seconds, callback)


class _FakeTimer:
    """A timer that fires when a fake clock is moved past it, or after as many real seconds."""

    def __init__(self, clock: FakeClock, seconds: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(max(seconds, _GRACE_SECONDS), self._fire)
        clock.watch(self)

    def cancel(self) -> None:
        self._handle.cancel()
        self._clock.forget(self)

    def notice(self, elapsed: float) -> None:
        if elapsed >= self._deadline and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fire_soon)

    def _fire_soon(self) -> None:
        if self._clock.watches(self) and not self._handle.cancelled():
            self._handle.cancel()
            self._handle = self._loop.call_later(_GRACE_SECONDS, self._fire)

    def _fire(self) -> None:
        self._clock.forget(self)
        self._callback()


class _FakeTimeout:
    """A timeout that passes with a fake clock, or with real time."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._loop = asyncio.get_running_loop()
        self._real = asyncio.timeout(max(seconds, _GRACE_SECONDS))

    async def __aenter__(self) -> object:
        self._clock.watch(self)
        return await self._real.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._clock.forget(self)
        await self._real.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        return self._real.expired()

    def notice(self, elapsed: float) -> None:
        if elapsed >= self._deadline:
            self._loop.call_soon_threadsafe(self._cut_off_soon)

    def _cut_off_soon(self) -> None:
        if self._clock.watches(self) and not self.expired():
            self._real.reschedule(self._loop.time() + _GRACE_SECONDS)
