"""The operations that show a run in detail, for the inspector and for programs like it."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from whyloop.server import bodies
from whyloop.server.api import Api, Call
from whyloop.server.live import LiveStream, SessionChanges
from whyloop.server.operations import ExecutionQuery
from whyloop.server.saved import saved_session
from whyloop.server.steps import snapshot_view, step_detail

# A file to keep: shown under the address of the server, it would be a page of that site.
_SAVED_HEADERS = {
    "content-security-policy": "sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class InspectionApi(Api):
    """The operations, with those that show a run in detail."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._changes = SessionChanges(self._store, self._redaction)

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

    async def get_live(self, call: Call) -> LiveStream:
        async def check(agent_id: str) -> object:
            return await self.check(replace(call, agent_id=agent_id))

        return LiveStream(self.feed, self._changes, call.query, call.access, check, self._redaction)

    async def delete_session(self, call: Call) -> None:
        summary = await self.check(call)
        await super().delete_session(call)
        self._changes.delete(summary)
