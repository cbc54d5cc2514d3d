"""Record what a model said, and play it back without a network.

A recording is a file of JSON lines, one exchange a line: the request, the pieces of the answer as
they came, and the answer or the error that ended it. Secrets are taken out as it is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from whyloop import errors
from whyloop.errors import ConfigurationError, ModelError, ScriptError, SnapshotError
from whyloop.loop.world import Model
from whyloop.models.asking import asked, name_of, secrets_of
from whyloop.models.comparing import as_json, described, difference, last_words
from whyloop.models.secrets import cleaned, without_secrets
from whyloop.values.messages import Message
from whyloop.values.model import Delta, ModelRequest, ModelResponse, ReasoningDelta, TextDelta
from whyloop.values.text import counted


class RecordedError(Struct, frozen=True, omit_defaults=True):
    """An error that a model raised, enough of it to raise it again."""

    kind: str
    message: str
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None
    retryable: bool = True


class Exchange(Struct, frozen=True, omit_defaults=True):
    """One request and what came of it."""

    messages: list[Message]
    tools: list[str] = []
    instructions: str | None = None
    chunks: list[str] = []
    reasoning_chunks: list[str] = []
    response: ModelResponse | None = None
    error: RecordedError | None = None


class RecordingModel:
    """Passes everything through to another model and keeps it in a file, which it begins anew.

    Keys of the model, the `secrets` that you name, and whatever looks like a credential are left out.
    """

    def __init__(self, inner: Model, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.inner = inner
        self.path = Path(path)
        self.name = name_of(inner)
        self.secrets = (*secrets, *secrets_of(inner))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        chunks: list[str] = []
        thoughts: list[str] = []
        response: ModelResponse | None = None
        try:
            async with asked(self.inner, request) as answer:
                async for item in answer:
                    if isinstance(item, TextDelta):
                        chunks.append(item.text)
                    elif isinstance(item, ReasoningDelta):
                        thoughts.append(item.text)
                    else:
                        response = item
                        self._keep(request, chunks, thoughts, response)
                    yield item
            if response is None:
                self._keep(request, chunks, thoughts)
        except ScriptError:
            raise
        except Exception as error:
            if response is None:
                self._keep(request, chunks, thoughts, error=_recorded(error))
            raise

    def _keep(
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
        )
        # Text by text, and not as JSON: there, the n of a line's end would stand right before a key.
        document = cleaned(msgspec.json.decode(msgspec.json.encode(exchange)), self.secrets)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_json(document) + "\n")

    def _safe(self, chunks: list[str]) -> list[str]:
        """The pieces as they came, or in one if a secret could be put together from them."""
        whole = "".join(chunks)
        safe = without_secrets(whole, self.secrets)
        return chunks if safe == whole else [safe]


class ReplayModel:
    """Answers from a recording; a request that is not in it is a `ScriptError` that shows the difference.

    Each exchange is used once. Equal requests get their answers in the order in which they were
    recorded; sessions that ran side by side may be replayed in any order.
    """

    def __init__(self, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        self.name = f"replay of {self.path.name}"
        self._secrets = tuple(secrets)
        self._left = _read(self.path)
        self._total = len(self._left)

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
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
        """Fail if the recording has an exchange that nobody asked for."""
        if self._left:
            left = counted(len(self._left), "exchange")
            raise ScriptError(f"{self.path.name} has {left} left that nobody asked for")

    def _exchange_for(self, request: ModelRequest) -> Exchange:
        tools = [spec.name for spec in request.tools]
        ours = [
            (part, without_secrets(text, self._secrets))
            for part, text in described(request.messages, tools, request.instructions)
        ]
        if not self._left:
            size = counted(self._total, "exchange")
            raise ScriptError(f"{self.path.name} has {size}, and one more is asked for: {last_words(ours)}")
        differences: list[str] = []
        for index, exchange in enumerate(self._left):
            theirs = described(exchange.messages, exchange.tools, exchange.instructions)
            words = difference(ours, theirs)
            if words is None:
                return self._left.pop(index)
            differences.append(words)
        number = self._total - len(self._left) + 1
        raise ScriptError(f"request {number} is not in {self.path.name}: {differences[0]}")


def _read(path: Path) -> list[Exchange]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigurationError(f"the recording {path} cannot be read: {error.strerror}") from None
    exchanges = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            exchanges.append(msgspec.json.decode(line, type=Exchange))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise SnapshotError(f"{path.name} is no recording: {error}", f"line {number}") from None
    return exchanges


def _recorded(error: Exception) -> RecordedError:
    if not isinstance(error, ModelError):
        kind = TimeoutError if isinstance(error, TimeoutError) else type(error)
        return RecordedError(kind.__name__, str(error))
    # A driver may have errors of its own; what counts is which of ours they are.
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
