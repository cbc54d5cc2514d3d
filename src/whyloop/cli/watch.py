"""`whyloop watch`: the events of a session, whichever process runs it."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from io import StringIO

import msgspec

from whyloop.broadcasting.console import AgentConsoleLogger
from whyloop.broadcasting.feed import Cursor, EventFeed, FeedItem
from whyloop.cli.store_access import find_session
from whyloop.cli.terminal import write
from whyloop.stores.store import Store


async def watch(store: Store, args: argparse.Namespace) -> int:
    """Print the events of a session: those so far, and then new ones as they come."""
    agent_id = (await find_session(store, args.id)).agent_id
    async with EventFeed(store) as feed:
        cursor = await feed.cursor(agent_id, args.after)
        events = _recorded(feed, agent_id, cursor) if args.so_far else feed.follow(agent_id, cursor)
        async with aclosing(events) as batches:
            async for items in batches:
                lines = StringIO()
                AgentConsoleLogger(lines, json=args.json).broadcast_batch(
                    [msgspec.json.decode(item.body) for item in items]
                )
                write(lines.getvalue())
    return 0


async def _recorded(
    feed: EventFeed, agent_id: str, cursor: Cursor | None
) -> AsyncGenerator[Sequence[FeedItem], None]:
    """Yield the events that are recorded now, page by page."""
    while True:
        page = await feed.page(agent_id, cursor)
        if page.items:
            yield page.items
        if not page.has_more:
            return
        cursor = page.cursor
