"""The tables of a PostgreSQL store, the functions that change them, and the statements that use both.

Each change is one function in the database, and so one statement and one round trip: it locks the row of
the session, checks, and then either changes everything or returns the reason why it changed nothing.
Changes come as JSON, which PostgreSQL turns into rows itself. A released migration is never edited: add a
new one at the end.
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from whyloop.errors import ConfigurationError

# The fields of a summary that are stored with its session, in the order of the type `listing`.
COLUMNS = (
    *("identity", "status", "stop_reason", "started_at", "updated_at", "step_count", "title"),
    *("parent_agent_id", "metadata", "agent", "resolved_by", "reason", "pending", "cost"),
)

TABLES = """
CREATE TABLE {schema}.sessions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL UNIQUE,
    identity text NOT NULL,
    status text COLLATE "C" NOT NULL,
    stop_reason text,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    step_count bigint NOT NULL,
    title text NOT NULL,
    parent_agent_id text,
    metadata text NOT NULL,  -- JSON; not jsonb, which refuses some texts that JSON allows
    agent text NOT NULL,
    resolved_by text,
    reason text,
    pending bigint NOT NULL,
    cost text,
    labels bigint[] NOT NULL,
    lease_owner text,
    lease_token bigint,
    lease_mark bigint,
    lease_lock bigint,  -- the advisory lock that the runner holds while it lives; NULL if it has none
    lease_seconds double precision,
    lease_until timestamptz,
    stop_request text
) WITH (fillfactor = 80);  -- leaves room to renew a lease without a change of any index
CREATE INDEX ON {schema}.sessions (status, updated_at, agent_id);
CREATE INDEX ON {schema}.sessions (updated_at, agent_id)
    WHERE status = 'in_progress' OR (status = 'paused' AND pending = 0);
CREATE INDEX ON {schema}.sessions (lease_token) WHERE stop_request IS NOT NULL;

-- The tables below have no reference to sessions, which PostgreSQL would check row by row. Only the
-- functions below change them, and each of these holds the lock of the session's row.
CREATE TABLE {schema}.entries (
    session bigint NOT NULL,
    seq integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE TABLE {schema}.checkpoints (
    session bigint NOT NULL,
    version integer NOT NULL,  -- that of the entry that it belongs to
    execution_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    step_count bigint NOT NULL,
    message_count bigint NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (session, version)
);

CREATE TABLE {schema}.keys (
    session bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    digest text NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (session, key)
);

-- The index of the list: one row for each label of a session, in the order of the list.
CREATE TABLE {schema}.labels (
    label bigint NOT NULL,
    started_at timestamptz NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (label, started_at, agent_id)
);

-- One sequence for all sessions: no lease of a deleted session is ever that of a later one.
CREATE SEQUENCE {schema}.tokens;
"""

TYPES = """
-- A session as it is listed, and its labels.
CREATE TYPE {schema}.listing AS (
    identity text, status text, stop_reason text, started_at timestamptz, updated_at timestamptz,
    step_count bigint, title text, parent_agent_id text, metadata text, agent text, resolved_by text,
    reason text, pending bigint, cost text, labels bigint[]
);

-- An entry and its checkpoint; an entry without one has no state.
CREATE TYPE {schema}.entry AS (
    body text, execution_id text, seq bigint, step_count bigint, message_count bigint, state text
);

-- A new session, or an append to one.
CREATE TYPE {schema}.change AS (
    agent_id text, entries {schema}.entry[], after bigint, token bigint, release boolean,
    key text, digest text, listed {schema}.listing
);

-- The result of a function: 'done', or the reason why it changed nothing.
CREATE TYPE {schema}.answer AS (
    outcome text, version integer, owner text, seconds double precision, token bigint,
    stop_request text, digest text
);

CREATE FUNCTION {schema}.answered(
    outcome text, version integer DEFAULT NULL, owner text DEFAULT NULL,
    seconds double precision DEFAULT NULL, token bigint DEFAULT NULL, stop_request text DEFAULT NULL,
    digest text DEFAULT NULL
) RETURNS {schema}.answer LANGUAGE sql IMMUTABLE AS $whyloop$
    SELECT ROW(outcome, version, owner, seconds, token, stop_request, digest)::{schema}.answer
$whyloop$;

-- Return how long a lease still holds: 0 once it has lapsed, if a wrong clock gave it, or if its runner
-- is dead. A runner lives while its lock cannot be had; shared locks do not disturb each other.
CREATE FUNCTION {schema}.seconds_left(
    until timestamptz, seconds double precision, lock bigint, moment timestamptz
) RETURNS double precision LANGUAGE plpgsql VOLATILE AS $whyloop$
DECLARE
    remaining double precision := extract(epoch FROM until - coalesce(moment, clock_timestamp()));
BEGIN
    IF remaining > 0 AND remaining <= 2 * seconds THEN
        IF lock IS NULL OR NOT pg_try_advisory_xact_lock_shared(lock) THEN
            RETURN remaining;
        END IF;
    END IF;
    RETURN 0;
END
$whyloop$;
"""

CHANGES = """
-- Tell whether a journal has these entries after the first ones.
CREATE FUNCTION {schema}.has_entries(the_number bigint, after bigint, wanted {schema}.entry[])
RETURNS boolean LANGUAGE sql STABLE AS $whyloop$
    SELECT coalesce(array_agg(body ORDER BY seq), ARRAY[]::text[]) = ARRAY(
        SELECT new.body FROM unnest(wanted) WITH ORDINALITY AS new ORDER BY new.ordinality
    )
    FROM {schema}.entries
    WHERE session = the_number AND seq > after AND seq <= after + cardinality(wanted)
$whyloop$;

-- Add entries with their checkpoints, and the key that they came with.
CREATE FUNCTION {schema}.add_entries(the_number bigint, after integer, change {schema}.change)
RETURNS void LANGUAGE plpgsql AS $whyloop$
BEGIN
    INSERT INTO {schema}.entries (session, seq, body)
    SELECT the_number, after + new.ordinality, new.body
    FROM unnest(change.entries) WITH ORDINALITY AS new;
    IF EXISTS (SELECT FROM unnest(change.entries) AS new WHERE new.state IS NOT NULL) THEN
        INSERT INTO {schema}.checkpoints
        SELECT the_number, after + new.ordinality, new.execution_id, new.seq, new.step_count,
            new.message_count, new.state
        FROM unnest(change.entries) WITH ORDINALITY AS new WHERE new.state IS NOT NULL;
    END IF;
    IF change.key IS NOT NULL THEN
        INSERT INTO {schema}.keys
        VALUES (the_number, change.key, change.digest, after + cardinality(change.entries));
    END IF;
END
$whyloop$;

-- Move a session in the index; rows that stay the same are not touched.
CREATE FUNCTION {schema}.reindex(
    the_id text, started_before timestamptz, before bigint[], started_after timestamptz, after bigint[]
) RETURNS void LANGUAGE plpgsql AS $whyloop$
BEGIN
    IF started_before <> started_after THEN
        PERFORM {schema}.reindex(the_id, started_before, before, started_before, ARRAY[]::bigint[]);
        before := ARRAY[]::bigint[];
    END IF;
    DELETE FROM {schema}.labels
    WHERE label = ANY (ARRAY(SELECT unnest(before) EXCEPT SELECT unnest(after)))
        AND started_at = started_before AND agent_id = the_id;
    INSERT INTO {schema}.labels (label, started_at, agent_id)
    SELECT label, started_after, the_id
    FROM (SELECT unnest(after) EXCEPT SELECT unnest(before)) AS new (label);
END
$whyloop$;

-- `again` comes from a caller that does not know whether its first attempt arrived: entries that are
-- there already, at their version and to the letter, then count as done.
CREATE FUNCTION {schema}.create_session(change {schema}.change, again boolean)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    listed {schema}.listing := change.listed;
    added bigint;
BEGIN
    INSERT INTO {schema}.sessions (agent_id, {columns}, labels) SELECT change.agent_id, listed.*
    ON CONFLICT (agent_id) DO NOTHING RETURNING number INTO added;
    IF added IS NULL THEN
        SELECT number INTO added FROM {schema}.sessions
        WHERE agent_id = change.agent_id AND identity = listed.identity AND started_at = listed.started_at;
        IF again AND added IS NOT NULL AND {schema}.has_entries(added, 0, change.entries) THEN
            RETURN {schema}.answered('done');
        END IF;
        RETURN {schema}.answered('exists');
    END IF;
    PERFORM {schema}.add_entries(added, 0, change);
    PERFORM {schema}.reindex(
        change.agent_id, listed.started_at, ARRAY[]::bigint[], listed.started_at, listed.labels);
    RETURN {schema}.answered('done');
END
$whyloop$;

CREATE FUNCTION {schema}.append_one(
    change {schema}.change, waiting boolean, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    listed {schema}.listing := change.listed;
    stored {schema}.sessions;
    used {schema}.keys;
    version integer;
    request text;
    seconds double precision;
BEGIN
    IF waiting THEN
        SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = change.agent_id FOR UPDATE;
    ELSE
        SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = change.agent_id
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM {schema}.sessions WHERE agent_id = change.agent_id) THEN
            RETURN {schema}.answered('locked');
        END IF;
    END IF;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_token = change.token THEN
        request := stored.stop_request;
    END IF;
    IF again AND cardinality(change.entries) > 0
        AND {schema}.has_entries(stored.number, change.after, change.entries)
    THEN
        RETURN {schema}.answered('done', stop_request => request);
    END IF;
    IF change.key IS NOT NULL THEN
        SELECT * INTO used FROM {schema}.keys WHERE session = stored.number AND key = change.key;
        IF FOUND THEN
            RETURN {schema}.answered('used', version => used.version, digest => used.digest);
        END IF;
    END IF;
    IF change.token IS NULL THEN
        seconds := {schema}.seconds_left(
            stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
        IF seconds > 0 THEN
            RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
        END IF;
    ELSIF change.token IS DISTINCT FROM stored.lease_token THEN
        RETURN {schema}.answered('lost', owner => stored.lease_owner);
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    IF version <> change.after THEN
        RETURN {schema}.answered('conflict', version => version);
    END IF;
    PERFORM {schema}.add_entries(stored.number, version, change);
    IF listed.status IS NOT NULL THEN
        listed.identity := stored.identity;
        UPDATE {schema}.sessions SET ({columns}, labels) = ROW(listed.*) WHERE number = stored.number;
        IF stored.labels <> listed.labels OR stored.started_at <> listed.started_at THEN
            PERFORM {schema}.reindex(
                stored.agent_id, stored.started_at, stored.labels, listed.started_at, listed.labels);
        END IF;
    END IF;
    IF change.release AND change.token IS NOT NULL THEN
        PERFORM {schema}.release(stored.agent_id, change.token);
    END IF;
    RETURN {schema}.answered('done', stop_request => request);
END
$whyloop$;

-- Append to many sessions in one transaction, and return one answer for each append. Unless it is
-- waiting, a session whose row is locked is 'locked', so that it does not hold up the others.
CREATE FUNCTION {schema}.append(
    changes json, waiting boolean, again boolean, moment timestamptz
) RETURNS SETOF {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    change {schema}.change;
BEGIN
    FOR change IN SELECT * FROM json_populate_recordset(NULL::{schema}.change, changes) LOOP
        RETURN NEXT {schema}.append_one(change, waiting, again, moment);
    END LOOP;
END
$whyloop$;
"""

REMOVAL = """
CREATE FUNCTION {schema}.remove(stored {schema}.sessions) RETURNS void LANGUAGE plpgsql AS $whyloop$
BEGIN
    PERFORM {schema}.reindex(
        stored.agent_id, stored.started_at, stored.labels, stored.started_at, ARRAY[]::bigint[]);
    DELETE FROM {schema}.keys WHERE session = stored.number;
    DELETE FROM {schema}.checkpoints WHERE session = stored.number;
    DELETE FROM {schema}.entries WHERE session = stored.number;
    DELETE FROM {schema}.sessions WHERE number = stored.number;
END
$whyloop$;

CREATE FUNCTION {schema}.delete_session(
    the_id text, expected bigint, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    version integer;
    seconds double precision;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered(CASE WHEN again THEN 'done' ELSE 'missing' END);
    END IF;
    seconds := {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
    IF seconds > 0 THEN
        RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    IF version <> expected THEN
        RETURN {schema}.answered('conflict', version => version);
    END IF;
    PERFORM {schema}.remove(stored);
    RETURN {schema}.answered('done');
END
$whyloop$;

-- Remove those of these sessions that may still be removed, and return their ids. A session whose row is
-- locked is in use, and stays.
CREATE FUNCTION {schema}.prune(
    ids text[], statuses text[], before timestamptz, again boolean, moment timestamptz
) RETURNS SETOF text LANGUAGE plpgsql AS $whyloop$
DECLARE
    the_id text;
    stored {schema}.sessions;
BEGIN
    FOREACH the_id IN ARRAY ids LOOP
        SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id
            AND status = ANY (statuses) AND updated_at < before
            AND {schema}.seconds_left(lease_until, lease_seconds, lease_lock, moment) = 0
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM {schema}.remove(stored);
            RETURN NEXT the_id;
        ELSIF again AND NOT EXISTS (SELECT FROM {schema}.sessions WHERE agent_id = the_id) THEN
            RETURN NEXT the_id;
        END IF;
    END LOOP;
END
$whyloop$;
"""

LEASES = """
-- The mark is new with every request, so a request that comes again is known.
CREATE FUNCTION {schema}.acquire(
    the_id text, the_owner text, for_seconds double precision, lock bigint, mark bigint,
    moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    seconds double precision;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_mark = mark THEN
        RETURN {schema}.answered('done', token => stored.lease_token);
    END IF;
    seconds := {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
    IF seconds > 0 THEN
        RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
    END IF;
    UPDATE {schema}.sessions SET
        lease_owner = the_owner, lease_token = nextval('{schema}.tokens'), lease_mark = mark,
        lease_lock = lock, lease_seconds = for_seconds,
        lease_until = coalesce(moment, clock_timestamp()) + make_interval(secs => for_seconds)
    WHERE number = stored.number RETURNING * INTO stored;
    RETURN {schema}.answered('done', token => stored.lease_token);
END
$whyloop$;

CREATE FUNCTION {schema}.renew(the_id text, the_token bigint, lock bigint, moment timestamptz)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_token IS DISTINCT FROM the_token THEN
        RETURN {schema}.answered('lost', owner => stored.lease_owner);
    END IF;
    UPDATE {schema}.sessions
    SET lease_until = coalesce(moment, clock_timestamp()) + make_interval(secs => stored.lease_seconds),
        lease_lock = lock
    WHERE number = stored.number;
    RETURN {schema}.answered('done', stop_request => stored.stop_request);
END
$whyloop$;

CREATE FUNCTION {schema}.release(the_id text, the_token bigint)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    request text;
BEGIN
    SELECT stop_request INTO request FROM {schema}.sessions
    WHERE agent_id = the_id AND lease_token = the_token FOR UPDATE;
    UPDATE {schema}.sessions SET
        lease_owner = NULL, lease_token = NULL, lease_mark = NULL, lease_lock = NULL,
        lease_seconds = NULL, lease_until = NULL, stop_request = NULL
    WHERE agent_id = the_id AND lease_token = the_token;
    RETURN {schema}.answered('done', stop_request => request);
END
$whyloop$;

CREATE FUNCTION {schema}.ask_to_stop(the_id text, request text, moment timestamptz)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment) = 0 THEN
        RETURN {schema}.answered('free');
    END IF;
    UPDATE {schema}.sessions SET stop_request = request WHERE number = stored.number;
    RETURN {schema}.answered('done');
END
$whyloop$;
"""

CHUNKS = """
-- Send the chunks of those sessions that another connection follows, in payloads that a notification can
-- hold. A follower holds a shared advisory lock on a number in `space` for each session, or on 0 for all.
CREATE FUNCTION {schema}.send_chunks(
    channel text, space integer, chunks json, longest integer
) RETURNS void LANGUAGE plpgsql AS $whyloop$
DECLARE
    followed integer[];
    chunk text;
    payload text := '';
BEGIN
    SELECT array_agg(DISTINCT objid::bigint::integer) INTO followed FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = space AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pid <> pg_backend_pid();
    IF followed IS NULL THEN
        RETURN;
    END IF;
    FOR chunk IN
        SELECT new.chunk FROM json_to_recordset(chunks) AS new (session integer, chunk text)
        WHERE new.session = ANY (followed) OR 0 = ANY (followed)
    LOOP
        IF octet_length(payload) + octet_length(chunk) > longest THEN
            PERFORM pg_notify(channel, payload);
            payload := '';
        END IF;
        payload := payload || chunk;
    END LOOP;
    IF payload <> '' THEN
        PERFORM pg_notify(channel, payload);
    END IF;
END
$whyloop$;
"""

MIGRATIONS: dict[LiteralString, LiteralString] = {
    "1 sessions, journals, leases and chunks": TABLES + TYPES + LEASES + CHANGES + REMOVAL + CHUNKS,
}

SUMMARY = """
    session.agent_id, {columns},
    (SELECT coalesce(max(seq), 0) FROM {schema}.entries WHERE entries.session = session.number),
    CASE WHEN {schema}.seconds_left(
        session.lease_until, session.lease_seconds, session.lease_lock, %(moment)s
    ) > 0 THEN session.lease_owner END
"""

FREE = """
    {schema}.seconds_left(
        session.lease_until, session.lease_seconds, session.lease_lock, %(moment)s
    ) = 0
"""

ENTRIES = """
    SELECT body FROM {schema}.entries
    WHERE entries.session = NUMBER AND entries.seq > %(after)s::bigint
    ORDER BY entries.seq LIMIT %(limit)s::bigint
"""

CHECKPOINT = """
SELECT found.version, found.execution_id, found.seq, found.step_count, found.message_count, found.state
FROM {schema}.sessions AS session
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.checkpoints
    WHERE checkpoints.session = session.number
        AND (%(execution_id)s::text IS NULL OR checkpoints.execution_id = %(execution_id)s)
        AND checkpoints.seq <= %(seq)s::bigint
        AND checkpoints.step_count <= %(step_count)s::bigint
        AND checkpoints.message_count <= %(message_count)s::bigint
    ORDER BY checkpoints.version DESC LIMIT 1
) AS found ON true
WHERE session.agent_id = %(agent_id)s
"""

PRUNABLE = f"""
SELECT found.agent_id FROM unnest(%(statuses)s::text[]) AS wanted (status), LATERAL (
    SELECT session.updated_at, session.agent_id FROM {{schema}}.sessions AS session
    WHERE session.status = wanted.status AND session.updated_at < %(before)s AND {FREE}
    ORDER BY session.updated_at, session.agent_id LIMIT %(limit)s
) AS found
ORDER BY found.updated_at, found.agent_id LIMIT %(limit)s
"""

UNATTENDED = f"""
FROM {{schema}}.sessions AS session
WHERE (session.status = 'in_progress' OR (session.status = 'paused' AND session.pending = 0)) AND {FREE}
ORDER BY session.updated_at, session.agent_id LIMIT %(limit)s
"""

WITHIN = """
    found.started_at > coalesce(%(since)s, '-infinity'::timestamptz)
    AND (found.started_at, found.agent_id) < (coalesce(%(until)s, 'infinity'::timestamptz), %(end)s)
"""

# How many sessions there are under some labels, counted up to a limit.
COUNTS = f"""
SELECT asked.label, (
    SELECT count(*) FROM (
        SELECT FROM {{schema}}.labels AS found
        WHERE found.label = asked.label AND {WITHIN}
        LIMIT %(limit)s
    ) AS counted
) FROM unnest(%(labels)s::bigint[]) AS asked (label)
"""

# The newest sessions of several places in the index that have some other labels as well, which come as
# texts: there are no arrays of arrays of different lengths. Each place is read in the order of the list,
# and a subquery that counts is answered session by session: a planner has no other choice.
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
            AND (%(updated_before)s::timestamptz IS NULL OR %(updated_before)s > (
                SELECT updated_at FROM {{schema}}.sessions WHERE sessions.agent_id = found.agent_id
            ))
        ORDER BY found.started_at DESC, found.agent_id DESC LIMIT %(limit)s
    ) AS found
    ORDER BY found.started_at DESC, found.agent_id DESC LIMIT %(limit)s
) AS found,
LATERAL (SELECT * FROM {{schema}}.sessions WHERE sessions.agent_id = found.agent_id OFFSET 0) AS session
ORDER BY session.started_at DESC, session.agent_id DESC
"""


class Statements:
    """The statements of a store whose tables are in one schema."""

    def __init__(self, schema: str) -> None:
        if not schema or len(schema.encode()) > 63 or any(sign in schema for sign in "'$\x00"):
            raise ConfigurationError(f"invalid schema {schema!r}: use 1 to 63 characters, without ' and $")
        self._schema = schema
        change = "json_populate_record(NULL::{schema}.change, %(change)s::json)"
        self.create = self._call("create_session", change, "%(again)s")
        self.append = self._call("append", "%(changes)s::json", "%(waiting)s", "%(again)s", "%(moment)s")
        self.acquire = self._call(
            "acquire", "%(agent_id)s", "%(owner)s", "%(seconds)s", "%(lock)s", "%(mark)s", "%(moment)s"
        )
        self.renew = self._call("renew", "%(agent_id)s", "%(token)s", "%(lock)s", "%(moment)s")
        self.release = self._call("release", "%(agent_id)s", "%(token)s")
        self.ask_to_stop = self._call("ask_to_stop", "%(agent_id)s", "%(reason)s", "%(moment)s")
        self.delete = self._call(
            "delete_session", "%(agent_id)s", "%(expected)s::bigint", "%(again)s", "%(moment)s"
        )
        self.prune = self._call("prune", "%(ids)s", "%(statuses)s", "%(before)s", "%(again)s", "%(moment)s")
        self.send_chunks = self._call(
            "send_chunks", "%(channel)s", "%(space)s", "%(chunks)s::json", "%(longest)s"
        )
        self.read = self._filled(
            f"SELECT {SUMMARY}, session.number, ARRAY({ENTRIES.replace('NUMBER', 'session.number')}) "
            "FROM {schema}.sessions AS session WHERE session.agent_id = %(agent_id)s"
        )
        self.entries = self._filled(ENTRIES.replace("NUMBER", "%(number)s"))
        self.checkpoint = self._filled(CHECKPOINT)
        self.key = self._filled(
            "SELECT keys.digest, keys.version FROM {schema}.sessions LEFT JOIN {schema}.keys "
            "ON keys.session = sessions.number AND keys.key = %(key)s WHERE sessions.agent_id = %(agent_id)s"
        )
        self.versions = self._filled(
            "SELECT agent_id, identity, "
            "(SELECT coalesce(max(seq), 0) FROM {schema}.entries WHERE session = number) "
            "FROM {schema}.sessions WHERE agent_id = ANY (%(ids)s::text[])"
        )
        self.stop_requests = self._filled(
            "SELECT lease_token, stop_request FROM {schema}.sessions "
            "WHERE stop_request IS NOT NULL AND lease_token = ANY (%(tokens)s::bigint[])"
        )
        self.prunable = self._filled(PRUNABLE)
        self.unattended = self._filled(f"SELECT {SUMMARY} {UNATTENDED}")
        self.counts = self._filled(COUNTS)
        self.page = self._filled(f"SELECT {SUMMARY} {PAGE}")

    def _call(self, function: LiteralString, *arguments: LiteralString) -> bytes:
        return self._filled("SELECT * FROM {schema}." + function + "(" + ", ".join(arguments) + ")")

    def _filled(self, statement: LiteralString) -> bytes:
        return filled(statement, self._schema).as_bytes(None)


def filled(statement: LiteralString, schema: str) -> sql.Composed:
    """Return a statement for the tables of one schema."""
    columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    return sql.SQL(statement).format(schema=sql.Identifier(schema), columns=columns)
