"""Which sessions a client may see, and which sites may act through a browser."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping

from starlette.requests import HTTPConnection

from whyloop.errors import SessionNotFoundError
from whyloop.server.problems import BadRequestError, calling_the_app
from whyloop.stores.records import Summary, label
from whyloop.values.text import shortened

Label = str | int | float | bool | None
Scope = Callable[[HTTPConnection], Mapping[str, Label] | Awaitable[Mapping[str, Label]]]


async def scope_of(connection: HTTPConnection, scope: Scope | None) -> Mapping[str, Label]:
    """Return the metadata that every session has which this client may see."""
    if scope is None:
        return {}
    with calling_the_app():
        found = scope(connection)
        return await found if inspect.isawaitable(found) else found


def refuse_outside(summary: Summary, within: Mapping[str, Label]) -> None:
    """Raise `SessionNotFoundError` for a session that the client may not see."""
    if not within.keys() <= summary.metadata.keys() or not agree(summary.metadata, within):
        raise SessionNotFoundError(summary.agent_id)


def agree(some: Mapping[str, object], others: Mapping[str, object]) -> bool:
    """Return whether the entries that both have are equal."""
    return all(label(some[key]) == label(value) for key, value in others.items() if key in some)


def refuse_origin(connection: HTTPConnection, origins: Collection[str]) -> None:
    """Raise 403 for a page of another site: it must not act in the name of the person who looks at it.

    Browsers send the site of a page. They keep the page from reading responses, not from sending requests.
    """
    origin = connection.headers.get("origin")
    if origin is None or origin in origins or "*" in origins:
        return
    host = connection.headers.get("host", "").lower()
    if not host or origin.lower().partition("://")[2] != host:
        raise BadRequestError(
            f"a page of {shortened(origin, 200)} may not do this: add it to the origins of the server",
            403,
            "origin",
        )
