"""Access of clients: which are admitted, what they may do, and how much they may use."""

from __future__ import annotations

import inspect
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import force_setattr
from starlette.requests import HTTPConnection
from starlette.types import Scope

from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.server.bodies import RIGHTS, Right
from whyloop.server.requests import BadRequestError, busy, calling_the_app
from whyloop.stores.records import Summary
from whyloop.values.encoding import comparable
from whyloop.values.text import shortened

Label = str | int | float | bool | None


class Access(Struct, frozen=True):
    """What a client may see and do; without any right it reads its conversations.

    The rights: `send` asks, stops and resumes; `decide` answers the questions of tool calls; `inspect` reads
    how the agent works, such as requests, traces and snapshots; `manage` forks, deletes and grants.
    """

    user: str
    """The name of the person, under which decisions are recorded."""
    within: Mapping[str, Label] = {}
    """The metadata of all sessions that the client may see; new ones get it."""
    may: Collection[Right] = frozenset({"send"})
    """The rights of the client, of `send`, `decide`, `inspect` and `manage`. Kept as a frozenset."""

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not isinstance(self.within, Mapping):
            raise ConfigurationError(
                f"invalid Access {shortened(repr(self), 120)}: use a string for user and a mapping for within"
            )
        is_list = isinstance(self.may, Collection) and not isinstance(self.may, str)
        if not is_list or not all(word in RIGHTS for word in self.may):
            raise ConfigurationError(
                f"invalid may={shortened(repr(self.may), 80)}: use a set of {', '.join(map(repr, RIGHTS))}, "
                "or () for a client that only reads its conversations"
            )
        force_setattr(self, "may", frozenset(self.may))

    def check(self, summary: Summary) -> None:
        """Raise `SessionNotFoundError` for a session that the client may not see.

        Args:
            summary: The session as it is listed.
        """
        if not self.within.keys() <= summary.metadata.keys() or not agree(summary.metadata, self.within):
            raise SessionNotFoundError(summary.agent_id)

    def require(self, right: Right | None) -> None:
        """Raise 403 for a client without this right.

        Args:
            right: The right; None is one that every client has.
        """
        if right is not None and right not in self.may:
            problem = f"you may not do this: it needs the right {right!r}"
            raise BadRequestError(problem, 403, "missing_right")


CheckAccess = Callable[[HTTPConnection], Access | Awaitable[Access | None] | None]

PUBLIC = Access("", may=RIGHTS)
"""The access of every client on a public server, where clients name the person who decides."""


PROTOCOL, _BEARER = "whyloop", "bearer."
"""The protocol of a WebSocket; a page offers a second one, its token as base64url."""


def with_token(scope: Scope) -> Scope:
    """Return the scope of a WebSocket with the token of a page as its `Authorization`.

    A page cannot send headers with a WebSocket, and a token in an address ends up in logs.
    """
    coded = [each[len(_BEARER) :] for each in scope.get("subprotocols", ()) if each.startswith(_BEARER)]
    if not coded or any(name == b"authorization" for name, _ in scope["headers"]):
        return scope
    try:
        token = urlsafe_b64decode(coded[0] + "=" * (-len(coded[0]) % 4))
    except ValueError:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + token)]}


class Limits(Struct, frozen=True):
    """The amounts of a server's resources that its clients may occupy."""

    requests: int = 10_000
    """The maximum number of simultaneous requests and streams; one more is answered with 503."""
    body_seconds: float = 30.0
    """How long a client may take to send a body."""

    def __post_init__(self) -> None:
        if self.requests < 1 or not self.body_seconds > 0:
            raise ConfigurationError(f"invalid limits {self!r}: use numbers greater than zero")


class Admission:
    """The first check of every connection: the limits, its origin, its host and its client."""

    def __init__(
        self,
        check: CheckAccess | None,
        origins: Collection[str],
        limits: Limits,
        max_streams: int,
        *,
        public: bool,
    ) -> None:
        if (check is None) != public:
            raise ConfigurationError(
                "AgentServer: choose its clients: access=f, where f(connection) returns an Access, or None "
                "for an unknown client; or public=True, if every client may do everything in all sessions"
            )
        if check is not None and not callable(check):
            raise ConfigurationError(f"invalid access {check!r:.80}: use a function of the connection")
        self._check = check
        self._any_origin = "*" in origins
        self._origins = frozenset([_origin(text) for text in origins if text != "*"])
        self._most = {"requests": limits.requests, "streams": max_streams}
        self._counts = Counter[str]()

    def count(self, kind: Literal["requests", "streams"]) -> int:
        """Return the current number of requests or streams."""
        return self._counts[kind]

    @contextmanager
    def counted(self, kind: Literal["requests", "streams"], count: int = 1) -> Iterator[None]:
        """Count a connection while it lasts; raise 503 if there are too many."""
        if self._counts[kind] + count > self._most[kind]:
            raise busy(kind)
        self._counts[kind] += count
        try:
            yield
        finally:
            self._counts[kind] -= count

    async def admit(self, connection: HTTPConnection, *, acts: bool) -> Access:
        """Return what the client may do.

        Raise 401 if the client is unknown, and 403 or 421 for a page of another site.
        """
        if acts:
            self._refuse_origin(connection)
        self.refuse_host(connection)
        if self._check is None:
            return PUBLIC
        with calling_the_app():
            found = self._check(connection)
            access = await found if inspect.isawaitable(found) else found
        if access is None:
            problem = "unknown client: send credentials, such as the header Authorization: Bearer …"
            raise BadRequestError(problem, 401, "not_authenticated", {"www-authenticate": "Bearer"})
        if not isinstance(access, Access):
            raise TypeError(f"`access` returned {shortened(repr(access), 80)} instead of an Access or None")
        return access

    def _refuse_origin(self, connection: HTTPConnection) -> None:
        """Raise 403 for a page of another site, which must not act for its visitor.

        Browsers send the site of a page. They keep the page from reading responses, not from sending
        requests.
        """
        origin = connection.headers.get("origin")
        if origin is None or self._any_origin:
            return
        try:
            site = _origin(origin)
        except ConfigurationError:
            site = None
        if site is None or site not in self._origins | _own_origins(connection):
            raise BadRequestError(
                f"a page of {shortened(origin, 200)} may not do this: add it to the origins of the server",
                403,
                "origin",
            )

    def refuse_host(self, connection: HTTPConnection) -> None:
        """Raise 421 if the server was reached under a name that is not its own.

        Any site can point its domain name at this machine, and a browser then treats it as the same site.
        """
        if self._any_origin:
            return
        host = connection.headers.get("host", "")
        known = {(name, port) for _, name, port in self._origins | _own_origins(connection)}
        if _name_and_port(connection, host) not in known:
            raise BadRequestError(
                f"this server is not {shortened(host, 200)!r}: add its address to the origins of the server, "
                "such as 'https://app.example.com'",
                421,
                "host",
            )


Origin = tuple[str, str, int]
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _origin(text: str) -> Origin:
    """Return scheme, name and port of an origin such as "https://app.example.com"."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_origin = parts.scheme in _PORTS and parts.hostname and parts.path in ("", "/")
    if not is_origin or "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"invalid origin {shortened(text, 80)!r}: use a scheme, a name and a port if it has one, such as "
            "'https://app.example.com'"
        )
    return parts.scheme, str(parts.hostname), port or _PORTS[parts.scheme]


def _own_origins(connection: HTTPConnection) -> frozenset[Origin]:
    """Return the addresses of this server's socket, and of this machine."""
    scheme = _scheme(connection)
    name, port = connection.scope.get("server") or ("", None)
    if port is None:  # A socket without a port, to which a proxy on this machine forwards.
        name, port = "", _PORTS[scheme]
    return frozenset([(scheme, each.lower(), port) for each in (*_LOOPBACK, name) if each])


def _name_and_port(connection: HTTPConnection, host: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or "@" in host or "/" in host:
        return None
    return name, port or _PORTS[_scheme(connection)]


def _scheme(connection: HTTPConnection) -> str:
    return "https" if connection.scope.get("scheme") in ("https", "wss") else "http"


def agree(some: Mapping[str, object], others: Mapping[str, object]) -> bool:
    """Return whether the entries that both have are equal."""
    return all(comparable(some[key]) == comparable(value) for key, value in others.items() if key in some)
