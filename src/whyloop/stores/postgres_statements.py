"""What a PostgreSQL store asks of its server, and how it reads the answers."""

from __future__ import annotations

import re
from datetime import UTC
from hashlib import sha256
from typing import Any, LiteralString

import msgspec
from psycopg import sql

from whyloop.errors import ConfigurationError, SnapshotError
from whyloop.stores.cursor import position
from whyloop.stores.records import SessionFilter, Summary, label, labels_of
from whyloop.values.continuation import StopReason
from whyloop.values.plain import jsonable
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean, shortened

# An index holds a label and an id side by side, in at most 2,700 bytes.
LONGEST_ID = 500
LONGEST_LABEL_BYTES = 400

LISTING = """ROW(
    %(status)s, %(stop_reason)s, %(started_at)s, %(updated_at)s, %(step_count)s,
    %(title)s, %(parent_agent_id)s, %(metadata)s, %(labels)s
)::{schema}.listing"""

SUMMARY = """
    session.agent_id, session.status, session.stop_reason, session.started_at, session.updated_at,
    session.step_count, session.title, session.parent_agent_id, session.metadata,
    (SELECT coalesce(max(seq), 0) FROM {schema}.entries WHERE entries.session = session.number),
    CASE WHEN {schema}.seconds_left(
        session.lease_until, session.lease_seconds, coalesce(%(moment)s, clock_timestamp())
    ) > 0 THEN session.lease_owner END
"""


JOIN = "JOIN {schema}.labels AS {name} ON {name}.session = session.number AND {name}.label = {label}"

# What narrows a page down, if there is a parameter of that name. Times and ids are those of the
# table that is read in the order of the list.
CONDITIONS: dict[str, LiteralString] = {
    "status": "session.status = %(status)s",
    "stop_reason": "session.stop_reason = %(stop_reason)s",
    "started_after": "{first}.started_at > %(started_after)s",
    "started_before": "{first}.started_at < %(started_before)s",
    "end": "({first}.started_at, {first}.agent_id) < (%(end)s, %(end_id)s)",
}

PAGE = """FROM (
    SELECT session.* FROM {schema}.sessions AS session {joins} WHERE {conditions}
    ORDER BY {first}.started_at DESC, {first}.agent_id DESC LIMIT %(limit)s
) AS session ORDER BY session.started_at DESC, session.agent_id DESC"""

_ESCAPED = re.compile(r"\\(\\|0)")


class Statements:
    """The statements of a store whose tables are in one schema."""

    def __init__(self, schema: str) -> None:
        if not schema or len(schema.encode()) > 63 or any(sign in schema for sign in "'$\x00"):
            raise ConfigurationError(
                f"{schema!r} is no name for a schema: it has 1 to 63 characters, and none of ' and $"
            )
        self._schema = sql.Identifier(schema)
        self.create = self._filled(
            "SELECT * FROM {schema}.create_session(%(agent_id)s, " + LISTING + ", %(entries)s, %(again)s)"
        )
        self.append = self._filled(
            "SELECT * FROM {schema}.append_entries(%(agent_id)s, %(entries)s, %(after)s, %(token)s, "
            "NULL, %(release)s, %(again)s, %(moment)s)"
        )
        self.append_listed = self._filled(
            "SELECT * FROM {schema}.append_entries(%(agent_id)s, %(entries)s, %(after)s, %(token)s, "
            + LISTING
            + ", %(release)s, %(again)s, %(moment)s)"
        )
        self.delete = self._filled(
            "SELECT * FROM {schema}.delete_session(%(agent_id)s, %(again)s, %(moment)s)"
        )
        self.acquire = self._filled(
            "SELECT * FROM {schema}.acquire(%(agent_id)s, %(owner)s, %(seconds)s, %(mark)s, %(moment)s)"
        )
        self.renew = self._filled("SELECT * FROM {schema}.renew(%(agent_id)s, %(token)s, %(moment)s)")
        self.release = self._filled("SELECT {schema}.release(%(agent_id)s, %(token)s)")
        self.ask_to_stop = self._filled(
            "SELECT * FROM {schema}.ask_to_stop(%(agent_id)s, %(reason)s, %(moment)s)"
        )
        self.summary = self._filled(
            "SELECT" + SUMMARY + ", session.number FROM {schema}.sessions AS session "
            "WHERE session.agent_id = %(agent_id)s"
        )
        self.entries = self._filled(
            "SELECT body FROM {schema}.entries "
            "WHERE session = %(number)s AND seq > %(after)s AND seq <= %(version)s ORDER BY seq"
        )

    def page(self, wanted: SessionFilter, limit: int, after: str | None) -> tuple[bytes, dict[str, Any]]:
        """The statement that finds a page, and its parameters.

        The first label leads, if there is one: its index has the sessions in the order of the list.
        """
        labels = {
            f"label_{number}": joined(label(key), label(value))
            for number, (key, value) in enumerate(wanted.metadata.items())
        }
        given: dict[str, Any] = {
            **labels,
            "status": wanted.status,
            "stop_reason": wanted.stop_reason,
            "started_after": wanted.started_after,
            "started_before": wanted.started_before,
        }
        if after is not None:
            given["end"], given["end_id"] = position(after)
        joins = [
            sql.SQL(JOIN).format(schema=self._schema, name=sql.Identifier(name), label=sql.Placeholder(name))
            for name in labels
        ]
        first = sql.Identifier(next(iter(labels), "session"))
        conditions = [
            sql.SQL(condition).format(first=first)
            for name, condition in CONDITIONS.items()
            if given.get(name) is not None
        ]
        statement = sql.SQL("SELECT" + SUMMARY + PAGE).format(
            schema=self._schema,
            first=first,
            joins=sql.SQL(" ").join(joins),
            conditions=sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true"),
        )
        return statement.as_bytes(None), {**given, "limit": limit}

    def _filled(self, statement: LiteralString) -> bytes:
        return sql.SQL(statement).format(schema=self._schema).as_bytes(None)


def listing(summary: Summary) -> dict[str, Any]:
    """A summary as the parameters of a statement."""
    metadata = jsonable(summary.metadata)
    return {
        "status": summary.status.value,
        "stop_reason": summary.stop_reason and summary.stop_reason.value,
        "started_at": summary.started_at,
        "updated_at": summary.updated_at,
        "step_count": summary.step_count,
        "title": written(summary.title),
        "parent_agent_id": summary.parent_agent_id and written(summary.parent_agent_id),
        "metadata": msgspec.json.encode(metadata).decode(),
        "labels": [joined(key, value) for key, value in labels_of(metadata)],
    }


def summary_in(row: tuple[Any, ...]) -> Summary:
    """The summary that the columns of `SUMMARY` hold."""
    agent_id, status, stop_reason, started_at, updated_at, step_count, title, parent, metadata, *rest = row
    try:
        return Summary(
            agent_id=agent_id,
            status=AgentStatus(status),
            started_at=started_at.astimezone(UTC),
            updated_at=updated_at.astimezone(UTC),
            stop_reason=stop_reason and StopReason(stop_reason),
            parent_agent_id=parent and read(parent),
            step_count=step_count,
            title=read(title),
            metadata=msgspec.json.decode(metadata),
            version=rest[0],
            runner=rest[1] and read(rest[1]),
        )
    except ValueError as error:
        raise SnapshotError(f"session {agent_id!r} cannot be listed: {error}; upgrade whyloop") from None


def joined(key: str, value: str) -> str:
    """A key and its value as one text, short enough for an index."""
    text = f"{key}:{value}"
    if len(text.encode()) <= LONGEST_LABEL_BYTES:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def written(text: str) -> str:
    """The text without the one character that PostgreSQL cannot hold, so that `read` gets it back."""
    return clean(text).replace("\\", "\\\\").replace("\x00", "\\0")


def read(text: str) -> str:
    """The text as it was before `written`."""
    return _ESCAPED.sub(lambda escape: "\x00" if escape[0] == "\\0" else "\\", text) if "\\" in text else text


def known_id(agent_id: str) -> str:
    """The id, if there can be a session of that id; a `ConfigurationError` if not."""
    if len(agent_id) > LONGEST_ID or "\x00" in agent_id or clean(agent_id) != agent_id:
        raise ConfigurationError(
            f"{shortened(repr(agent_id), 80)} is no id that PostgreSQL can hold: use up to {LONGEST_ID} "
            "characters of proper text, and no NUL among them"
        )
    return agent_id
