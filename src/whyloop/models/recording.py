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
from whyloop.errors import ModelError, ScriptError, SnapshotError
from whyloop.loop.ports import Model
from whyloop.models.secrets import without_secrets
from whyloop.rules.classify import words_of
from whyloop.values.messages import Message
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta
from whyloop.values.text import shortened


class RecordedError(Struct, frozen=True):
    """An error that a model raised, enough of it to raise it again."""

    kind: str
    message: str
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None


class Exchange(Struct, frozen=True):
    """One request and what came of it."""

    messages: list[Message]
    tools: list[str]
    chunks: list[str]
    response: ModelResponse | None = None
    error: RecordedError | None = None
    version: int = 1


class RecordingModel:
    """Passes everything through to another model and keeps it in a file."""

    def __init__(self, inner: Model, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.inner = inner
        self.path = Path(path)
        self._secrets = tuple(secrets)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    @property
    def name(self) -> str:
        return str(getattr(self.inner, "name", type(self.inner).__name__))

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        chunks: list[str] = []
        response: ModelResponse | None = None
        try:
            async for item in self.inner.respond(request):
                if isinstance(item, TextDelta):
                    chunks.append(item.text)
                else:
                    response = item
                yield item
        except Exception as error:
            self._write(request, chunks, None, _recorded(error))
            raise
        self._write(request, chunks, response, None)

    def _write(
        self,
        request: ModelRequest,
        chunks: list[str],
        response: ModelResponse | None,
        error: RecordedError | None,
    ) -> None:
        tools = [spec.name for spec in request.tools]
        exchange = Exchange(list(request.messages), tools, chunks, response, error)
        line = without_secrets(msgspec.json.encode(exchange).decode(), self._secrets)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class ReplayModel:
    """Answers from a recording, in order; a request that differs from the recorded one is a `ScriptError`."""

    def __init__(self, path: str | Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        self._secrets = tuple(secrets)
        self._exchanges = _read(self.path)
        self._next = 0

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if self._next >= len(self._exchanges):
            raise ScriptError(
                f"{self.path.name} has {len(self._exchanges)} exchanges, and one more is asked for"
            )
        exchange = self._exchanges[self._next]
        self._next += 1
        self._compare(request, exchange)
        for chunk in exchange.chunks:
            yield TextDelta(chunk)
        if exchange.error is not None:
            raise _raised(exchange.error)
        yield exchange.response or ModelResponse()

    def assert_finished(self) -> None:
        """Fail if the recording has an exchange that nobody asked for."""
        if self._next < len(self._exchanges):
            left = len(self._exchanges) - self._next
            raise ScriptError(f"{self.path.name} has {left} more exchanges that nobody asked for")

    def _compare(self, request: ModelRequest, exchange: Exchange) -> None:
        asked = msgspec.json.decode(
            without_secrets(msgspec.json.encode(list(request.messages)).decode(), self._secrets),
            type=list[Message],
        )
        if asked == exchange.messages:
            return
        for index, (ours, theirs) in enumerate(zip(asked, exchange.messages, strict=False)):
            if ours != theirs:
                raise ScriptError(
                    f"request {self._next} differs from {self.path.name} in message {index}: "
                    f"{shortened(repr(ours), 200)} instead of {shortened(repr(theirs), 200)}"
                )
        raise ScriptError(
            f"request {self._next} has {len(asked)} messages, "
            f"and {len(exchange.messages)} in {self.path.name}"
        )


def _read(path: Path) -> list[Exchange]:
    exchanges = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            exchanges.append(msgspec.json.decode(line, type=Exchange))
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"{path.name} is no recording: {error}", f"line {number}") from None
    return exchanges


def _recorded(error: Exception) -> RecordedError:
    if not isinstance(error, ModelError):
        return RecordedError(type(error).__name__, words_of(error))
    return RecordedError(type(error).__name__, str(error), error.status, error.request_id, error.retry_after)


def _raised(recorded: RecordedError) -> Exception:
    kind = getattr(errors, recorded.kind, None)
    if isinstance(kind, type) and issubclass(kind, ModelError):
        return kind(
            recorded.message,
            status=recorded.status,
            request_id=recorded.request_id,
            retry_after=recorded.retry_after,
        )
    return (
        TimeoutError(recorded.message) if recorded.kind == "TimeoutError" else RuntimeError(recorded.message)
    )
