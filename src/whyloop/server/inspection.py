"""The operations that show a run in detail, for the inspector and for programs like it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from whyloop.server import bodies
from whyloop.server.api import Call
from whyloop.server.lists import ListApi
from whyloop.server.live import LiveStream, SessionChanges
from whyloop.server.operations import ExecutionQuery, ListQuery, SurveyQuery
from whyloop.server.saved import saved_session
from whyloop.server.steps import snapshot_view, step_detail
from whyloop.server.what_if import Recordings, survey_view, what_if
from whyloop.stores.records import Summary

# A survey reads many sessions, so only so many at once.
SURVEYS_AT_ONCE, PAGE = 2, 200
_FILTERS = tuple(field for field in SurveyQuery.__struct_fields__ if field not in ("limit", "sessions"))

# A file to keep: shown under the address of the server, it would be a page of that site.
_SAVED_HEADERS = {
    "content-security-policy": "sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class InspectionApi(ListApi):
    """The operations, with those that show a run in detail."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._changes = SessionChanges(self._store, self._redaction)
        self._recordings = Recordings(self._store)
        self._surveys = asyncio.Semaphore(SURVEYS_AT_ONCE)

    async def close(self) -> None:
        """End all streams."""
        await self._changes.close()
        await super().close()

    async def get_step(self, call: Call) -> bodies.StepDetail:
        end = await self._end(call)
        return await step_detail(self._store, end, call.index, call.query.messages, self._redaction)

    async def get_executions(self, call: Call) -> bodies.ExecutionPage:
        query: ExecutionQuery = call.query
        found = await self._executions.read(await self._end(call))
        last = query.after + query.limit
        has_more = last < len(found)
        return bodies.ExecutionPage(found[query.after : last], has_more, last if has_more else None)

    async def get_snapshot(self, call: Call) -> dict[str, Any]:
        await self.check(call)
        return await snapshot_view(self._store, call.agent_id, self._redaction)

    async def get_saved(self, call: Call) -> Response:
        await self.check(call)
        page = await saved_session(self._store, call.agent_id, self._redaction)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", call.agent_id)[:80]
        headers = {**_SAVED_HEADERS, "content-disposition": f'attachment; filename="whyloop-{name}.html"'}
        return Response(page, media_type="text/html", headers=headers)

    async def get_what_if(self, call: Call) -> bodies.WhatIf:
        recording = await self._recordings.read(await self.check(call))
        return await what_if(recording, call.query, self._redaction)

    async def survey_sessions(self, call: Call) -> bodies.SurveyView:
        async with self._surveys, aclosing(self._pages(call)) as pages:
            return await survey_view(self._store, pages, call.query.limit)

    async def _pages(self, call: Call) -> AsyncGenerator[Sequence[Summary], None]:
        """Yield the newest sessions that a query asks for, among those that the client may see."""
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
        async def check(agent_id: str) -> object:
            return await self.check(replace(call, agent_id=agent_id))

        return LiveStream(self.feed, self._changes, call.query, call.access, check, self._redaction)

    async def delete_session(self, call: Call) -> None:
        summary = await self.check(call)
        await super().delete_session(call)
        self._changes.delete(summary)
