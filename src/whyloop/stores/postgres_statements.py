"""What a PostgreSQL store asks of its server, and how it reads the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC
from typing import Any, LiteralString

import msgspec
from psycopg import sql

from whyloop.errors import ConfigurationError, SnapshotError
from whyloop.stores.cursor import position
from whyloop.stores.labels import Start, numbers
from whyloop.stores.records import SessionFilter, Summary, Told
from whyloop.values.continuation import StopReason
from whyloop.values.plain import jsonable
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean, shortened

# An index holds it beside a label and a time, in at most 2,700 bytes.
LONGEST_ID = 500

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


WITHIN = """
    found.started_at > coalesce(%(since)s, '-infinity'::timestamptz)
    AND (found.started_at, found.agent_id) < (coalesce(%(until)s, 'infinity'::timestamptz), %(end)s)
"""

# How many there are under some labels, counted up to a limit.
COUNTS = f"""
SELECT asked.label, (
    SELECT count(*) FROM (
        SELECT FROM {{schema}}.labels AS found
        WHERE found.label = asked.label AND {WITHIN}
        LIMIT %(limit)s
    ) AS counted
) FROM unnest(%(labels)s::bigint[]) AS asked (label)
"""

# The youngest sessions of several places in the index that have some other labels as well, which come
# as texts: there are no arrays of arrays of different lengths. Each place is read in the order of the
# list, and a subquery that counts is answered session by session: a planner has no other choice.
PAGE = f"""
FROM (
    SELECT found.agent_id
    FROM unnest(%(labels)s::bigint[], %(others)s::text[]) AS start (label, others),
    LATERAL (
        SELECT found.started_at, found.agent_id FROM {{schema}}.labels AS found
        WHERE found.label = start.label AND {WITHIN}
            AND cardinality(start.others::bigint[]) = (
                SELECT count(*) FROM {{schema}}.labels AS other
                WHERE other.label = ANY (start.others::bigint[])
                    AND other.started_at = found.started_at AND other.agent_id = found.agent_id
            )
        ORDER BY found.started_at DESC, found.agent_id DESC LIMIT %(limit)s
    ) AS found
    ORDER BY found.started_at DESC, found.agent_id DESC LIMIT %(limit)s
) AS found,
LATERAL (SELECT * FROM {{schema}}.sessions WHERE sessions.agent_id = found.agent_id OFFSET 0) AS session
ORDER BY session.started_at DESC, session.agent_id DESC
"""

# One row of nothing for a session of which nothing was told, and none at all where there is no session.
TOLD = """
SELECT told.execution_id, told.seq, told.body, told.position FROM {schema}.sessions AS session
LEFT JOIN LATERAL (SELECT * FROM {schema}.events WHERE events.session = session.number AND CHOSEN) AS told
ON true WHERE session.agent_id = %(agent_id)s ORDER BY told.position
"""
AFTER = "position > %(after)s ORDER BY position LIMIT %(limit)s"
LAST = "true ORDER BY position DESC LIMIT 1"
LAST_OF_EXECUTION = """
execution_id = %(execution_id)s AND (%(up_to)s::bigint IS NULL OR seq <= %(up_to)s)
ORDER BY seq DESC, position DESC LIMIT 1
"""

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
        self.add_events = self._filled(
            "SELECT * FROM {schema}.add_events(%(agent_id)s, %(executions)s, %(numbers)s, %(bodies)s, "
            "%(again)s)"
        )
        self.events = self._filled(TOLD.replace("CHOSEN", AFTER))
        self.last_event = self._filled(TOLD.replace("CHOSEN", LAST))
        self.last_of_execution = self._filled(TOLD.replace("CHOSEN", LAST_OF_EXECUTION))
        self.last_position = self._filled(
            "SELECT (SELECT coalesce(max(position), 0) FROM {schema}.events WHERE session = number) "
            "FROM {schema}.sessions WHERE agent_id = %(agent_id)s"
        )
        self.counts = self._filled(COUNTS)
        self.page = self._filled("SELECT" + SUMMARY + PAGE)

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
        "labels": sorted(numbers(summary.status, summary.stop_reason, metadata)),
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


def told_in(row: tuple[Any, ...]) -> Told:
    """The envelope that the columns of `TOLD` hold."""
    execution_id, seq, body, place = row
    return Told(read(execution_id), seq, body, place)


def bounds(wanted: SessionFilter, after: str | None) -> dict[str, Any]:
    """The moment after which sessions are wanted, and the place in the list below which they are."""
    ends = [] if after is None else [position(after)]
    if wanted.started_before is not None:
        ends.append((wanted.started_before, ""))
    until, end = min(ends, default=(None, ""))
    return {"since": wanted.started_after, "until": until, "end": end}


def places(beginnings: Sequence[Start]) -> dict[str, Any]:
    """Where to read a page, as the parameters of a statement."""
    return {
        "labels": [start.number for start in beginnings],
        "others": ["{" + ",".join(map(str, start.others)) + "}" for start in beginnings],
    }


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
