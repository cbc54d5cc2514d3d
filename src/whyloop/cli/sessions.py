"""`whyloop sessions`: what is in a store."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_json, add_store

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from whyloop.stores.records import Page, Summary
    from whyloop.stores.store import Store

A_PAGE_OF_ALL = 1000


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "list the sessions of a store, the youngest first"
    parser = commands.add_parser("sessions", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_store(parser)
    parser.add_argument("--status", metavar="S", help="only those with this status, such as paused")
    parser.add_argument("--stop-reason", metavar="R", help="only those that ended so, such as steps_limit")
    parser.add_argument(
        "--older-than", metavar="SPAN", type=_span, help="only those that began before, such as 7d or 12h"
    )
    parser.add_argument("--newer-than", metavar="SPAN", type=_span, help="only those that began since")
    parser.add_argument(
        "--metadata",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="only those with this entry; a value that is JSON is taken as such",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="how many at once (default: 50)")
    pages = parser.add_mutually_exclusive_group()
    pages.add_argument("--after", metavar="CURSOR", help="the page after the one that ended there")
    pages.add_argument("--all", action="store_true", help="every page")
    add_json(parser, "one document for machines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List them and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("sessions", args, lambda store: _list(store, args))


async def _list(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.document import summary_document
    from whyloop.cli.session_parts.listing import show_sessions
    from whyloop.cli.terminal import complain, write_json

    page = await _found(store, args)
    if args.json:
        sessions = [summary_document(summary) for summary in page.sessions]
        write_json({"sessions": sessions, "next": page.next})
        return 0
    if page.sessions:
        show_sessions(page.sessions)
    else:
        complain("There are no such sessions." if _filtered(args) else "There are no sessions yet.")
    if page.next:
        complain(f"There are more: --after {page.next}, or --all")
    return 0


async def _found(store: Store, args: argparse.Namespace) -> Page:
    from whyloop.cli.session_parts.metadata import parse_metadata
    from whyloop.stores.records import Page
    from whyloop.stores.store import PAGE

    metadata = parse_metadata(args.metadata)
    started_before, started_after = _moment(args.older_than), _moment(args.newer_than)
    limit = args.limit if args.limit is not None else A_PAGE_OF_ALL if args.all else PAGE
    sessions: list[Summary] = []
    cursor = args.after
    while True:
        page = await store.sessions(
            status=args.status,
            stop_reason=args.stop_reason,
            started_before=started_before,
            started_after=started_after,
            metadata=metadata,
            limit=limit,
            after=cursor,
        )
        sessions += page.sessions
        cursor = page.next
        if cursor is None or not args.all:
            return Page(tuple(sessions), cursor)


def _filtered(args: argparse.Namespace) -> bool:
    return any((args.status, args.stop_reason, args.older_than, args.newer_than, args.metadata, args.after))


def _moment(span: timedelta | None) -> datetime | None:
    from whyloop.cli.session_parts.ages import ago

    return None if span is None else ago(span)


def _span(text: str) -> timedelta:
    from whyloop.cli.session_parts.ages import parse_span

    return parse_span(text)
