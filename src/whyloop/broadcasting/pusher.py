"""Envelopes to Laravel Reverb, or any other server that speaks the Pusher protocol."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from whyloop.broadcasting.delivery import ABOUT_THE_CONTENT, Delivery
from whyloop.broadcasting.transports import Envelope
from whyloop.errors import BroadcastError, ConfigurationError, how_to_install
from whyloop.logger import log_line
from whyloop.values.credentials import without_known
from whyloop.values.text import shortened
from whyloop.wire.envelope import shortened_envelopes

try:
    import aiohttp
except ImportError as error:
    raise ConfigurationError(
        f"sending to a Pusher server needs an HTTP client: {how_to_install('pusher')} ({error})"
    ) from None

MAX_EVENTS = 10  # The maximum in one request, by the protocol.
MAX_CHANNEL = 164
MAX_ANSWER_BYTES = 10_000
_HEADERS = {"content-type": "application/json", "accept": "application/json", "user-agent": "whyloop"}


class PusherBroadcaster:
    """A transport to a Pusher server, with a private channel for each session.

    Envelopes are sent in the background, several in a request, and no request is larger than
    `max_request_bytes`. If a single envelope is too large, its long texts are cut, and it says so.

    Args:
        app_id: The id of the app on the server.
        key: The public key of the app.
        secret: The secret of the app, which signs requests.
        base_url: The address of the server, such as "https://ws.example.com".
        channel: The name of a session's channel. Default: "private-agent.{session_id}".
        timeout: The seconds that a request may take. Default: 10.
        max_request_bytes: The maximum size of a request; servers have limits, too. Default: 9000.
        now: The time in seconds, which a signature contains. Default: that of this machine.
        **delivery: Keywords of `Delivery`, such as `capacity`.
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
            raise ConfigurationError("invalid credentials: app_id, key and secret must not be empty")
        if timeout <= 0 or max_request_bytes < 1000:
            raise ConfigurationError(
                f"invalid timeout {timeout} or max_request_bytes {max_request_bytes}: "
                "use seconds above zero, and at least 1000 bytes"
            )
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
        """The number of envelopes of each event that never arrived."""
        return self._delivery.dropped

    def broadcast(self, event: Envelope) -> None:
        """Queue an envelope, which is sent in the background."""
        self._delivery.broadcast(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Queue envelopes, which are sent in the background."""
        self._delivery.broadcast_batch(events)

    def session_of(self, channel_name: str) -> str:
        """Return the session of a channel, to check whether this user may follow it.

        Args:
            channel_name: The channel that a subscriber asks for.
        """
        session_id = self._channels.session_of(_field("channel_name", channel_name))
        if session_id is None:
            problem = f"invalid channel {shortened(channel_name, 80)!r}: not a channel of a session"
            raise BroadcastError(problem, retry=False)
        return session_id

    def authorize(
        self, socket_id: str, channel_name: str, *, user: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """Return the response of your authorization endpoint for an allowed subscriber.

        A presence channel needs a `user` with a `user_id`, and shows all of it to its other subscribers.

        Args:
            socket_id: The id of the subscriber's connection, from its request.
            channel_name: The channel, from its request.
            user: The facts about the user, for a presence channel. Default: none.
        """
        if not is_socket_id(_field("socket_id", socket_id)):
            raise BroadcastError(f"invalid socket id {shortened(socket_id, 40)!r}", retry=False)
        self.session_of(channel_name)
        if not channel_name.startswith("presence-"):
            return self._app.authorization(socket_id, channel_name)
        if user is None:
            raise BroadcastError("missing user of a presence channel: pass user={…}", retry=False)
        return self._app.authorization(socket_id, channel_name, channel_data(user))

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Send the rest within the timeout, in seconds, and close the connection.

        Args:
            timeout: The seconds. Default: 5.
        """
        await self._delivery.close(timeout)
        if self._connection is not None and self._connection.is_here():
            await self._connection.close()
        self._connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, envelopes: Sequence[Envelope]) -> None:
        items = [item(envelope, self._channels, self._limit) for envelope in envelopes]
        parts, sent = deque(requests(items, self._limit)), 0
        while parts:
            part = parts.popleft()
            try:
                await self._post(part)
            except asyncio.CancelledError:
                # The delivery must know how many have arrived.
                raise BroadcastError("sending was cancelled", sent=sent) from None
            except BroadcastError as error:
                if error.status not in ABOUT_THE_CONTENT:
                    error.sent = sent
                    raise
                parts.extendleft(reversed(self._smaller_parts(part, error)))
            else:
                sent += len(part)
                for each in part:
                    if each.problem:
                        self._delivery.drop([each.envelope], each.problem)

    def _smaller_parts(self, part: list[Item], error: BroadcastError) -> list[list[Item]]:
        """Return smaller requests to send instead of one that was refused for its content."""
        if len(part) > 1:
            middle = len(part) // 2
            return [part[:middle], part[middle:]]
        (refused,) = part
        if error.status == 413:
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
            reason = getattr(error, "strerror", None) or type(error).__name__
            failed = BroadcastError(f"{self._base} could not be reached: {reason}")
        if failed is not None:
            # Raised here, so that its traceback holds nothing of the request.
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
        # Not shown, since it may contain a password.
        raise ConfigurationError(
            "invalid base_url: use the address of a server, such as http://127.0.0.1:8080"
        )
    return parts


def _field(name: str, value: object) -> str:
    """Return a field of the form that a subscriber sent, which may lack it."""
    if not isinstance(value, str):
        raise BroadcastError(f"the form of a subscriber has no {name}", retry=False)
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
    """Return the beginning of an answer, more than a Pusher server ever sends."""
    answer = b""
    async for piece in response.content.iter_any():
        answer += piece
        if len(answer) > MAX_ANSWER_BYTES:
            break
    return answer


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None


# The Pusher HTTP API without the HTTP: signatures, channels, bodies, and the meaning of an answer

_FRAME = len('{"batch":[]}')
_SOCKET_ID = re.compile(r"\d{1,20}\.\d{1,20}")
_ID = r"[A-Za-z0-9_=@,.;-]+"
_PLACE = "{session_id}"


class App(Struct, frozen=True):
    """An application of a Pusher server, and the secret that signs its requests."""

    id: str
    key: str
    secret: str

    def __repr__(self) -> str:
        return f"App(id={self.id!r}, key={self.key!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id), ("key", self.key)]

    def sign(self, text: str) -> str:
        """Return the signature of a text: HMAC SHA-256, in hexadecimal."""
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()

    def query(self, method: str, path: str, body: bytes, now: int) -> dict[str, str]:
        """Return the parameters that sign a request."""
        fields = {"auth_key": self.key, "auth_timestamp": str(now), "auth_version": "1.0"}
        if body:  # Reverb rejects the hash of an empty body.
            fields["body_md5"] = hashlib.md5(body, usedforsecurity=False).hexdigest()
        written = "&".join(f"{name}={value}" for name, value in fields.items())
        return {**fields, "auth_signature": self.sign(f"{method}\n{path}\n{written}")}

    def authorization(self, socket_id: str, channel: str, channel_data: str | None = None) -> dict[str, str]:
        """Return the signature with which a subscriber joins a channel."""
        text = f"{socket_id}:{channel}"
        if channel_data is None:
            return {"auth": f"{self.key}:{self.sign(text)}"}
        auth = f"{self.key}:{self.sign(f'{text}:{channel_data}')}"
        return {"auth": auth, "channel_data": channel_data}


class Channels(Struct, frozen=True):
    """The channels of sessions, by a pattern such as `private-agent.{session_id}`."""

    pattern: str

    def __post_init__(self) -> None:
        before, place, after = self.pattern.partition(_PLACE)
        if not place or not re.fullmatch(_ID, before) or not re.fullmatch(f"({_ID})?", after):
            raise ConfigurationError(
                f"invalid channel pattern {self.pattern!r}: use a prefix, {_PLACE} once, and otherwise "
                "letters, digits and any of _-=@,.;"
            )
        if not before.startswith(("private-", "presence-")):
            raise ConfigurationError(f"{self.pattern!r} would be public: start it with private- or presence-")

    def of(self, session_id: str) -> str | None:
        """Return the channel of a session; None if its id cannot be part of a name."""
        name = self.pattern.replace(_PLACE, session_id)
        return name if re.fullmatch(_ID, session_id) and len(name) <= MAX_CHANNEL else None

    def session_of(self, channel: str) -> str | None:
        """Return the session of a channel; None if the channel does not fit the pattern."""
        before, _, after = self.pattern.partition(_PLACE)
        match = re.fullmatch(f"{re.escape(before)}({_ID}){re.escape(after)}", channel)
        return match[1] if match and len(channel) <= MAX_CHANNEL else None


def is_socket_id(text: str) -> bool:
    """Return whether a Pusher server may have given this id to a connection."""
    return text.isascii() and _SOCKET_ID.fullmatch(text) is not None


def channel_data(user: Mapping[str, Any]) -> str:
    """Return the part of a user that other subscribers of a presence channel see."""
    if not isinstance(user.get("user_id"), str | int):
        raise ConfigurationError("invalid user of a presence channel: use a user_id of text or a number")
    return msgspec.json.encode(user).decode()


class Item(Struct, frozen=True):
    """An envelope as one event of a request, encoded; or why it cannot be sent."""

    envelope: Envelope
    body: bytes = b""
    problem: str = ""


def item(envelope: Envelope, channels: Channels, limit: int) -> Item:
    """Return an envelope as an event whose request fits the limit."""
    channel = channels.of(str(envelope["session_id"]))
    if channel is None:
        return Item(envelope, problem="a session id cannot be part of a channel's name")
    try:
        for smaller in shortened_envelopes(envelope):
            data = msgspec.json.encode(smaller).decode()
            body = msgspec.json.encode({"channel": channel, "name": smaller["event"], "data": data})
            if len(body) + _FRAME <= limit:
                return Item(envelope, body)
    except (TypeError, ValueError, RecursionError) as error:
        return Item(envelope, problem=f"an envelope cannot be written as JSON: {shortened(str(error), 100)}")
    return Item(envelope, problem="an envelope is too large, and nothing in it can be shortened")


def requests(items: Sequence[Item], limit: int) -> Iterator[list[Item]]:
    """Yield the requests that send the events in order, as few as possible."""
    part: list[Item] = []
    size = _FRAME
    for each in items:
        if part and (len(part) == MAX_EVENTS or size + len(each.body) + 1 > limit):
            yield part
            part, size = [], _FRAME
        part.append(each)
        size += len(each.body) + 1
    if part:
        yield part


def body_of(items: Sequence[Item]) -> bytes:
    """Return the body of a request with the events that can be sent."""
    return b'{"batch":[' + b",".join(each.body for each in items if each.body) + b"]}"


# Answers

_EXPLANATIONS = {
    401: "the key or the secret is wrong, or the clocks differ by minutes; ",
    404: "the app does not exist, or the address is wrong; ",
    413: "the request is too large; ",
    422: "the server rejected the request as malformed; ",
}


def refusal(app: App, status: int, body: bytes, retry_after: float | None = None) -> BroadcastError | None:
    """Return why a server refused a request, or None.

    A status of 200 alone does not mean that it accepted the request.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    text, code = body.decode("utf-8", "replace"), status
    if isinstance(document, dict):
        text = str(document.get("error") or document.get("message") or text)
        given = document.get("code")
        if 200 <= status < 300:
            if not document.get("error") and not isinstance(given, int):
                return None
            code = given if isinstance(given, int) else 500
    elif 200 <= status < 300:
        return BroadcastError(f"not a response of a Pusher server: {_shown(app, text)}", status=status)
    return BroadcastError(
        f"HTTP {code}: {_EXPLANATIONS.get(code, '')}{_shown(app, text)}",
        retry=code >= 500 or code in (408, 425, 429),
        status=code,
        retry_after=retry_after,
    )


def _shown(app: App, text: str) -> str:
    return log_line(without_known(text, [app.secret]), 200) or "no explanation was given"
