"""The operations that show sessions: the list, its statistics, open questions, and one run in detail."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

import whyloop
from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.server import bodies, inputs
from whyloop.server.access import Access, Label, agree
from whyloop.server.api import Api, Call
from whyloop.server.details import json_pieces, json_text, saved_session, snapshot_view, step_detail
from whyloop.server.inputs import ExecutionQuery, ListQuery, SessionQuery, StatsQuery, SurveyQuery
from whyloop.server.live import Following, LiveStream, SessionChanges
from whyloop.server.requests import JSON_HEADERS, BadRequestError, check_metadata
from whyloop.server.views import Tagged, summaries_view
from whyloop.server.what_if import Recordings, survey_view, what_if
from whyloop.stores.listing import DAY, can_find, page_of, search_terms, tallies_of
from whyloop.stores.reading import OneSession, Reading, read_end, release_all
from whyloop.stores.records import Page, SessionFilter, Summary, Tally
from whyloop.values.approval import PendingCall
from whyloop.values.continuation import StopReason
from whyloop.values.encoding import copied
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted, redacted_cut
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.summaries import args_summary
from whyloop.values.text import shortened

# A survey reads many sessions, so only a few surveys run at once.
SURVEYS_AT_ONCE, PAGE = 2, 200
_FILTERS = tuple(field for field in SurveyQuery.__struct_fields__ if field not in ("limit", "sessions"))

# A file to download: shown by a browser, it would be a page of the server's site.
_SAVED_HEADERS = {
    "content-security-policy": "sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
# The sessions on each page of a search whose results are checked.
_CHECKED_PAGE = 500


class InspectionApi(Api):
    """The operations, with those that show all sessions, and one run in detail."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changes = SessionChanges(self._store, self._redaction)
        self._recordings = Recordings(self._store)
        self._surveys = asyncio.Semaphore(SURVEYS_AT_ONCE)

    async def close(self) -> None:
        """End all streams."""
        await self._changes.close()
        await super().close()

    # All sessions

    async def find_sessions(self, query: ListQuery, access: Access) -> Page:
        """Return a page of the sessions of a query that the client may see."""
        wanted = filter_of(query, access, self._redaction)
        if wanted is None:
            return Page(())
        if self._checks_words(wanted):
            return await self._checked_page(wanted, query)
        return await self._store.find(wanted, limit=query.limit, after=query.after)

    async def list_sessions(self, call: Call) -> bodies.SessionPage:
        page = await self.find_sessions(call.query, call.access)
        return bodies.SessionPage(await summaries_view(page.sessions, self._redaction), page.next)

    async def get_stats(self, call: Call) -> bodies.Stats:
        query: StatsQuery = call.query
        behind = timedelta(minutes=query.offset_minutes)
        today = (self._store.now() - behind).date()
        first = today - (query.days - 1) * DAY
        wanted = filter_of(query, call.access, self._redaction)
        since = datetime.combine(first, datetime.min.time(), self._store.now().tzinfo) + behind
        tallies = () if wanted is None else await self._tally(wanted, since)
        return stats_of(tallies, [first + number * DAY for number in range(query.days)])

    async def get_questions(self, call: Call) -> bodies.QuestionPage:
        within, limit = call.access.within, call.query.limit
        found: list[bodies.OpenQuestion] = []
        for summary in await self._store.waiting(within, limit=limit):
            with suppress(SessionNotFoundError):  # It was deleted in the meantime.
                end = await read_end(OneSession(self._store, summary.identity), summary.agent_id)
                found += questions_of(end.state, summary, self._redaction)
        found.sort(key=lambda question: question.asked_at)
        tallies = await self._store.tally(
            SessionFilter(metadata=within, waiting=True), since=self._store.now()
        )
        return bodies.QuestionPage(found[:limit], max(len(found), sum(tally.questions for tally in tallies)))

    async def get_info(self, call: Call) -> bodies.Info:
        access = call.access
        return bodies.Info(
            version=whyloop.__version__,
            store=self._store.name,
            can_run=self._choose_agent is not None or self._engine is not None,
            may=[right for right in bodies.RIGHTS if right in access.may],
            user=access.user or None,
        )

    async def get_metrics(self, call: Call) -> str:
        within = call.access.within
        tallies = await self._store.tally(SessionFilter(metadata=within), since=self._store.now())
        return self._metrics.text(tallies, of_process=not within)

    async def get_health(self) -> str:
        return "ok"

    # Searches under rules of redaction that the store does not know

    def _checks_words(self, wanted: SessionFilter) -> bool:
        return wanted.search is not None and self._redaction not in (None, DEFAULT_REDACTION)

    async def _checked_page(self, wanted: SessionFilter, query: ListQuery) -> Page:
        found: list[Summary] = []
        async with aclosing(self._checked(wanted, query.after)) as sessions:
            async for summary in sessions:
                found.append(summary)
                if len(found) > query.limit:
                    break
        return page_of(found, query.limit)

    async def _checked(
        self, wanted: SessionFilter, after: str | None = None
    ) -> AsyncGenerator[Summary, None]:
        """Yield the sessions that are found by terms which the client can see."""
        terms = search_terms(wanted)
        while True:
            page = await self._store.find(wanted, limit=_CHECKED_PAGE, after=after)
            for summary in page.sessions:
                if can_find(summary, terms, self._redaction):
                    yield summary
            after = page.next
            if after is None:
                return

    async def _tally(self, wanted: SessionFilter, since: datetime) -> tuple[Tally, ...]:
        if not self._checks_words(wanted):
            return await self._store.tally(wanted, since=since)
        return tallies_of([summary async for summary in self._checked(wanted)], since)

    # One run

    async def get_step(self, call: Call) -> bodies.StepDetail:
        session = await self.open(call)
        end = await read_end(session, call.agent_id)
        return await step_detail(session, end, call.index, call.query.messages, self._redaction)

    async def get_executions(self, call: Call) -> bodies.ExecutionPage:
        query: ExecutionQuery = call.query
        found = await self._executions.read(await read_end(await self.open(call), call.agent_id))
        last = query.after + query.limit
        has_more = last < len(found)
        return bodies.ExecutionPage(found[query.after : last], has_more, last if has_more else None)

    async def get_snapshot(self, call: Call) -> Response:
        shown = await snapshot_view(await self.open(call), call.agent_id, self._redaction)
        # In pieces, because encoding 20,000 steps at once takes 20 ms.
        pieces = [piece async for piece in json_pieces(shown, json_text)]
        for history in shown.values():
            if isinstance(history, list):
                release_all(history)
        return StreamingResponse(_bytes_of(pieces), media_type="application/json", headers=JSON_HEADERS)

    async def get_saved(self, call: Call) -> Response:
        page = await saved_session(await self.open(call), call.agent_id, self._redaction, self._store.now())
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", call.agent_id)[:80]
        headers = {**_SAVED_HEADERS, "content-disposition": f'attachment; filename="whyloop-{name}.html"'}
        return StreamingResponse(_bytes_of(page), media_type="text/html", headers=headers)

    async def get_what_if(self, call: Call) -> bodies.WhatIf:
        async with self._recordings.reading(await self.check(call)) as recording:
            return await what_if(recording, call.query, self._redaction)

    async def survey_sessions(self, call: Call) -> bodies.SurveyView:
        async with self._surveys, aclosing(self._pages(call)) as pages:
            return await survey_view(self._store, pages, call.query.limit)

    async def _pages(self, call: Call) -> AsyncGenerator[Sequence[Summary], None]:
        """Yield the newest sessions of a query that the client may see."""
        query: SurveyQuery = call.query
        left, after = query.sessions, None
        while left:
            listed = ListQuery(
                **{name: getattr(query, name) for name in _FILTERS}, limit=min(left, PAGE), after=after
            )
            page = await self.find_sessions(listed, call.access)
            yield page.sessions
            left, after = left - len(page.sessions), page.next
            if after is None:
                return

    async def get_live(self, call: Call) -> LiveStream:
        async def follow(agent_id: str, after: str) -> Following:
            return await self.follow(replace(call, agent_id=agent_id), after)

        return LiveStream(self._changes, call.query, call.access, follow, self._redaction)

    async def set_metadata(self, call: Call) -> Tagged:
        body: inputs.MetadataChange = call.body
        kept = sorted(body.metadata.keys() & call.access.within.keys())
        if kept:
            raise BadRequestError(
                f"you may not change {', '.join(map(repr, kept))}: it decides which sessions you see",
                403,
                "not_authorized",
            )
        await self.check(call)
        by = call.access.user or body.by
        merge = self._store.metadata_plan(body.metadata, by, call.key)

        def plan(reading: Reading) -> Sequence[AnyTransition]:
            call.access.check(reading.summary)
            planned = merge(reading)
            for change in planned:  # Repeating one changes nothing, at whichever version.
                call.precondition.check(reading.summary.identity, reading.version)
                check_metadata(change.apply_to(reading.state).metadata)
            return planned

        async def work() -> Tagged:
            return await self._recorded_view(
                call, await self._store.record(call.agent_id, plan, key=call.key)
            )

        return await self._once(call, work, is_running=False)

    async def delete_session(self, call: Call) -> None:
        summary = await self.check(call)
        await super().delete_session(call)
        self._changes.delete(summary)


# Filters


def filter_of(query: SessionQuery, access: Access, redaction: Redaction | None) -> SessionFilter | None:
    """Return the filter of a query within the client's access.

    None if no session can match.
    """
    metadata = _labels(query.metadata)
    if not agree(metadata, access.within):
        return None
    _refuse_hidden({key: metadata[key] for key in metadata.keys() - access.within.keys()}, redaction)
    return copied(query, SessionFilter, metadata={**metadata, **access.within}, updated_before=None)


_Wanted = Annotated[dict[str, Label], Meta(max_length=inputs.MOST_WANTED)]


def _labels(metadata: str | None) -> Mapping[str, Label]:
    if metadata is None:
        return {}
    try:
        wanted: Mapping[str, Label] = msgspec.json.decode(metadata, type=_Wanted)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"invalid metadata: use a JSON object of up to {inputs.MOST_WANTED} plain values, such as "
            f'{{"user": "ann"}}: {error}'
        ) from None
    return wanted


def _refuse_hidden(metadata: Mapping[str, Label], redaction: Redaction | None) -> None:
    """Refuse to search for a redacted value, which a client could guess."""
    for key, value in metadata.items():
        if redacted({key: value}, redaction) != {key: value}:
            raise ConfigurationError(
                f"invalid metadata: sessions cannot be found by {shortened(key, 60)!r}, whose value is "
                "removed as a secret"
            )


# Numbers

_KINDS = {
    StopReason.COMPLETED: "completed",
    StopReason.STEPS_LIMIT_REACHED: "limit",
    StopReason.TOKEN_LIMIT_REACHED: "limit",
    StopReason.TIME_LIMIT_REACHED: "limit",
    StopReason.ERROR_FORBADE: "error",
    StopReason.RETRY_LIMIT_REACHED: "error",
}


def stats_of(tallies: Iterable[Tally], days: list[date]) -> bodies.Stats:
    """Return the numbers of a list.

    The days of the tallies are indexes into the list of days.
    """
    by_day = [Counter[str]() for _ in days]
    rules, statuses, waiting = Counter[str](), Counter[AgentStatus](), 0
    for tally in tallies:
        statuses[tally.status] += tally.sessions
        waiting += tally.waiting
        has_decision = tally.status.has_ended or tally.status is AgentStatus.PAUSED
        if tally.resolved_by is not None and has_decision:
            rules[tally.resolved_by] += tally.sessions
        if tally.stop_reason is not None and tally.day is not None and tally.day < len(days):
            by_day[tally.day][_kind(tally)] += tally.sessions
    return bodies.Stats(
        days=[bodies.Day(day, bodies.DayCounts(**counts)) for day, counts in zip(days, by_day, strict=True)],
        rules=[
            bodies.RuleCount(rule, count)
            for rule, count in sorted(rules.items(), key=lambda each: (-each[1], each[0]))
        ],
        statuses=dict(statuses),
        waiting=waiting,
        total=statuses.total(),
    )


def _kind(tally: Tally) -> str:
    if tally.stop_reason is StopReason.GUARD_FORBADE and tally.resolved_by == "CostLimit":
        return "limit"
    return _KINDS.get(tally.stop_reason, "person") if tally.stop_reason is not None else "person"


# Questions


def questions_of(
    state: AgentState, summary: Summary, redaction: Redaction | None
) -> list[bodies.OpenQuestion]:
    """Return the questions of a session that wait for a person."""
    opened = state.open_step
    asked_at = (opened.answered_at if opened is not None else None) or state.state_info.updated_at
    title = redacted_cut(summary.title, redaction)
    return [_question(call, state, title, asked_at, redaction) for call in state.pending_calls]


def _question(
    call: PendingCall, state: AgentState, title: str, asked_at: datetime, redaction: Redaction | None
) -> bodies.OpenQuestion:
    of_run = state.execution.question is not None and state.execution.question.id == call.id
    arguments: dict[str, Any] = redacted(msgspec.to_builtins(call.arguments), redaction)
    return bodies.OpenQuestion(
        agent_id=state.agent_id,
        title=title,
        asked_at=asked_at,
        id=call.id,
        tool=None if of_run else call.tool,
        tool_call_id=None if of_run else call.tool_call_id,
        arguments=None if of_run else arguments,
        args_summary="" if of_run else args_summary(arguments),
        question=redacted(call.question, redaction),
        can_edit=not of_run,
    )


async def _bytes_of(pieces: list[str]) -> AsyncIterator[bytes]:
    """Yield the pieces of a file, and free each of them."""
    pieces.reverse()
    while pieces:
        yield pieces.pop().encode()
