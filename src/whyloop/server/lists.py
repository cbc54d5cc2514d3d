"""The operations on all sessions: the list, its numbers, the questions that wait, and the server itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import whyloop
from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.server import bodies
from whyloop.server.access import Access, Label, agree
from whyloop.server.api import Api, Call
from whyloop.server.operations import ListQuery, SessionQuery, StatsQuery
from whyloop.server.views import summaries_view
from whyloop.stores.reading import read_end
from whyloop.stores.records import (
    DAY,
    Page,
    SessionFilter,
    Summary,
    Tally,
    cursor_of,
    search_words,
    tallies_of,
)
from whyloop.stores.summaries import can_find
from whyloop.values.approval import PendingCall
from whyloop.values.continuation import StopReason
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.summaries import args_summary

# A search whose results are checked reads pages of so many sessions.
_CHECKED_PAGE = 500


class ListApi(Api):
    """The operations, with those on all sessions that a client may see."""

    async def find_sessions(self, query: ListQuery, access: Access) -> Page:
        """Return a page of the sessions that a query asks for, among those that the client may see."""
        wanted = filter_of(query, access)
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
        wanted = filter_of(query, call.access)
        since = datetime.combine(first, datetime.min.time(), self._store.now().tzinfo) + behind
        tallies = () if wanted is None else await self._tally(wanted, since)
        return stats_of(tallies, [first + number * DAY for number in range(query.days)])

    async def get_questions(self, call: Call) -> bodies.QuestionPage:
        within, limit = call.access.within, call.query.limit
        found: list[bodies.OpenQuestion] = []
        for summary in await self._store.waiting(within, limit=limit):
            with suppress(SessionNotFoundError):  # It was deleted meanwhile.
                found += questions_of(
                    (await read_end(self._store, summary.agent_id)).state, summary, self._redaction
                )
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
            can_run=self._choose_agent is not None,
            read_only=access.read_only,
            may_decide=access.may_decide and not access.read_only,
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
        shown = tuple(found[: query.limit])
        return Page(shown, cursor_of(shown[-1]) if len(found) > query.limit else None)

    async def _checked(
        self, wanted: SessionFilter, after: str | None = None
    ) -> AsyncGenerator[Summary, None]:
        """Yield the sessions that are found by words which the client can see."""
        words = search_words(wanted)
        while True:
            page = await self._store.find(wanted, limit=_CHECKED_PAGE, after=after)
            for summary in page.sessions:
                if can_find(summary, words, self._redaction):
                    yield summary
            after = page.next
            if after is None:
                return

    async def _tally(self, wanted: SessionFilter, since: datetime) -> tuple[Tally, ...]:
        if not self._checks_words(wanted):
            return await self._store.tally(wanted, since=since)
        return tallies_of([summary async for summary in self._checked(wanted)], since)


# Filters


def filter_of(query: SessionQuery, access: Access) -> SessionFilter | None:
    """Return which sessions a client asks for among those that it may see; None if there can be none."""
    metadata = _labels(query.metadata)
    if not agree(metadata, access.within):
        return None
    return SessionFilter(
        status=query.status,
        stop_reason=query.stop_reason,
        resolved_by=query.resolved_by,
        agent=query.agent,
        started_after=query.started_after,
        started_before=query.started_before,
        updated_after=query.updated_after,
        waiting=query.waiting,
        search=query.search,
        metadata={**metadata, **access.within},
    )


_Wanted = Annotated[dict[str, Label], Meta(max_length=bodies.MOST_WANTED)]


def _labels(metadata: str | None) -> Mapping[str, Label]:
    if metadata is None:
        return {}
    try:
        wanted: Mapping[str, Label] = msgspec.json.decode(metadata, type=_Wanted)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"invalid metadata: use a JSON object of up to {bodies.MOST_WANTED} plain values, such as "
            f'{{"user": "ann"}}: {error}'
        ) from None
    return wanted


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
    """Return the numbers of a list; the days of the tallies are numbers in the list of days."""
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
    title = redacted(summary.title, redaction)
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
        call_id=None if of_run else call.call_id,
        name=None if of_run else call.name,
        arguments=None if of_run else arguments,
        args_summary="" if of_run else args_summary(arguments),
        question=redacted(call.question, redaction),
        can_edit=not of_run,
    )
