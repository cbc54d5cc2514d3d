"""The one client behind every provider."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import aiohttp

from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RequestTimeoutError,
    ResponseValidationError,
    WhyloopError,
)
from whyloop.models.failures import http_error
from whyloop.models.secrets import REMOVED
from whyloop.models.sse import EventParser
from whyloop.models.wire import Settings, WireFormat
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta

DEFAULT_TIMEOUT = 120.0
MAX_ERROR_BYTES = 100_000


class HttpModel:
    """A model behind an address: asks, streams, and turns whatever goes wrong into a classified error.

    It never retries by itself: that is for the error policy to decide, where it can be seen.
    """

    def __init__(
        self,
        wire: WireFormat,
        settings: Settings,
        *,
        base_url: str,
        api_key: str | None = None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_concurrency: int | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{base_url!r} is no address: it starts with http:// or https://")
        if not timeout > 0:
            raise ConfigurationError(f"timeout is a number of seconds greater than zero, not {timeout!r}")
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency is at least 1, not {max_concurrency!r}")
        self.wire = wire
        self.settings = settings
        self.url = base_url.rstrip("/") + wire.path(settings)
        self._secret = secret or api_key
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if settings.stream else "application/json",
            **wire.headers(api_key),
            **(headers or {}),
        }
        self._timeout = timeout
        self._most = max_concurrency
        self._sessions = _Sessions()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        return f"{self.wire.name}:{self.settings.model}"

    def __repr__(self) -> str:
        return f"<model {self.name} at {self.url}>"

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        """Ask; pieces of text come first, the complete response last."""
        body = self.wire.encode(request, self.settings)
        slot = self._slot()
        if slot is not None:
            await slot.acquire()
        try:
            async for item in self._exchange(body):
                yield item
        except WhyloopError as error:
            raise self._without_key(error) from None
        except TimeoutError:
            raise RequestTimeoutError(f"{self.name} did not answer within {self._timeout:g} s") from None
        except aiohttp.ClientPayloadError as error:
            raise ResponseValidationError(f"{self.name}: the response was cut off: {error}") from None
        except aiohttp.ClientError as error:
            words = str(error) or type(error).__name__
            raise self._without_key(ModelError(f"{self.name} could not be reached: {words}")) from None
        finally:
            if slot is not None:
                slot.release()

    async def _exchange(self, body: bytes) -> AsyncIterator[TextDelta | ModelResponse]:
        session = await self._sessions.current()
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        async with session.post(
            self.url, data=body, headers=self._headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                text = await response.content.read(MAX_ERROR_BYTES)
                raise http_error(response.status, _lower(response.headers), text)
            shown = 0
            if "event-stream" in response.headers.get("content-type", ""):
                parser, reader = EventParser(), self.wire.reader()
                async for chunk in response.content.iter_any():
                    for event in parser.feed(chunk):
                        for delta in reader.read(event.name, event.data):
                            shown += len(delta.text)
                            yield delta
                for event in parser.close():
                    for delta in reader.read(event.name, event.data):
                        shown += len(delta.text)
                        yield delta
                complete = reader.finish()
            else:
                complete = self.wire.decode(await response.read())
            # What was held back until it was clear that it is language, or did not come in pieces.
            if rest := complete.text[shown:]:
                yield TextDelta(rest)
            yield complete

    def _slot(self) -> asyncio.Semaphore | None:
        if self._most is None:
            return None
        loop = asyncio.get_running_loop()
        return self._slots.setdefault(loop, asyncio.Semaphore(self._most))

    def _without_key(self, error: WhyloopError) -> WhyloopError:
        """The error, with the key taken out should a provider have repeated it."""
        if self._secret and self._secret in str(error):
            error.args = (str(error).replace(self._secret, REMOVED), *error.args[1:])
        return error


class _Sessions:
    """One HTTP session an event loop, closed when the loop shuts down."""

    def __init__(self) -> None:
        self._keepers: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[Any, None]]
        ] = weakref.WeakKeyDictionary()

    async def current(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        kept = self._keepers.get(loop)
        if kept is None or kept[0].closed:
            # An event loop closes its generators when it shuts down, and with this one the session:
            # nobody has to remember to.
            keeper = _session()
            kept = self._keepers[loop] = (await anext(keeper), keeper)
        return kept[0]


async def _session() -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        yield session


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
