"""The one HTTP client behind every provider: requests, connections, proxies, errors."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from copy import copy
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from msgspec.structs import replace

from whyloop import __version__
from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RequestTimeoutError,
    ResponseValidationError,
    WhyloopError,
)
from whyloop.models.prices import PriceList
from whyloop.models.provider import ProviderApi, Settings, settings_for
from whyloop.models.repeats import DEFAULT_RETRIES, Repeats, checked_retries
from whyloop.models.response import ResponseBody, http_error, request_id_in, retry_after_seconds
from whyloop.models.secrets import header_secrets, without_cut_secrets, without_secrets
from whyloop.models.structured_output import supported_mode
from whyloop.rules.classification import error_text
from whyloop.values.model import Delta, ModelRequest, ModelResponse, ModelSource, OutputMode
from whyloop.values.price import Price
from whyloop.values.text import shortened

REQUEST_TIMEOUT = 120.0
MAX_ERROR_BYTES = 100_000
MAX_ERROR_LENGTH = 600
# A request with images is sent piece by piece, so that the event loop has time for other tasks.
LARGE_BYTES = 500_000

# How long to wait for the body of an error, whose status is known already.
ERROR_BODY_SECONDS = 5.0
# How long to wait for the end of a response after its answer is complete, so that its connection can be used
# again.
ENDING_SECONDS = 0.2


class HttpModel:
    """A model behind an address; every failure becomes a classified error.

    A request that fails before the first piece of its answer is repeated a few times; the error policy
    decides about what still fails, and the trace shows both.
    """

    def __init__(
        self,
        api: ProviderApi,
        settings: Settings,
        *,
        base_url: str,
        name: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = REQUEST_TIMEOUT,
        max_concurrency: int | None = None,
        price: Price | None = None,
        retries: int | None = None,
    ) -> None:
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
            raise ConfigurationError(f"invalid timeout {timeout!r}: use seconds, greater than zero")
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise ConfigurationError(
                f"invalid max_concurrency {max_concurrency!r}: use a whole number of at least 1"
            )
        self.api = api
        self.settings = settings
        self.name = name or f"{api.name}:{settings.model}"
        path = api.path(settings)
        base = base_url.rstrip("/")
        # Some hosts have the version in the address, others in the path.
        self.url = (base.removesuffix("/v1") if path.startswith("/v1/") else base) + path
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if settings.stream else "application/json",
            "user-agent": f"whyloop/{__version__}",
            **api.headers(api_key),
            **_checked(headers or {}),
        }
        self._proxy = proxy_for(self.url)
        password = urlsplit(self._proxy).password if self._proxy else None
        known = (api_key, password, *header_secrets(self._headers))
        self.secrets = tuple({value for value in known if value})
        self._timeout = timeout
        self._limit = aiohttp.ClientTimeout(total=timeout)
        self._slots = _Slots(max_concurrency)
        self._retries = checked_retries(retries)
        self.retries = DEFAULT_RETRIES if retries is None else retries
        self._price = price
        # Imported now, not with the first answer, since it takes a quarter of a second.
        self._list = PriceList.open(self.url) if price is None else None

    def __repr__(self) -> str:
        return f"<model {self.name} at {self.url}>"

    def output_mode(self, *, with_tools: bool, schema: Mapping[str, Any]) -> OutputMode:
        """Return the form in which this model gives typed answers, with tools or without."""
        if self.settings.response_format is not None:
            raise ConfigurationError(
                f"{self.name} has a response_format and its agent an output_type: pass the output_type alone"
            )
        return supported_mode(self.api.name, self.settings, schema, with_tools=with_tools)

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield pieces of text and reasoning as they arrive, then the complete response."""
        body = self.api.encode(*settings_for(request, self.settings))
        repeats = Repeats(self.retries)
        while True:
            headers: dict[str, str] = {}
            answer: ResponseBody | None = None
            failed: Exception | None = None
            async with self._slots.take():
                try:
                    async with (await _open_session()).post(
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
                        answer = self._body(headers)
                        async for chunk in response.content.iter_any():
                            for delta in answer.feed(chunk):
                                yield delta
                            if answer.ended:
                                await _wait_for_end(response)
                                break
                        ending = answer.finish()
                except Exception as error:
                    failed = self._classified(error, headers, answered=answer is not None)
                    cause = _cause_to_repeat(error, failed, answer)
            if failed is None:
                break
            if cause is None or not await repeats.wait_after(cause, failed):
                # Raised here, so that its traceback holds nothing of the request and its headers.
                raise failed
        # Yielded after the connection is released: the caller may not read further.
        for item in ending:
            yield self._finished(item, repeats) if isinstance(item, ModelResponse) else item

    def _body(self, headers: Mapping[str, str]) -> ResponseBody:
        """Return the reader of a body with these headers."""
        content_type, schema = headers.get("content-type", ""), self.settings.response_format
        return ResponseBody(self.api, content_type, self.url, schema=schema)

    def _finished(self, response: ModelResponse, repeats: Repeats) -> ModelResponse:
        """Return the response with its cost and the attempts before it."""
        response = self._priced(response)
        if not repeats.attempts:
            return response
        source = response.source or ModelSource()
        return replace(response, source=replace(source, attempts=tuple(repeats.attempts)))

    def asked_once(self) -> HttpModel:
        """Return this model without repeats, unless it was given a number of them."""
        if self._retries is not None:
            return self
        once = copy(self)
        once.retries = 0
        return once

    def _priced(self, response: ModelResponse) -> ModelResponse:
        """Return the response with its cost: your price, the host's, or the list's."""
        usage = response.usage
        if self._price is not None:
            return replace(response, usage=self._price.priced(usage))
        if usage.cost is not None or self._list is None:
            return response
        return replace(response, usage=replace(usage, cost=self._list.cost(response, self.settings.model)))

    async def close(self) -> None:
        """Close the connections of the running event loop, which all models on it share.

        Only needed if you close the event loop yourself: `asyncio.run` and `run_sync` clean up.
        """
        kept = _sessions.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept[1].aclose()

    async def _refusal(self, response: aiohttp.ClientResponse, headers: Mapping[str, str]) -> ModelError:
        """Return the error for a response that is not a success."""
        if 300 <= response.status < 400 and "location" in headers:
            target = shortened(without_secrets(headers["location"], self.secrets), 200)
            # The key is only for the host that the user named.
            return ModelError(
                f"HTTP {response.status}: the address has moved to {target}; redirects are not followed",
                status=response.status,
            )
        return http_error(response.status, headers, await _error_body(response), self.secrets)

    def _classified(self, error: Exception, headers: Mapping[str, str], *, answered: bool) -> Exception:
        """Return the error that a policy can act on, without any secret in its text."""
        match error:
            case WhyloopError():
                classified: WhyloopError = error
            case TimeoutError():
                classified = RequestTimeoutError(
                    f"{self.name} gave no complete answer within {self._timeout:g} s"
                )
            case aiohttp.ClientHttpProxyError():
                classified = ModelError(
                    f"{self.name}: the proxy answered HTTP {error.status}: {error.message}",
                    status=error.status,
                )
            case aiohttp.ClientResponseError():
                # The HTTP client made up its status.
                problem = f"the response cannot be read: {error.message}"
                classified = ResponseValidationError(f"{self.name}: {problem}")
            case aiohttp.ClientError() | OSError() if answered:
                problem = f"the response was cut off: {_connection_problem(error)}"
                classified = ResponseValidationError(f"{self.name}: {problem}")
            case _ if answered:
                problem = f"the response cannot be read: {error_text(error)}"
                classified = ResponseValidationError(f"{self.name}: {problem}")
            case aiohttp.ClientConnectorError():
                classified = ModelError(f"{self.name} could not be reached: {_connection_problem(error)}")
            case aiohttp.ClientError() | OSError():
                problem = f"the connection was lost before an answer: {_connection_problem(error)}"
                classified = ModelError(f"{self.name}: {problem}")
            case _:
                return error
        if isinstance(classified, ModelError):
            self._add_headers(classified, headers)
        classified.args = (self._shown(str(classified)), *classified.args[1:])
        return classified.with_traceback(None)

    def _add_headers(self, error: ModelError, headers: Mapping[str, str]) -> None:
        """Add the request id and the wait that only the headers name."""
        if error.request_id is None:
            error.request_id = request_id_in(headers)
        if error.request_id is not None:
            error.request_id = self._shown(error.request_id)
        if error.retry_after is None and not isinstance(error, ResponseValidationError):
            error.retry_after = retry_after_seconds(headers)

    def _shown(self, text: str) -> str:
        """Return the text without secrets, shortened afterwards."""
        without = without_cut_secrets(without_secrets(text, self.secrets), self.secrets)
        return shortened(without, MAX_ERROR_LENGTH)


def _cause_to_repeat(error: Exception, failed: Exception, answer: ResponseBody | None) -> str | None:
    """Return why a request failed, in a word, if it may be repeated; else None.

    A request that ran out of its own time is not repeated, nor is one whose answer has begun.
    """
    if not isinstance(failed, ModelError) or not failed.retryable or isinstance(error, TimeoutError):
        return None
    if answer is not None and answer.has_begun:
        return None
    if failed.status is not None:
        return str(failed.status)
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        return "connection lost"
    return None if isinstance(failed, ResponseValidationError) else "an error in the stream"


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, up to a limit in bytes and in time."""
    body = b""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
    return body[:MAX_ERROR_BYTES].decode("utf-8", "replace").encode()  # Some proxies still use Latin-1.


async def _wait_for_end(response: aiohttp.ClientResponse) -> None:
    """Wait briefly for the response to end, so that its connection can be reused."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(ENDING_SECONDS):
            await response.content.readany()


def _connection_problem(error: Exception) -> str:
    """Return the problem with a connection, without the HTTP client's phrases."""
    match error:
        case aiohttp.ClientConnectorError(os_error=cause):
            problem = cause.strerror or str(cause)
            if cause.errno and problem.startswith("Connect call failed"):
                problem = os.strerror(cause.errno)
            return f"{error.host}:{error.port}: {problem}"
        case aiohttp.ClientPayloadError() if "not completed" in str(error):
            return "the connection ended before the response did"
    return str(error) or type(error).__name__


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be sent, in lower case, so that they replace ours."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"invalid header {name!r}: use strings for its name and value")
        if not name.isascii() or not (name + value).isprintable() or not name.strip():
            raise ConfigurationError(
                f"invalid header {name!r}: use an ASCII name, and no line breaks or control characters"
            )
    return {name.lower(): value for name, value in headers.items()}


def proxy_for(url: str) -> str | None:
    """Return the proxy for an address by HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127.") or proxy_bypass(host):
        return None
    proxy = getproxies_environment().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


# Connections

_Loop = asyncio.AbstractEventLoop
_Keeper = AsyncGenerator[aiohttp.ClientSession, None]

# All models share the session of an event loop: whatever distinguishes two models is in the request. A model
# may be garbage-collected while its loop still runs, but a session has to be closed before its loop ends.
_sessions: dict[_Loop, tuple[aiohttp.ClientSession, _Keeper]] = {}


async def _open_session() -> aiohttp.ClientSession:
    """Return the session of the running event loop, which closes with the loop."""
    loop = asyncio.get_running_loop()
    kept = _sessions.get(loop)
    if kept is None or kept[0].closed:
        for other, (session, _) in list(_sessions.items()):
            if session.closed or other.is_closed():
                _sessions.pop(other, None)
        # An event loop closes its generators when it shuts down, and with this one the session.
        keeper = _keep_session()
        kept = _sessions[loop] = (await anext(keeper), keeper)
    return kept[0]


async def _keep_session() -> _Keeper:
    # The slots limit the number of requests; cookies would link the requests of different users.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


class _Slots:
    """A limit on the simultaneous requests of one event loop; None for no limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._semaphores: dict[_Loop, asyncio.Semaphore] = {}

    def take(self) -> AbstractAsyncContextManager[Any]:
        """Return a slot of the running event loop, to be waited for and given back."""
        if self._most is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._semaphores:
            gone = [other for other in self._semaphores if other.is_closed()]
            for other in gone:
                del self._semaphores[other]
            self._semaphores[loop] = asyncio.Semaphore(self._most)
        return self._semaphores[loop]
