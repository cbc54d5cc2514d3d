"""Who may see what, and from which pages."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping

from starlette.requests import HTTPConnection

from whyloop.errors import SessionNotFoundError
from whyloop.server.problems import BadRequestError, asking_the_app
from whyloop.stores.records import Summary, label
from whyloop.values.text import shortened

Label = str | int | float | bool | None
Scope = Callable[[HTTPConnection], Mapping[str, Label] | Awaitable[Mapping[str, Label]]]


async def scope_of(connection: HTTPConnection, scope: Scope | None) -> Mapping[str, Label]:
    """The metadata that every session has which this client may see."""
    if scope is None:
        return {}
    with asking_the_app():
        found = scope(connection)
        return await found if inspect.isawaitable(found) else found


def refuse_outside(summary: Summary, within: Mapping[str, Label]) -> None:
    """A session that a client may not see is not there for it."""
    if not within.keys() <= summary.metadata.keys() or not agree(summary.metadata, within):
        raise SessionNotFoundError(summary.agent_id)


def agree(some: Mapping[str, object], others: Mapping[str, object]) -> bool:
    """Whether what both name is equal in both."""
    return all(label(some[key]) == label(value) for key, value in others.items() if key in some)


def refuse_origin(connection: HTTPConnection, origins: Collection[str]) -> None:
    """A page of another site may not act in the name of who looks at it.

    Browsers say which site a page is of. They keep it from reading answers, and not from asking.
    """
    origin = connection.headers.get("origin")
    if origin is None or origin in origins or "*" in origins:
        return
    host = connection.headers.get("host", "").lower()
    if not host or origin.lower().partition("://")[2] != host:
        raise BadRequestError(
            f"a page of {shortened(origin, 200)} may not do this: name it in the origins of the server",
            403,
            "origin",
        )
