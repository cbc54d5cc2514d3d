"""The operations that show a run in detail, for the inspector and for programs like it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from whyloop.server.api import Api, Call
from whyloop.server.live import LiveStream, SessionChanges


class InspectionApi(Api):
    """The operations, with those that show a run in detail."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._changes = SessionChanges(self._store, self._redaction)

    async def close(self) -> None:
        """End all streams."""
        await self._changes.close()
        await super().close()

    async def get_live(self, call: Call) -> LiveStream:
        async def check(agent_id: str) -> object:
            return await self.check(replace(call, agent_id=agent_id))

        return LiveStream(self.feed, self._changes, call.query, call.access, check, self._redaction)

    async def delete_session(self, call: Call) -> None:
        summary = await self.check(call)
        await super().delete_session(call)
        self._changes.delete(summary)
