"""The one client behind every provider."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import aiohttp

from whyloop import __version__
from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RequestTimeoutError,
    ResponseValidationError,
    WhyloopError,
)
from whyloop.models.answer import Answer
from whyloop.models.failures import http_error, request_id_in, retry_after_seconds
from whyloop.models.proxy import proxy_for, proxy_secrets
from whyloop.models.secrets import header_secrets, without_cut_secrets, without_secrets
from whyloop.models.sessions import Slots, close_here, session_here
from whyloop.models.wire import Settings, WireFormat
from whyloop.rules.classification import error_text
from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.text import shortened

DEFAULT_TIMEOUT = 120.0
MAX_ERROR_BYTES = 100_000
# A request with pictures in it is sent a piece at a time, so that the event loop has time for others.
LARGE_BYTES = 500_000

# An error is known by its status: its words are not worth a long wait.
ERROR_BODY_SECONDS = 5.0
# Nor is the end of a response whose answer is complete; it only lets the connection be used again.
ENDING_SECONDS = 0.2
MAX_WORDS = 600  # Of an error, as much as anyone wants to read.


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
        name: str | None = None,
        api_key: str | None = None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_concurrency: int | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{base_url!r} is no address: it starts with http:// or https://")
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
            raise ConfigurationError(f"timeout is a number of seconds greater than zero, not {timeout!r}")
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise ConfigurationError(
                f"max_concurrency is a whole number of at least 1, not {max_concurrency!r}"
            )
        self.wire = wire
        self.settings = settings
        self.name = name or f"{wire.name}:{settings.model}"
        path = wire.path(settings)
        base = base_url.rstrip("/")
        # Some write the version into the address, others leave it to the path.
        self.url = (base.removesuffix("/v1") if path.startswith("/v1/") else base) + path
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if settings.stream else "application/json",
            "user-agent": f"whyloop/{__version__}",
            **wire.headers(api_key),
            **_checked(headers or {}),
        }
        self._proxy = proxy_for(self.url)
        known = (secret, api_key, *header_secrets(self._headers), *proxy_secrets(self._proxy))
        self.secrets = tuple({value for value in known if value})
        self._timeout = timeout
        self._limit = aiohttp.ClientTimeout(total=timeout)
        self._slots = Slots(max_concurrency)

    def __repr__(self) -> str:
        return f"<model {self.name} at {self.url}>"

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Ask; pieces of text and reasoning come first, the complete response last."""
        body = self.wire.encode(request, self.settings)
        session = await session_here()
        answered, failed = False, None
        headers: dict[str, str] = {}
        ending: list[Delta | ModelResponse] = []
        async with self._slots.here():
            try:
                async with session.post(
                    self.url,
                    data=body if len(body) < LARGE_BYTES else io.BytesIO(body),
                    headers=self._headers,
                    timeout=self._limit,
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as response:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    if not 200 <= response.status < 300:
                        raise await self._refusal(response, headers)
                    answered = True
                    answer = Answer(
                        self.wire,
                        headers.get("content-type", ""),
                        tools=request.tools,
                        schema=self.settings.response_format,
                    )
                    async for chunk in response.content.iter_any():
                        for delta in answer.feed(chunk):
                            yield delta
                        if answer.ended:
                            await _let_end(response)
                            break
                    ending = answer.finish()
            except Exception as error:
                failed = self._classified(error, headers, answered=answered)
        if failed is not None:
            # Raised out here, so that it drags along nothing of the request and its headers.
            raise failed
        # Handed over when all is given back: whoever has the response may come for no more.
        for item in ending:
            yield item

    async def close(self) -> None:
        """Close the connections of the running event loop, which all models on it share.

        Only a loop that is closed by hand needs it: `asyncio.run` and `run_sync` clean up themselves.
        """
        await close_here()

    async def _refusal(self, response: aiohttp.ClientResponse, headers: Mapping[str, str]) -> ModelError:
        """The error that a response without success amounts to."""
        if 300 <= response.status < 400 and "location" in headers:
            where = shortened(without_secrets(headers["location"], self.secrets), 200)
            # The key is for the host that was named, not for whoever that host points to.
            words = f"HTTP {response.status}: the address has moved to {where}; no redirect is followed"
            return ModelError(words, status=response.status)
        return http_error(response.status, headers, await _error_body(response), self.secrets)

    def _classified(self, error: Exception, headers: Mapping[str, str], *, answered: bool) -> Exception:
        """The error that a policy can act on, with every secret taken out of its words."""
        match error:
            case WhyloopError():
                told: WhyloopError = error
            case TimeoutError():
                told = RequestTimeoutError(f"{self.name} gave no complete answer within {self._timeout:g} s")
            case aiohttp.ClientHttpProxyError():
                told = ModelError(
                    f"{self.name}: the proxy answered HTTP {error.status}: {error.message}",
                    status=error.status,
                )
            case aiohttp.ClientResponseError():
                # What the client could not make out; its status is the client's own invention.
                told = ResponseValidationError(f"{self.name}: the response cannot be read: {error.message}")
            case aiohttp.ClientError() | OSError() if answered:
                told = ResponseValidationError(f"{self.name}: the response was cut off: {_words(error)}")
            case _ if answered:
                told = ResponseValidationError(
                    f"{self.name}: the response cannot be read: {error_text(error)}"
                )
            case aiohttp.ClientConnectorError():
                told = ModelError(f"{self.name} could not be reached: {_words(error)}")
            case aiohttp.ClientError() | OSError():
                told = ModelError(f"{self.name}: the connection was lost before an answer: {_words(error)}")
            case _:
                return error
        if isinstance(told, ModelError):
            self._complete(told, headers)
        told.args = (self._shown(str(told)), *told.args[1:])
        return told.with_traceback(None)

    def _complete(self, error: ModelError, headers: Mapping[str, str]) -> None:
        """Fill in what only the headers tell, also of an error inside a response that began well."""
        if error.request_id is None:
            error.request_id = request_id_in(headers)
        if error.request_id is not None:
            error.request_id = self._shown(error.request_id)
        if error.retry_after is None and not isinstance(error, ResponseValidationError):
            error.retry_after = retry_after_seconds(headers)

    def _shown(self, words: str) -> str:
        """The words without secrets, and only then shortened."""
        without = without_cut_secrets(without_secrets(words, self.secrets), self.secrets)
        return shortened(without, MAX_WORDS)


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error's words as there is, and no more than anyone wants to read."""
    body = b""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
    return body[:MAX_ERROR_BYTES].decode("utf-8", "replace").encode()  # Some proxies still speak Latin-1.


async def _let_end(response: aiohttp.ClientResponse) -> None:
    """Give the response a moment to end, so that its connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(ENDING_SECONDS):
            await response.content.readany()


def _words(error: Exception) -> str:
    """What went wrong with a connection, without the client's own way of putting it."""
    match error:
        case aiohttp.ClientConnectorError(os_error=cause):
            words = cause.strerror or str(cause)
            if cause.errno and words.startswith("Connect call failed"):
                words = os.strerror(cause.errno)
            return f"{error.host}:{error.port}: {words}"
        case aiohttp.ClientPayloadError() if "not completed" in str(error):
            return "the connection ended before the response did"
    return str(error) or type(error).__name__


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that can be sent, in lower case, so that one that is given takes the place of ours."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"header {name!r}: names and values are text")
        if not name.isascii() or not (name + value).isprintable() or not name.strip():
            raise ConfigurationError(f"header {name!r} has characters in it that cannot be sent")
    return {name.lower(): value for name, value in headers.items()}
