"""The Pusher HTTP API without the HTTP: signatures, channels, bodies, and what an answer means."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.trim import trimmed
from whyloop.errors import BroadcastError, ConfigurationError
from whyloop.logger import log_line
from whyloop.values.redaction import REMOVED
from whyloop.values.text import shortened

MAX_EVENTS = 10  # In one request, by the protocol.
MAX_CHANNEL = 164
_FRAME = len('{"batch":[]}')
_SOCKET_ID = re.compile(r"\d{1,20}\.\d{1,20}")
_ID = r"[A-Za-z0-9_=@,.;-]+"
_PLACE = "{session_id}"
_UNREADABLE = "it answered with something that is no answer of a Pusher server"


class App(Struct, frozen=True):
    """An application of a Pusher server, and what proves that we are it."""

    id: str
    key: str
    secret: str

    def __repr__(self) -> str:
        return f"App(id={self.id!r}, key={self.key!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id), ("key", self.key)]

    def sign(self, text: str) -> str:
        """The signature of a text: HMAC SHA-256, in hexadecimal."""
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()

    def query(self, method: str, path: str, body: bytes, now: int) -> dict[str, str]:
        """The parameters that make a request ours."""
        fields = {"auth_key": self.key, "auth_timestamp": str(now), "auth_version": "1.0"}
        if body:  # Reverb refuses a hash of nothing.
            fields["body_md5"] = hashlib.md5(body, usedforsecurity=False).hexdigest()
        written = "&".join(f"{name}={value}" for name, value in fields.items())
        return {**fields, "auth_signature": self.sign(f"{method}\n{path}\n{written}")}

    def authorization(self, socket_id: str, channel: str, channel_data: str | None = None) -> dict[str, str]:
        """What a subscriber shows to the server to be let into a channel."""
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
                f"{self.pattern!r} is no pattern for channels: it has {_PLACE} in it once, after a prefix, "
                "and otherwise letters, digits and any of _-=@,.;"
            )
        if not before.startswith(("private-", "presence-")):
            raise ConfigurationError(
                f"{self.pattern!r} would let anybody watch: start it with private- or presence-"
            )

    def of(self, session_id: str) -> str | None:
        """The channel of a session; None where its id cannot be part of a name."""
        name = self.pattern.replace(_PLACE, session_id)
        return name if re.fullmatch(_ID, session_id) and len(name) <= MAX_CHANNEL else None

    def session_of(self, channel: str) -> str | None:
        """The session that a channel is for; None if it is none of ours."""
        before, _, after = self.pattern.partition(_PLACE)
        match = re.fullmatch(f"{re.escape(before)}({_ID}){re.escape(after)}", channel)
        return match[1] if match and len(channel) <= MAX_CHANNEL else None


def is_socket_id(text: str) -> bool:
    """Whether a Pusher server may have given this id to a connection."""
    return text.isascii() and _SOCKET_ID.fullmatch(text) is not None


def channel_data(user: Mapping[str, Any]) -> str:
    """What the others on a presence channel get to know about somebody."""
    if not isinstance(user.get("user_id"), str | int):
        raise ConfigurationError("a user of a presence channel has a user_id, a text or a number")
    return msgspec.json.encode(user).decode()


class Item(Struct, frozen=True):
    """An envelope as one event of a request, encoded; or why it cannot be sent."""

    envelope: Envelope
    body: bytes = b""
    problem: str = ""


def item(envelope: Envelope, channels: Channels, limit: int) -> Item:
    """An envelope as an event whose request is no longer than the limit."""
    channel = channels.of(str(envelope["session_id"]))
    if channel is None:
        return Item(envelope, problem="a session id cannot be part of a channel's name")

    def encode(told: Envelope) -> bytes:
        data = msgspec.json.encode(told).decode()
        return msgspec.json.encode({"channel": channel, "name": told["event"], "data": data})

    try:
        fitting = trimmed(envelope, lambda told: len(encode(told)) + _FRAME <= limit)
        if fitting is None:
            return Item(envelope, problem="an envelope is too large, and there is nothing in it to cut")
        return Item(envelope, encode(fitting))
    except (TypeError, ValueError, RecursionError) as error:
        return Item(envelope, problem=f"an envelope cannot be written as JSON: {shortened(str(error), 100)}")


def requests(items: Sequence[Item], limit: int) -> Iterator[list[Item]]:
    """The events in order, as many in a request as it holds."""
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
    """The body of a request with the events that can be sent."""
    return b'{"batch":[' + b",".join(each.body for each in items if each.body) + b"]}"


def refusal(app: App, status: int, body: bytes, retry_after: float | None = None) -> BroadcastError | None:
    """What a server has against a request; None if it took it. A 200 alone does not say so."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    words, code = body.decode("utf-8", "replace"), status
    if isinstance(document, dict):
        words = str(document.get("error") or document.get("message") or words)
        told = document.get("code")
        if 200 <= status < 300:
            if not document.get("error") and not isinstance(told, int):
                return None
            code = told if isinstance(told, int) else 500
    elif 200 <= status < 300:
        return BroadcastError(f"{_UNREADABLE}: {_shown(app, words)}", status=status)
    explained = _EXPLANATIONS.get(code, "")
    return BroadcastError(
        f"HTTP {code}: {explained}{_shown(app, words)}",
        retry=code >= 500 or code in _PATIENCE,
        status=code,
        retry_after=retry_after,
    )


def _shown(app: App, words: str) -> str:
    return log_line(words.replace(app.secret, REMOVED), 200) or "no explanation was given"


_PATIENCE = frozenset({408, 425, 429})
_EXPLANATIONS = {
    401: "the key or the secret is wrong, or the clocks differ by minutes; ",
    404: "there is no such app, or the address is wrong; ",
    413: "the request is too large; ",
    422: "the server does not like the shape of the request; ",
}
