"""Envelopes to Laravel Reverb, or any other server that speaks the Pusher protocol."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, quote, urlsplit

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.delivery import ABOUT_THE_CONTENT, Delivery
from whyloop.broadcasting.pusher_wire import (
    App,
    Channels,
    Item,
    body_of,
    channel_data,
    is_socket_id,
    item,
    refusal,
    requests,
)
from whyloop.errors import BroadcastError, ConfigurationError
from whyloop.values.text import shortened

try:
    import aiohttp
except ImportError as error:
    raise ConfigurationError(
        f"sending to a Pusher server needs an HTTP client: pip install 'whyloop[pusher]' ({error})"
    ) from None

MAX_ANSWER_BYTES = 10_000
_TOO_LARGE = 413
_HEADERS = {"content-type": "application/json", "accept": "application/json", "user-agent": "whyloop"}


class PusherBroadcaster:
    """A transport to a Pusher server: each session has a channel of its own, and only who may hears it.

    Envelopes are sent in the background, several in a request, each request no larger than the
    server takes. One that is too large alone has its longest texts cut, and says so.
    """

    def __init__(
        self,
        app_id: str,
        key: str,
        secret: str,
        base_url: str,
        channel: str = "private-agent.{session_id}",
        *,
        timeout: float = 10.0,
        max_request_bytes: int = 9000,
        now: Callable[[], float] = time.time,
        **delivery: Any,
    ) -> None:
        parts = _address(base_url)
        if not (app_id and key and secret):
            raise ConfigurationError("a Pusher server asks for an app id, a key and a secret; one is empty")
        if timeout <= 0 or max_request_bytes < 1000:
            raise ConfigurationError("timeout is above zero, max_request_bytes is at least 1000")
        self._app = App(str(app_id), key, secret)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = f"{parts.path.rstrip('/')}/apps/{quote(str(app_id), safe='')}/batch_events"
        self._channels = Channels(channel)
        self._limit = max_request_bytes
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._now = now
        self._connection: _Connection | None = None
        self._delivery = Delivery(self._send, **delivery)

    def __repr__(self) -> str:
        return f"<broadcaster to app {self._app.id} at {self._base}>"

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event never arrived."""
        return self._delivery.dropped

    def broadcast(self, event: Envelope) -> None:
        """Take an envelope; it is sent in the background."""
        self._delivery.broadcast(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Take envelopes; they are sent in the background."""
        self._delivery.broadcast_batch(events)

    def session_of(self, channel_name: str) -> str:
        """The session that a channel is for, so that you can ask whether this user may watch it."""
        session_id = self._channels.session_of(_field("channel_name", channel_name))
        if session_id is None:
            raise BroadcastError(f"{shortened(channel_name, 80)!r} is none of our channels", retry=False)
        return session_id

    def authorize(
        self, socket_id: str, channel_name: str, *, user: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """What your authorisation endpoint answers to a subscriber; whether it may watch is yours to ask.

        A presence channel needs a `user` with a `user_id`, and all of it is shown to the others there.
        """
        if not is_socket_id(_field("socket_id", socket_id)):
            raise BroadcastError(f"{shortened(socket_id, 40)!r} is no socket id", retry=False)
        self.session_of(channel_name)
        if not channel_name.startswith("presence-"):
            return self._app.authorization(socket_id, channel_name)
        if user is None:
            raise BroadcastError("a presence channel is only for users that are known", retry=False)
        return self._app.authorization(socket_id, channel_name, channel_data(user))

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Send what is left, for so many seconds at most, and close the connection."""
        await self._delivery.close(timeout)
        if self._connection is not None and self._connection.is_here():
            await self._connection.close()
        self._connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, envelopes: Sequence[Envelope]) -> None:
        items = [item(envelope, self._channels, self._limit) for envelope in envelopes]
        parts = deque(requests(items, self._limit))
        sent = 0
        while parts:
            part = parts.popleft()
            try:
                await self._post(part)
            except asyncio.CancelledError:
                # Said in a way that lets the delivery know what has arrived.
                raise BroadcastError("sending was cancelled", sent=sent) from None
            except BroadcastError as error:
                if error.status not in ABOUT_THE_CONTENT:
                    error.sent = sent
                    raise
                parts.extendleft(reversed(self._other_parts(part, error)))
            else:
                sent += len(part)
                for each in part:
                    if each.problem:
                        self._delivery.give_up_on([each.envelope], each.problem)

    def _other_parts(self, part: list[Item], error: BroadcastError) -> list[list[Item]]:
        """What to send instead of a request that was refused for what is in it."""
        if len(part) > 1:
            middle = len(part) // 2
            return [part[:middle], part[middle:]]
        (refused,) = part
        if error.status == _TOO_LARGE:
            return [[item(refused.envelope, self._channels, len(refused.body) // 2)]]
        return [[Item(refused.envelope, problem=str(error))]]

    async def _post(self, items: list[Item]) -> None:
        if all(each.problem for each in items):
            return
        body = body_of(items)
        failed: BroadcastError | None
        try:
            async with (await self._session()).post(
                self._base + self._path,
                params=self._app.query("POST", self._path, body, int(self._now())),
                data=body,
                headers=_HEADERS,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                answer = await _beginning(response)
                failed = refusal(self._app, response.status, answer, _retry_after(response))
        except TimeoutError:
            failed = BroadcastError(f"{self._base} gave no answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError) as error:
            words = getattr(error, "strerror", None) or type(error).__name__
            failed = BroadcastError(f"{self._base} could not be reached: {words}")
        if failed is not None:
            # Raised out here, so that it drags along nothing of the request.
            raise failed

    async def _session(self) -> aiohttp.ClientSession:
        if self._connection is None or not self._connection.is_here():
            self._connection = _Connection()
        return await self._connection.session()


def _address(base_url: str) -> SplitResult:
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or set("@?#") & set(base_url):
        # Not shown: there may be a password in it.
        raise ConfigurationError("base_url is no address of a server, such as http://127.0.0.1:8080")
    return parts


def _field(name: str, value: object) -> str:
    """A field of the form that a subscriber sent; it may have sent none."""
    if not isinstance(value, str):
        raise BroadcastError(f"the form of a subscriber has a {name}, and this one has none", retry=False)
    return value


class _Connection:
    """The HTTP session on one event loop; it is closed with that loop, if not before."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # An event loop closes its generators when it shuts down, and with this one the session.
        self._keeper = _opened()
        self._session: aiohttp.ClientSession | None = None

    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = await anext(self._keeper)
        return self._session

    async def close(self) -> None:
        await self._keeper.aclose()


async def _opened() -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """As much of an answer as a Pusher server ever says."""
    answer = b""
    async for piece in response.content.iter_any():
        answer += piece
        if len(answer) > MAX_ANSWER_BYTES:
            break
    return answer


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    told = response.headers.get("retry-after", "")
    return float(told) if told.isascii() and told.isdigit() else None
