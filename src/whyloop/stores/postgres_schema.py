"""The tables of a PostgreSQL store, the functions that change them, and how they came to be.

Each change is one function in the database, and so one statement and one trip to the server: it
locks the row of the session, looks, and either does all of it or says why not. A migration that
was released is never edited; a new one is added at the end.
"""

from __future__ import annotations

from typing import LiteralString

TABLES = """
CREATE TABLE {schema}.sessions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL UNIQUE,
    status text COLLATE "C" NOT NULL,
    stop_reason text COLLATE "C",
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    step_count bigint NOT NULL,
    title text NOT NULL,
    parent_agent_id text,
    metadata text NOT NULL,  -- JSON; not jsonb, which refuses some texts that JSON allows
    labels bigint[] NOT NULL,
    lease_owner text,
    lease_token bigint,
    lease_mark bigint,
    lease_seconds double precision,
    lease_until timestamptz,
    stop_request text
) WITH (fillfactor = 80);  -- room to renew a lease without touching an index

CREATE TABLE {schema}.entries (
    session bigint NOT NULL REFERENCES {schema}.sessions ON DELETE CASCADE,
    seq integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (session, seq)
);

-- Where a session is found: a row for each of its labels, in the order of the list. There is no
-- reference to the session, which would be checked row by row: only `reindex` changes this table.
CREATE TABLE {schema}.labels (
    label bigint NOT NULL,
    started_at timestamptz NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (label, started_at, agent_id)
);

-- One count for all sessions: no lease of a deleted one is ever that of its successor.
CREATE SEQUENCE {schema}.tokens;
"""

TYPES = """
-- A session as it is to be listed.
CREATE TYPE {schema}.listing AS (
    status text, stop_reason text, started_at timestamptz, updated_at timestamptz, step_count bigint,
    title text, parent_agent_id text, metadata text, labels bigint[]
);

-- What a function has to say: 'done', or why it did nothing.
CREATE TYPE {schema}.answer AS (
    outcome text, version integer, owner text, seconds double precision, token bigint, words text
);

CREATE FUNCTION {schema}.answered(
    outcome text, version integer DEFAULT NULL, owner text DEFAULT NULL,
    seconds double precision DEFAULT NULL, token bigint DEFAULT NULL, words text DEFAULT NULL
) RETURNS {schema}.answer LANGUAGE sql IMMUTABLE AS $whyloop$
    SELECT ROW(outcome, version, owner, seconds, token, words)::{schema}.answer
$whyloop$;

-- None are left of a lease that has lapsed, nor of one that a clock gave which had gone wrong.
CREATE FUNCTION {schema}.seconds_left(until timestamptz, seconds double precision, moment timestamptz)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $whyloop$
    SELECT CASE
        WHEN until > moment AND extract(epoch FROM until - moment) <= 2 * seconds
        THEN extract(epoch FROM until - moment)::double precision
        ELSE 0
    END
$whyloop$;

-- Whether the journal has these entries after the first ones.
CREATE FUNCTION {schema}.has_entries(the_number bigint, after integer, bodies text[])
RETURNS boolean LANGUAGE sql STABLE AS $whyloop$
    SELECT coalesce(array_agg(body ORDER BY seq), ARRAY[]::text[]) = bodies
    FROM {schema}.entries
    WHERE session = the_number AND seq > after AND seq <= after + cardinality(bodies)
$whyloop$;

-- Move a session in the index; what stays the same is not touched.
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
"""

JOURNAL = """
CREATE FUNCTION {schema}.create_session(
    the_id text, listed {schema}.listing, bodies text[], again boolean
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    added bigint;
BEGIN
    INSERT INTO {schema}.sessions (
        agent_id, status, stop_reason, started_at, updated_at, step_count, title, parent_agent_id, metadata,
        labels
    ) VALUES (
        the_id, listed.status, listed.stop_reason, listed.started_at, listed.updated_at,
        listed.step_count, listed.title, listed.parent_agent_id, listed.metadata, listed.labels
    ) ON CONFLICT (agent_id) DO NOTHING RETURNING number INTO added;
    IF added IS NULL THEN
        SELECT number INTO added FROM {schema}.sessions
        WHERE agent_id = the_id AND started_at = listed.started_at;
        IF again AND added IS NOT NULL AND {schema}.has_entries(added, 0, bodies) THEN
            RETURN {schema}.answered('done');
        END IF;
        RETURN {schema}.answered('exists');
    END IF;
    INSERT INTO {schema}.entries (session, seq, body)
    SELECT added, place, body FROM unnest(bodies) WITH ORDINALITY AS new (body, place);
    PERFORM {schema}.reindex(
        the_id, listed.started_at, ARRAY[]::bigint[], listed.started_at, listed.labels);
    RETURN {schema}.answered('done');
END
$whyloop$;

-- `again` is for who does not know whether the first attempt came through: entries that are there
-- already, in their place and to the letter, are then what was wanted.
CREATE FUNCTION {schema}.append_entries(
    the_id text, bodies text[], after integer, the_token bigint, listed {schema}.listing,
    giving_back boolean, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    version integer;
    words text;
    seconds double precision;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_token = the_token THEN
        words := stored.stop_request;
    END IF;
    IF again AND cardinality(bodies) > 0 AND {schema}.has_entries(stored.number, after, bodies) THEN
        RETURN {schema}.answered('done', words => words);
    END IF;
    IF the_token IS NULL THEN
        seconds := {schema}.seconds_left(
            stored.lease_until, stored.lease_seconds, coalesce(moment, clock_timestamp()));
        IF seconds > 0 THEN
            RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
        END IF;
    ELSIF the_token IS DISTINCT FROM stored.lease_token THEN
        RETURN {schema}.answered('lost', owner => stored.lease_owner);
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    IF version <> after THEN
        RETURN {schema}.answered('conflict', version => version);
    END IF;
    INSERT INTO {schema}.entries (session, seq, body)
    SELECT stored.number, after + place, body FROM unnest(bodies) WITH ORDINALITY AS new (body, place);
    IF listed.status IS NOT NULL THEN
        UPDATE {schema}.sessions SET
            status = listed.status, stop_reason = listed.stop_reason, started_at = listed.started_at,
            updated_at = listed.updated_at, step_count = listed.step_count, title = listed.title,
            parent_agent_id = listed.parent_agent_id, metadata = listed.metadata, labels = listed.labels
        WHERE number = stored.number;
        IF stored.labels <> listed.labels OR stored.started_at <> listed.started_at THEN
            PERFORM {schema}.reindex(
                the_id, stored.started_at, stored.labels, listed.started_at, listed.labels);
        END IF;
    END IF;
    IF giving_back AND the_token IS NOT NULL THEN
        PERFORM {schema}.release(the_id, the_token);
    END IF;
    RETURN {schema}.answered('done', words => words);
END
$whyloop$;

CREATE FUNCTION {schema}.delete_session(the_id text, again boolean, moment timestamptz)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    seconds double precision;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered(CASE WHEN again THEN 'done' ELSE 'missing' END);
    END IF;
    seconds := {schema}.seconds_left(
        stored.lease_until, stored.lease_seconds, coalesce(moment, clock_timestamp()));
    IF seconds > 0 THEN
        RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
    END IF;
    PERFORM {schema}.reindex(
        the_id, stored.started_at, stored.labels, stored.started_at, ARRAY[]::bigint[]);
    DELETE FROM {schema}.sessions WHERE number = stored.number;
    RETURN {schema}.answered('done');
END
$whyloop$;
"""

LEASES = """
-- The mark is new with every request, so one whose answer got lost is known when it comes again.
CREATE FUNCTION {schema}.acquire(
    the_id text, the_owner text, for_seconds double precision, mark bigint, moment timestamptz
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
    moment := coalesce(moment, clock_timestamp());
    seconds := {schema}.seconds_left(stored.lease_until, stored.lease_seconds, moment);
    IF seconds > 0 THEN
        RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
    END IF;
    UPDATE {schema}.sessions SET
        lease_owner = the_owner, lease_token = nextval('{schema}.tokens'), lease_mark = mark,
        lease_seconds = for_seconds, lease_until = moment + make_interval(secs => for_seconds)
    WHERE number = stored.number RETURNING * INTO stored;
    RETURN {schema}.answered('done', token => stored.lease_token);
END
$whyloop$;

CREATE FUNCTION {schema}.renew(the_id text, the_token bigint, moment timestamptz)
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
    SET lease_until = coalesce(moment, clock_timestamp()) + make_interval(secs => stored.lease_seconds)
    WHERE number = stored.number;
    RETURN {schema}.answered('done', words => stored.stop_request);
END
$whyloop$;

CREATE FUNCTION {schema}.release(the_id text, the_token bigint)
RETURNS text LANGUAGE plpgsql AS $whyloop$
DECLARE
    words text;
BEGIN
    SELECT stop_request INTO words FROM {schema}.sessions
    WHERE agent_id = the_id AND lease_token = the_token FOR UPDATE;
    UPDATE {schema}.sessions SET
        lease_owner = NULL, lease_token = NULL, lease_mark = NULL, lease_seconds = NULL,
        lease_until = NULL, stop_request = NULL
    WHERE agent_id = the_id AND lease_token = the_token;
    RETURN words;
END
$whyloop$;

CREATE FUNCTION {schema}.ask_to_stop(the_id text, reason text, moment timestamptz)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF {schema}.seconds_left(
        stored.lease_until, stored.lease_seconds, coalesce(moment, clock_timestamp())) = 0
    THEN
        RETURN {schema}.answered('idle');
    END IF;
    UPDATE {schema}.sessions SET stop_request = reason WHERE number = stored.number;
    RETURN {schema}.answered('done');
END
$whyloop$;
"""

EVENTS = """
-- What was told of a session, envelope by envelope, where somebody keeps it.
CREATE TABLE {schema}.events (
    session bigint NOT NULL REFERENCES {schema}.sessions ON DELETE CASCADE,
    position integer NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (session, position)
);
CREATE INDEX ON {schema}.events (session, execution_id, seq, position);

-- Whoever listens is told which session it was; what there is to hear is in the table.
CREATE FUNCTION {schema}.add_events(
    the_id text, executions text[], numbers bigint[], bodies text[], again boolean
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    the_session bigint;
    last integer;
BEGIN
    -- It is not to be deleted meanwhile. Those who keep events take turns among themselves.
    SELECT number INTO the_session FROM {schema}.sessions WHERE agent_id = the_id FOR KEY SHARE;
    IF the_session IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{schema} events', the_session));
    SELECT coalesce(max(position), 0) INTO last FROM {schema}.events WHERE session = the_session;
    IF again AND cardinality(bodies) > 0 AND bodies = ARRAY(
        SELECT body FROM {schema}.events
        WHERE session = the_session AND position > last - cardinality(bodies) ORDER BY position
    ) THEN
        RETURN {schema}.answered('done', version => last);
    END IF;
    INSERT INTO {schema}.events (session, position, execution_id, seq, body)
    SELECT the_session, last + place, execution_id, seq, body
    FROM unnest(executions, numbers, bodies) WITH ORDINALITY AS new (execution_id, seq, body, place);
    PERFORM pg_notify('whyloop_events', the_id);
    RETURN {schema}.answered('done', version => last + cardinality(bodies));
END
$whyloop$;
"""

MIGRATIONS: dict[LiteralString, LiteralString] = {
    "1 sessions, journals, labels and leases": TABLES + TYPES + LEASES + JOURNAL,
    "2 events": EVENTS,
}
